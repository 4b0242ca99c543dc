"""What the CPU of this machine does to 8-bit products, asked by running one, and how to check a file in spite of it."""

from functools import cache

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from qat_tft.export.graph_edit import replace_nodes
from qat_tft.export.verify.intermediate_outputs import outputs_of

_LENGTH = 128
_LARGEST_ACTIVATION, _LARGEST_WEIGHT = 255, 127

SATURATES = (
    "this CPU adds 8-bit products in pairs of 16 bits, where sums of this target's codes saturate: the file is for "
    "another machine, and was checked without onnxruntime's optimizations, its integer products in floating point"
)


@cache
def cpu_saturates() -> bool:
    """Whether onnxruntime's integer products saturate on this CPU, as they do on x86 without VNNI."""
    product = helper.make_node("MatMulInteger", ["codes", "weight"], ["sum"])
    weight = numpy_helper.from_array(np.full((_LENGTH, 1), _LARGEST_WEIGHT, np.int8), "weight")
    codes = helper.make_tensor_value_info("codes", TensorProto.UINT8, [1, _LENGTH])
    total = helper.make_tensor_value_info("sum", TensorProto.INT32, [1, 1])
    graph = helper.make_graph([product], "product", [codes], [total], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inputs = {"codes": np.full((1, _LENGTH), _LARGEST_ACTIVATION, np.uint8)}
    found = outputs_of(model.SerializeToString(), inputs, optimized=True, threads=1)["sum"]
    return int(found[0, 0]) != _LENGTH * _LARGEST_ACTIVATION * _LARGEST_WEIGHT


def in_floating_point(model: ModelProto) -> ModelProto:
    """Return a copy whose products of integers are computed in floating point, which adds the same numbers exactly.

    Sums of up to 500 products of 8-bit codes are whole numbers that single precision holds.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in [node for node in copy.graph.node if node.op_type == "MatMulInteger"]:
        replace_nodes(copy, [node], _float_product(node, has_zeros=len(node.input) > 2))
    return copy


def _float_product(node: NodeProto, *, has_zeros: bool) -> list[NodeProto]:
    result = node.output[0]
    made: list[NodeProto] = []
    operands = []
    for place in (0, 1):
        code = f"{result}.{place}"
        made.append(helper.make_node("Cast", [node.input[place]], [code], to=TensorProto.FLOAT))
        if has_zeros:
            zero, centered = f"{code}.zero", f"{code}.centered"
            made.append(helper.make_node("Cast", [node.input[place + 2]], [zero], to=TensorProto.FLOAT))
            made.append(helper.make_node("Sub", [code, zero], [centered]))
            code = centered
        operands.append(code)
    return [*made, helper.make_node("MatMul", operands, [result])]
