"""The quantization step of a whole model: what one step at the input of its last product changes in a quantile.

An INT8 model and its reference differ where a value falls on the other side of a rounding boundary. If each of
the K inputs of the head, quantized with scale s, moved by one step in a random direction, quantile j would
move by `s * sqrt(sum over k of w_kj^2)` on average (root mean square). That is the unit in which whole-model
errors are counted here. It is in the units of the network's output and does not depend on the data.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from qat_tft.errors import OnnxFileError
from qat_tft.export.graph_edit import Constants, along_axis, axis_of, constant_values, producers_of
from qat_tft.export.metadata import OUTPUT

Steps = npt.NDArray[np.float64]


def output_step(model: ModelProto) -> Steps:
    """Step of each quantile [Q], in units of the network's output, of an INT8 file's graph.

    Raises:
        OnnxFileError: the last product before the output does not multiply integers.
    """
    producers = producers_of(model)
    constants = constant_values(model)
    head = _last_product(producers)
    activation = producers.get(head.input[0]) if head is not None else None
    weight = _dequantized(head.input[1], producers, constants) if head is not None else None
    if head is None or weight is None or activation is None or activation.op_type != "DequantizeLinear":
        raise OnnxFileError(
            "the last product of the graph is not an integer one",
            next_step="Export the model again with `qat-tft export --int8`.",
        )
    step = float(constants[activation.input[1]]) * np.sqrt(np.square(weight).sum(-2))
    return np.asarray(np.broadcast_to(step * _multiplier(model, head, constants), step.shape)).reshape(-1)


def _last_product(producers: Mapping[str, NodeProto]) -> NodeProto | None:
    # Breadth first from the output, so that the product nearest to it is met first.
    waiting = [OUTPUT]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        node = producers.get(name)
        if node is None or name in seen:
            continue
        if node.op_type == "MatMul":
            return node
        seen.add(name)
        waiting.extend(node.input)
    return None


def _dequantized(name: str, producers: Mapping[str, NodeProto], constants: Constants) -> npt.NDArray[np.float64] | None:
    node = producers.get(name)
    if node is not None and node.op_type == "Transpose":
        inner = _dequantized(node.input[0], producers, constants)
        return None if inner is None else np.transpose(inner, node.attribute[0].ints)
    if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in constants:
        return None
    values, scale = constants[node.input[0]].astype(np.float64), constants[node.input[1]].astype(np.float64)
    zero = constants[node.input[2]].astype(np.float64) if len(node.input) > 2 else np.zeros_like(scale)
    if scale.ndim:
        scale, zero = (along_axis(vector, axis_of(node, 1), values.ndim) for vector in (scale, zero))
    return np.asarray((values - zero) * scale)


def _multiplier(model: ModelProto, head: NodeProto, constants: Constants) -> npt.NDArray[np.float64] | float:
    # A scale may stand as a Mul by a constant right after the product.
    for node in model.graph.node:
        if node.op_type == "Mul" and head.output[0] in node.input:
            for name in node.input:
                if name in constants:
                    return np.abs(constants[name].astype(np.float64).reshape(-1))
    return 1.0
