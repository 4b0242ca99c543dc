"""Products of rounded activations and 8-bit weight matrices, written so that onnxruntime adds the bias with them.

Of a MatMul between DequantizeLinear nodes onnxruntime makes MatMulIntegerToFloat and leaves the bias to an Add, one
more pass over the result. Of MatMulInteger, Cast, Mul by both scales and Add it makes the same operator, bias and all.
It looks for a Mul of the two scales, and would compute that of two constants before it looks: so the scale of the
activations is written as the DequantizeLinear of a one, which onnxruntime leaves alone. Values stay the same.
"""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from qat_tft.export.graph_edit import (
    Constants,
    add_constant,
    axis_of,
    constant_values,
    producers_of,
    remove_dead_nodes,
    replace_nodes,
)


def multiply_integers(model: ModelProto) -> int:
    """Write each product of uint8 activations and an int8 weight matrix with MatMulInteger; return how many."""
    constants, producers = constant_values(model), producers_of(model)
    scales: dict[str, str] = {}  # name of each constant to the value that holds it
    changed = 0
    for product in [node for node in model.graph.node if node.op_type == "MatMul"]:
        activation, weight = (producers.get(name) for name in product.input)
        if not (_is_rounded(activation, producers, constants) and _is_matrix(weight, constants)):
            continue
        assert activation is not None
        assert weight is not None
        scale = activation.input[1]
        made = [] if scale in scales else [_scale_node(model, scale)]
        name = scales.setdefault(scale, f"{scale}.scale")
        replace_nodes(model, [product], [*made, *_nodes(model, product, activation, weight, name)])
        changed += 1
    remove_dead_nodes(model)
    return changed


def _is_rounded(node: NodeProto | None, producers: dict[str, NodeProto], constants: Constants) -> bool:
    if node is None or node.op_type != "DequantizeLinear" or len(node.input) < 3:
        return False
    source, scale, zero = producers.get(node.input[0]), constants.get(node.input[1]), constants.get(node.input[2])
    if source is None or source.op_type != "QuantizeLinear" or source.input[1:] != node.input[1:]:
        return False
    return scale is not None and scale.ndim == 0 and zero is not None and zero.dtype == np.uint8


def _is_matrix(node: NodeProto | None, constants: Constants) -> bool:
    if node is None or node.op_type != "DequantizeLinear":
        return False
    codes, scale, zero = (constants.get(name) for name in node.input)
    if codes is None or scale is None or zero is None or codes.ndim != 2 or codes.dtype != np.int8:
        return False
    return not zero.any() and bool(np.isfinite(scale).all()) and (scale.ndim == 0 or axis_of(node, 1) % 2 == 1)


def _scale_node(model: ModelProto, scale: str) -> NodeProto:
    one = add_constant(model, f"{scale}.one", np.array(1, np.uint8))
    nought = add_constant(model, f"{scale}.nought", np.array(0, np.uint8))
    return helper.make_node("DequantizeLinear", [one, scale, nought], [f"{scale}.scale"], f"{scale}.scale")


def _nodes(
    model: ModelProto, product: NodeProto, activation: NodeProto, weight: NodeProto, scale: str
) -> list[NodeProto]:
    result = product.output[0]
    sums, floats, both = f"{result}.sums", f"{result}.floats", f"{result}.scales"
    zero = add_constant(model, f"{result}.zero", np.array(0, np.int8))
    integers = [activation.input[0], weight.input[0], activation.input[2], zero]
    return [
        helper.make_node("MatMulInteger", integers, [sums], sums),
        helper.make_node("Cast", [sums], [floats], floats, to=TensorProto.FLOAT),
        helper.make_node("Mul", [scale, weight.input[1]], [both], both),
        helper.make_node("Mul", [floats, both], [result], result),
    ]
