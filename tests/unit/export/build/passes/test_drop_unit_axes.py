"""A product of a matrix with float weights loses the axis of size one around it, and keeps its bits."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.drop_unit_axes import drop_unit_axes

RANDOM = np.random.default_rng(0)


def product(*, bias: bool = True, dequantized: bool = False, read_twice: bool = False) -> onnx.ModelProto:
    """A linear layer over stored weights, as the exporter leaves it where its input has two dimensions."""
    constants = {
        "axis": np.array([0]),
        "codes": RANDOM.integers(-127, 128, (6, 4)).astype(np.int8),
        "scales": RANDOM.uniform(0.01, 0.02, 4).astype(np.float32),
        "zeros": np.zeros(4, np.int8),
        "bias": RANDOM.normal(size=4).astype(np.float32),
    }
    weight = [
        helper.make_node("Cast", ["codes"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scales"], ["weight"]),
    ]
    if dequantized:
        weight = [helper.make_node("DequantizeLinear", ["codes", "scales", "zeros"], ["weight"], axis=1)]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["long"]),
        *weight,
        helper.make_node("MatMul", ["long", "weight"], ["product"]),
        *([helper.make_node("Add", ["product", "bias"], ["sum"])] if bias else []),
        helper.make_node("Squeeze", ["sum" if bias else "product", "axis"], ["squeezed"]),
        helper.make_node("Exp", ["squeezed"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])]
    if read_twice:
        nodes.append(helper.make_node("Neg", ["sum"], ["other"]))
        outputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, "rows", 4]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 6])]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("bias", [True, False])
def test_a_product_in_two_dimensions_stays_there(bias: bool) -> None:
    model, x = product(bias=bias), RANDOM.normal(size=(3, 6)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert drop_unit_axes(model) == 1
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Mul", "MatMul", *["Add"] * bias, "Exp"]
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("form", ["dequantized", "read_twice"])
def test_what_needs_the_axis_keeps_it(form: str) -> None:
    """The runtime would round beside a DequantizeLinear; and another reader expects three dimensions."""
    model = product(**{form: True})
    assert drop_unit_axes(model) == 0
    assert {"Unsqueeze", "Squeeze"} <= {node.op_type for node in model.graph.node}
