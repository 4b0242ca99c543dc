"""The same graph with fewer passes over its largest tensors: equal algebra, found by pattern.

At inference most of a wide TFT's time goes into reading and writing [variables, rows, hidden] tensors, not into
products. Some of that is needless:

- A gated linear unit takes one product of double width apart with a Split, which copies both halves. Two
  products of single width, with the halves of the weight, need no copy and are bitwise identical.
- onnxruntime's Elu takes about twice as long as the Min, Exp, Add and Max that it stands for.
- onnxruntime makes one operator of an Add and the LayerNormalization after it, SkipLayerNormalization, which takes
  two to six times as long as the two. It leaves a Sum alone, which adds as fast.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, helper

from qat_tft.export.graph_edit import (
    Constants,
    add_constant,
    axis_of,
    constant_values,
    producers_of,
    remove_unused_initializers,
    replace_nodes,
)

_OF_CODES = ("DequantizeLinear", "Cast", "Mul")  # what makes a weight of stored codes


def rewrite_patterns(model: ModelProto) -> None:
    """Apply every rewrite to a graph whose constants are folded; what does not match a pattern stays."""
    for rewrite in (split_gates, write_out_elus, sum_before_norms):
        rewrite(model)
    remove_unused_initializers(model)


def split_gates(model: ModelProto) -> int:
    """Turn each product that a Split halves along its last axis into two products; return how many."""
    graph = _Graph(model)
    gates = [found for node in model.graph.node if (found := _gate_before(node, graph)) is not None]
    for gate in gates:
        replace_nodes(model, gate.nodes, gate.halves(graph))
    return len(gates)


def write_out_elus(model: ModelProto) -> int:
    """Turn each Elu with alpha 1 into `max(x, exp(min(x, 0)) - 1)`; return how many."""
    graph = _Graph(model)
    elus = [node for node in model.graph.node if node.op_type == "Elu" and _alpha(node) == 1.0]
    for node in elus:
        x, y = node.input[0], node.output[0]
        zero, minus_one = graph.shared(np.zeros((), np.float32)), graph.shared(-np.ones((), np.float32))
        steps = (
            ("Min", [x, zero], f"{y}.min"),
            ("Exp", [f"{y}.min"], f"{y}.exp"),
            ("Add", [f"{y}.exp", minus_one], f"{y}.minus"),
            ("Max", [x, f"{y}.minus"], y),
        )
        replace_nodes(model, [node], [helper.make_node(kind, names, [out], out) for kind, names, out in steps])
    return len(elus)


def sum_before_norms(model: ModelProto) -> int:
    """Turn each Add of two activations that a LayerNormalization follows into a Sum; return how many."""
    constants = constant_values(model)
    normalized = {node.input[0] for node in model.graph.node if node.op_type == "LayerNormalization"}
    adds = [node for node in model.graph.node if node.op_type == "Add" and node.output[0] in normalized]
    changed = [node for node in adds if constants.keys().isdisjoint(node.input)]
    for node in changed:
        node.op_type = "Sum"
    return len(changed)


class _Graph:
    """Look-ups in a graph that is being rewritten."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.constants: Constants = constant_values(model)
        self.producers = producers_of(model)
        self.readers = Counter(name for node in model.graph.node for name in node.input)
        self.readers.update(output.name for output in model.graph.output)

    def only_producer(self, name: str, *kinds: str) -> NodeProto | None:
        """The node of one of these kinds that makes a value, if nobody else reads that value."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type in kinds and self.readers[name] == 1 else None

    def are_constant(self, names: Iterable[str]) -> bool:
        """Whether every name is that of a constant."""
        return all(name in self.constants for name in names)

    def add_constant(self, name: str, value: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> None:
        """A new initializer."""
        self.constants[name] = value
        add_constant(self.model, name, value)

    def shared(self, value: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> str:
        """The name of a small constant that all rewrites share."""
        name = f"constant.{value.dtype}.{'.'.join(str(number) for number in value.reshape(-1))}"
        if name not in self.constants:
            self.add_constant(name, value)
        return name


@dataclass
class _Gate:
    """A Split of a product's last axis, with what lies between: nodes from the product to the Split."""

    product: NodeProto
    weight: list[NodeProto]  # what makes the weight of a constant: nothing, a DequantizeLinear, a Cast and a Mul
    split: NodeProto
    width: int
    between: list[NodeProto] = field(default_factory=list)

    @property
    def nodes(self) -> list[NodeProto]:
        return [*self.weight, self.product, *self.between, self.split]

    def halves(self, graph: _Graph) -> list[NodeProto]:
        """The nodes of both halves."""
        return [node for half in (0, 1) for node in self._half(graph, half)]

    def _half(self, graph: _Graph, half: int) -> list[NodeProto]:
        made = []
        renamed: dict[str, str] = {}
        for node in self.nodes[:-1]:
            copy = NodeProto()
            copy.CopyFrom(node)
            for place, name in enumerate(node.input):
                copy.input[place] = renamed.get(name) or self._halved(graph, name, half)
            last = node is self.nodes[-2]
            copy.output[0] = self.split.output[half] if last else f"{node.output[0]}.half{half}"
            copy.name = copy.output[0]  # node names must be unique, and values' names are
            renamed[node.output[0]] = copy.output[0]
            made.append(copy)
        return made

    def _halved(self, graph: _Graph, name: str, half: int) -> str:
        value = graph.constants.get(name)
        if value is None or not value.ndim or value.shape[-1] != self.width:
            return name  # an activation, or one number for the whole width
        part = f"{name}.half{half}"
        if part not in graph.constants:
            graph.add_constant(part, np.split(value, 2, -1)[half])
        return part


def _gate_before(split: NodeProto, graph: _Graph) -> _Gate | None:
    if split.op_type != "Split" or len(split.output) != 2:
        return None
    between: list[NodeProto] = []
    name = split.input[0]
    while (node := graph.only_producer(name, "Add", "Mul")) is not None:
        operands = [operand for operand in node.input if operand not in graph.constants]
        if len(operands) != 1:
            return None
        between.insert(0, node)
        name = operands[0]
    product = graph.only_producer(name, "MatMul")
    if product is None:
        return None
    weight, source = _made_of(product.input[1], graph)
    values = graph.constants.get(source)
    if values is None or not _halves_last_axis(split, values.ndim, values.shape[-1], graph):
        return None
    if not all(_is_scaled_by_column(node, values.ndim, graph) for node in weight if node.op_type == "DequantizeLinear"):
        return None
    return _Gate(product, weight, split, values.shape[-1], between)


def _made_of(weight: str, graph: _Graph) -> tuple[list[NodeProto], str]:
    # The nodes that make a weight of stored codes, first to last, and the name of these.
    nodes: list[NodeProto] = []
    while (node := graph.only_producer(weight, *_OF_CODES)) is not None and graph.are_constant(node.input[1:]):
        nodes.insert(0, node)
        weight = node.input[0]
    return nodes, weight


def _halves_last_axis(split: NodeProto, rank: int, width: int, graph: _Graph) -> bool:
    # The product has the rank of its activations, at least that of the weight; -1 is the last axis of both.
    axis = axis_of(split, 0)
    sizes = graph.constants.get(split.input[1]) if len(split.input) > 1 and split.input[1] else None
    equal = sizes is None or list(sizes) == [width // 2, width // 2]
    return width % 2 == 0 and equal and axis in (-1, *((rank - 1,) if rank > 2 else ()))


def _is_scaled_by_column(weight: NodeProto, rank: int, graph: _Graph) -> bool:
    # A scale per column is halved with the columns; a scale per row would be halved wrongly by its length.
    axis = axis_of(weight, 1)
    return graph.constants[weight.input[1]].ndim == 0 or axis % rank == rank - 1


def _alpha(elu: NodeProto) -> float:
    return next((attribute.f for attribute in elu.attribute if attribute.name == "alpha"), 1.0)
