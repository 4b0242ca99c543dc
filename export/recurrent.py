"""LSTM weights in the order in which ONNX wants them, as 8-bit integers, so that nothing is moved at run time.

Torch orders the gates of an LSTM input, forget, cell, output and ONNX input, output, forget, cell. The exporter
reorders the rows of 8-bit weights after their DequantizeLinear, with nodes that onnxruntime, which does not fold
through a DequantizeLinear, would run at every call.
"""

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from qat_tft.export.fold import evaluated
from qat_tft.export.qdq import Constants, constant_values, remove_unused_initializers

_WEIGHTS = (1, 2)  # inputs W and R of the operator LSTM


def order_lstm_weights(model: ModelProto) -> int:
    """Put the DequantizeLinear of each LSTM weight right before the LSTM; return how many weights that were."""
    constants = constant_values(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    moved = 0
    for lstm in [node for node in model.graph.node if node.op_type == "LSTM"]:
        for place in _WEIGHTS:
            chain = _chain(lstm.input[place], producers, constants)
            sources = {node.input[0]: node for node in chain if node.op_type == "DequantizeLinear"}
            if len(sources) != 1 or len(chain) == 1:
                continue
            (source,) = sources.values()
            order = _places(lstm.input[place], chain, source, constants, model)
            if order is not None:
                name = f"{source.input[0]}.gates"
                _insert(model, lstm, place, _reordered(name, order, source, constants, model))
                moved += 1
    _remove_dead_nodes(model)
    remove_unused_initializers(model)
    return moved


def _chain(name: str, producers: dict[str, NodeProto], constants: Constants) -> list[NodeProto]:
    # The nodes that make a value, sources first; empty if anything but constants goes in.
    nodes: list[NodeProto] = []

    def visit(name: str) -> bool:
        if name in constants or not name:
            return True
        node = producers.get(name)
        if node is None:
            return False
        if not all(visit(operand) for operand in node.input):
            return False
        if node not in nodes:
            nodes.append(node)
        return True

    return nodes if visit(name) else []


def _places(
    name: str, chain: list[NodeProto], source: NodeProto, constants: Constants, model: ModelProto
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None":
    # Send each element's own place through the chain: what comes out says where every element came from.
    weight = constants[source.input[0]]
    values = dict(constants)
    values[source.output[0]] = np.arange(weight.size, dtype=np.float64).reshape(weight.shape)
    for node in chain:
        if node is not source:
            values |= evaluated(node, values, model)
    order = np.asarray(values[name], dtype=np.int64)
    rows = order // weight.shape[1]
    whole = order.ndim == 3 and order.size == weight.size and bool((rows == rows[..., :1]).all())
    return order if whole else None


def _reordered(
    name: str,
    order: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
    source: NodeProto,
    constants: Constants,
    model: ModelProto,
) -> NodeProto:
    weight, scale, zero = (constants[operand] for operand in source.input)
    rows = order[0, :, 0] // weight.shape[1]
    axis = next((attribute.i for attribute in source.attribute if attribute.name == "axis"), 1)
    assert scale.ndim == 0 or axis % weight.ndim == 0, "an LSTM weight has one scale, or one per row"
    made = {
        f"{name}.codes": weight.reshape(-1)[order],
        f"{name}.scale": scale if scale.ndim == 0 else scale[rows],
        f"{name}.zero": zero if zero.ndim == 0 else zero[rows],
    }
    for key, value in made.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), key))
    return helper.make_node("DequantizeLinear", list(made), [name], name, axis=1)


def _insert(model: ModelProto, lstm: NodeProto, place: int, dequantize: NodeProto) -> None:
    model.graph.node.insert(list(model.graph.node).index(lstm), dequantize)
    lstm.input[place] = dequantize.output[0]


def _remove_dead_nodes(model: ModelProto) -> None:
    needed = {output.name for output in model.graph.output}
    for node in reversed(list(model.graph.node)):  # in topological order, so readers come first
        if needed.isdisjoint(node.output):
            model.graph.node.remove(node)
        else:
            needed.update(node.input)
