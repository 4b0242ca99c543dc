import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_tft.errors import OnnxFileError
from qat_tft.export.verify.output_step import output_step

LEVELS = np.random.default_rng(0).integers(-64, 64, (4, 3)).astype(np.int8)
SCALES = np.array([0.01, 0.02, 0.03], np.float32)
STEP = 0.05


def head_graph(*, scale_after: bool = False, transposed: bool = False, floating: bool = False) -> onnx.ModelProto:
    """A head in each of the forms that onnxruntime runs on integers: y = (x W + b) * 7 + 1."""
    # scale_after: the integers are multiplied as they are, their scales follow as one Mul.
    unit = np.float32(1.0)
    values = {
        "step": np.float32(STEP),
        "activation_scale": unit if scale_after else np.float32(STEP),
        "zero": np.uint8(120),
        "weight": LEVELS.T if transposed else LEVELS,
        "weight_scale": unit if scale_after else SCALES,
        "weight_zero": np.int8(0) if scale_after else np.zeros(3, np.int8),
        "bias": np.ones(3, np.float32),
        "multiplier": (STEP * SCALES).reshape(1, 1, 3),
        "deviation": np.float32(7.0),
        "mean": np.float32(1.0),
    }
    axis = {} if scale_after else {"axis": 0 if transposed else 1}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["levels"]),
        helper.make_node("DequantizeLinear", ["levels", "activation_scale", "zero"], ["activation"]),
        helper.make_node("DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["w"], **axis),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x" if floating else "activation", "wt" if transposed else "w"], ["product"]),
        helper.make_node("Mul", ["product", "multiplier"], ["multiplied"]),
        helper.make_node("Add", ["multiplied" if scale_after else "product", "bias"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "deviation"], ["wide"]),
        helper.make_node("Add", ["wide", "mean"], ["quantiles"]),
    ]
    left_out = {"wt"} if not transposed else set()
    left_out |= {"multiplied"} if not scale_after else set()
    graph = helper.make_graph(
        [node for node in nodes if node.output[0] not in left_out],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 4])],
        [helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, ["batch", 2, 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({}, id="scales in the dequantizers"),
        pytest.param({"scale_after": True}, id="scales after the product"),
        pytest.param({"transposed": True}, id="weight stored transposed"),
    ],
)
def test_the_step_is_what_random_one_step_moves_of_the_heads_input_change(form: dict[str, bool]) -> None:
    # The naive way: move every input by one step up or down and look at the spread of the outcome.
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T
    moved = STEP * signs @ (LEVELS * SCALES.astype(np.float64))
    assert np.allclose(output_step(head_graph(**form)), moved.std(axis=0), rtol=1e-6)


def test_a_float_head_has_no_step() -> None:
    with pytest.raises(OnnxFileError, match="not an integer one"):
        output_step(head_graph(floating=True))
