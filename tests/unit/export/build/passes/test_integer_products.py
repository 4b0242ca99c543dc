from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.integer_products import multiply_integers

RANDOM = np.random.default_rng(0)
ROUNDING = 1e-5  # single precision: scales are multiplied before the sum or after it


def rounded_product(**changes: object) -> onnx.ModelProto:
    """`x` [2, batch, 6] rounded, times an int8 weight, plus a bias, and the same `x` times a second weight."""
    constants: dict[str, object] = {
        "scale": np.float32(0.05),
        "zero": np.uint8(120),
        "layer.weight": RANDOM.integers(-64, 64, (6, 4)).astype(np.int8),
        "other.weight": RANDOM.integers(-64, 64, (6, 4)).astype(np.int8),
        "weight_scale": RANDOM.uniform(0.01, 0.02, 4).astype(np.float32),
        "weight_zero": np.zeros(4, np.int8),
        "bias": RANDOM.normal(size=4).astype(np.float32),
        **{name: value for name, value in changes.items() if name not in ("axis", "weight", "rounded")},
    }
    weight = str(changes.get("weight", "layer.weight"))
    constants[weight] = constants.get(weight, constants["layer.weight"])
    axis = changes.get("axis", 1)
    read = "read_scale" if "read_scale" in changes else "scale"
    first = "rounded" if changes.get("rounded", True) else "x"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", read, "zero"], ["rounded"]),
        helper.make_node("DequantizeLinear", [weight, "weight_scale", "weight_zero"], ["w"], axis=axis),
        helper.make_node("DequantizeLinear", ["other.weight", "weight_scale", "weight_zero"], ["v"], axis=axis),
        helper.make_node("MatMul", [first, "w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
        helper.make_node("MatMul", [first, "v"], ["z"]),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "batch", 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, "batch", 4]) for name in ("y", "z")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def outcome(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(1).normal(size=(2, 3, 6)).astype(np.float32)
    return ReferenceEvaluator(model).run(None, {"x": x})


@pytest.mark.parametrize("scale", ["per column", "one"])
def test_products_multiply_integers_and_share_the_scale_of_their_input(scale: str) -> None:
    one = {"weight_scale": np.float32(0.015), "weight_zero": np.int8(0)} if scale == "one" else {}
    model = rounded_product(**one)
    expected = outcome(model)
    assert multiply_integers(model) == 2
    onnx.checker.check_model(model, full_check=True)
    found = kinds(model)
    assert (found.count("MatMulInteger"), found.count("MatMul")) == (2, 0)
    assert found.count("DequantizeLinear") == 1, "that of the one, for both products"
    for ours, theirs in zip(outcome(model), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)


def test_onnxruntime_adds_the_bias_with_the_product(tmp_path: Path) -> None:
    model = rounded_product()
    multiply_integers(model)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = kinds(onnx.load(tmp_path / "optimized.onnx"))
    assert found.count("MatMulIntegerToFloat") == 2
    assert set(found) == {"QuantizeLinear", "DequantizeLinear", "MatMulIntegerToFloat"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"rounded": False}, id="floats"),
        pytest.param({"read_scale": np.float32(0.06)}, id="another scale on the way back"),
        pytest.param({"zero": np.int8(0)}, id="signed activations"),
        pytest.param({"weight_zero": np.ones(4, np.int8)}, id="weights with a zero point"),
        pytest.param({"weight_scale": np.full(4, np.nan, np.float32)}, id="a scale that is not a number"),
        pytest.param(
            {"weight_scale": np.ones(6, np.float32), "weight_zero": np.zeros(6, np.int8), "axis": 0},
            id="a scale per row",
        ),
        pytest.param(
            {name: RANDOM.integers(-9, 9, (2, 6, 4)).astype(np.int8) for name in ("layer.weight", "other.weight")}
            | {"weight_scale": np.float32(1.0), "weight_zero": np.int8(0)},
            id="a batched weight",
        ),
    ],
)
def test_other_products_stay(changes: dict[str, object]) -> None:
    model = rounded_product(**changes)
    assert multiply_integers(model) == 0
    assert kinds(model).count("MatMul") == 2
