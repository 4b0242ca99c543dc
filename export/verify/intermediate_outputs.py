"""Where the products of each quantized layer stand in a graph: found by their int8 weights, whose names are kept.

A layer may have become several products: one per chunk of variables, and one per half of a gate.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, ValueInfoProto

from qat_tft.export.build.graph_rules import INTEGER_WEIGHTS
from qat_tft.export.graph_edit import producers_of, readers_of

RECURRENT = ("LSTM", "DynamicQuantizeLSTM")
_PRODUCTS = ("MatMul", "MatMulInteger", *RECURRENT)
_AFTER = ("Add", "Mul", "Cast", "Reshape")
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_STATES = slice(5, 7)  # inputs initial_h and initial_c of the recurrent operators


@dataclass(frozen=True)
class Tap:
    """The values around one product of a layer.

    Attributes:
        chunk, half: which variables and which half of the outputs it computes, both counted from 0.
        operator: of the product.
        input: what goes in, before it is rounded.
        time_first: whether what goes in is [T, B, H] instead of [B, T, H]; only of recurrent operators.
        states: initial hidden and cell state of a recurrent operator, each [1, B, H].
        output: what comes out, bias and scales included.
    """

    chunk: int
    half: int
    operator: str
    input: str
    time_first: bool
    states: tuple[str, ...]
    output: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every value of the graph that is needed."""
        return self.input, *self.states, self.output


def find_taps(model: ModelProto, layers: Mapping[str, int]) -> dict[str, list[Tap]]:
    """Return the products of each layer, in the order of chunks and halves; none where the graph has no such layer.

    Args:
        model: an INT8 graph.
        layers: name of each quantized layer to how many Mul and Add nodes belong to it after its product.
    """
    graph = _Graph(model)
    found: dict[str, list[Tap]] = {}
    for layer, after in layers.items():
        taps = {tap.output: tap for weight in graph.weights_of(layer) for tap in graph.taps(weight, after)}
        found[layer] = sorted(taps.values(), key=lambda tap: (tap.chunk, tap.half))
    return found


def expose(model: ModelProto, taps: Mapping[str, list[Tap]]) -> ModelProto:
    """Return a copy of a graph that also puts out every value that the taps name."""
    tapped = ModelProto()
    tapped.CopyFrom(model)
    there = {value.name for value in tapped.graph.output}
    wanted = dict.fromkeys(name for products in taps.values() for tap in products for name in tap.names)
    tapped.graph.output.extend(ValueInfoProto(name=name) for name in wanted if name not in there)
    return tapped


class _Graph:
    """Look-ups of producers and readers."""

    def __init__(self, model: ModelProto) -> None:
        self.producers, self.readers = producers_of(model), readers_of(model)
        self.constants = {tensor.name for tensor in model.graph.initializer}
        self.weights = [
            tensor.name
            for tensor in model.graph.initializer
            if tensor.data_type in INTEGER_WEIGHTS and len(tensor.dims) > 1
        ]

    def weights_of(self, layer: str) -> list[str]:
        return [name for name in self.weights if name.startswith(f"model.{layer}.")]

    def taps(self, weight: str, after: int) -> Iterator[Tap]:
        for product in self._products_of(weight):
            recurrent = product.op_type in RECURRENT
            source, time_first = self._before_rounding(product.input[0], recurrent)
            yield Tap(
                chunk=_number(r"\.chunk(\d+)_", weight),
                half=_number(r"\.half(\d)$", weight),
                operator=product.op_type,
                input=source,
                time_first=time_first,
                states=tuple(product.input[_STATES]) if recurrent else (),
                output=self._after(product.output[0], after + (product.op_type == "MatMulInteger")),
            )

    def _products_of(self, value: str) -> Iterator[NodeProto]:
        for node in self.readers.get(value, []):
            if node.op_type in _PRODUCTS:
                yield node
            else:  # what dequantizes, casts or turns the weight
                for name in node.output:
                    yield from self._products_of(name)

    def _before_rounding(self, value: str, recurrent: bool) -> tuple[str, bool]:
        time_first = recurrent
        while (node := self.producers.get(value)) is not None:
            if recurrent and node.op_type == "Transpose":
                time_first = not time_first
            elif node.op_type not in _ROUNDING and not self._scales(node, value):
                break
            value = node.input[0]
        return value, time_first

    def _scales(self, node: NodeProto, value: str) -> bool:
        # A Div by constants right before the rounding, where one scale per variable stands outside QuantizeLinear.
        readers = self.readers.get(value, [])
        rounded = bool(readers) and all(reader.op_type == "QuantizeLinear" for reader in readers)
        return node.op_type == "Div" and node.input[1] in self.constants and rounded

    def _after(self, value: str, steps: int) -> str:
        # Rows may be laid side by side meanwhile: a Reshape before the first of the steps, and one after the last.
        wide = False
        while steps or wide:
            (node,) = self.readers[value]
            assert node.op_type in _AFTER, "a layer's bias and scales come right after its product"
            wide ^= node.op_type == "Reshape"
            steps -= node.op_type in ("Add", "Mul")
            value = node.output[0]
        return value


def _number(pattern: str, name: str) -> int:
    found = re.search(pattern, name)
    return int(found[1]) if found else 0
