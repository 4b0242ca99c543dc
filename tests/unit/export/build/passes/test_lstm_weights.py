from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.lstm_weights import (
    compute_on_integers,
    dequantize_at_load,
    order_lstm_weights,
    squeeze_outputs,
)

HIDDEN = 2
DYNAMIC = 0.02  # outputs lie within -1 and 1; two 8-bit roundings per step, of the input and of the state
RANDOM = np.random.default_rng(0)


def lstm_graph(*, per_row: bool) -> onnx.ModelProto:
    """An LSTM whose 8-bit weights are reordered after their DequantizeLinear, as the exporter leaves it."""
    zero = np.zeros(4 * HIDDEN, np.int8) if per_row else np.int8(0)
    constants = {"axes": np.array([0]), "only": np.array([0])}
    nodes = []
    for weight in ("W", "R"):
        scale = RANDOM.uniform(0.01, 0.02, 4 * HIDDEN) if per_row else np.array(0.01)
        constants |= {
            f"{weight}.codes": RANDOM.integers(-64, 64, (4 * HIDDEN, HIDDEN)).astype(np.int8),
            f"{weight}.scale": scale.astype(np.float32),
            f"{weight}.zero": zero,
        }
        operands = [f"{weight}.{part}" for part in ("codes", "scale", "zero")]
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"{weight}.float"], axis=0))
        gates = []
        for gate, start in zip("iofc", (0, 3, 1, 2), strict=True):  # torch has them in the order i, f, c, o
            constants[f"{gate}.start"] = np.array([start * HIDDEN])
            constants[f"{gate}.end"] = np.array([(start + 1) * HIDDEN])
            bounds = [f"{gate}.start", f"{gate}.end", "only"]
            gates.append(f"{weight}.{gate}")
            nodes.append(helper.make_node("Slice", [f"{weight}.float", *bounds], [gates[-1]]))
        nodes.append(helper.make_node("Concat", gates, [f"{weight}.rows"], axis=0))
        nodes.append(helper.make_node("Unsqueeze", [f"{weight}.rows", "axes"], [weight]))
    nodes.append(helper.make_node("LSTM", ["x", "W", "R"], ["y"], hidden_size=HIDDEN))
    graph = helper.make_graph(
        nodes,
        "recurrence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", "batch", HIDDEN])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["time", 1, "batch", HIDDEN])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("per_row", [True, False], ids=["scale per row", "one scale"])
def test_integer_weights_are_stored_in_the_order_of_the_operator(per_row: bool) -> None:
    model = lstm_graph(per_row=per_row)
    x = RANDOM.normal(size=(5, 3, HIDDEN)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert order_lstm_weights(model) == 2
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["DequantizeLinear", "DequantizeLinear", "LSTM"]
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)
    integers = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8]
    assert sum(numpy_helper.to_array(tensor).size for tensor in integers if len(tensor.dims) > 1) == 32


def test_ordered_weights_are_left_alone() -> None:
    model = lstm_graph(per_row=True)
    order_lstm_weights(model)
    ordered = model.SerializeToString()
    assert order_lstm_weights(model) == 0
    assert model.SerializeToString() == ordered


def test_weights_that_depend_on_the_data_are_left_alone() -> None:
    model = lstm_graph(per_row=True)
    shape = helper.make_node("Shape", ["x"], ["i.start"], start=0, end=1)
    model.graph.node.insert(0, shape)
    (start,) = [tensor for tensor in model.graph.initializer if tensor.name == "i.start"]
    model.graph.initializer.remove(start)
    assert order_lstm_weights(model) == 0


def rounded_lstm_graph() -> onnx.ModelProto:
    """The LSTM as the integer model has it: batch first, its input rounded, its weights in the operator's order."""
    model = lstm_graph(per_row=True)
    order_lstm_weights(model)
    rounding = [
        helper.make_node("QuantizeLinear", ["rows", "scale", "zero"], ["levels"]),
        helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["rounded"]),
        helper.make_node("Transpose", ["rounded"], ["x"], perm=[1, 0, 2]),
    ]
    for node in reversed(rounding):
        model.graph.node.insert(0, node)
    values = {"scale": np.float32(0.02), "zero": np.uint8(128)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in values.items())
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", "time", HIDDEN]))
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, rows: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"rows": rows})[0]


def test_weights_that_are_dequantized_at_load_leave_nothing_to_do_per_call(tmp_path: Path) -> None:
    model, rows = rounded_lstm_graph(), RANDOM.normal(size=(3, 5, HIDDEN)).astype(np.float32)
    expected = run(model, rows)
    assert dequantize_at_load(model) == 2
    onnx.checker.check_model(model)
    assert np.array_equal(run(model, rows), expected)
    integers = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8]
    assert sum(numpy_helper.to_array(tensor).size for tensor in integers) == 32, "the file still holds 8-bit weights"
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    left = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert left.count("DequantizeLinear") == 1, "that of the input"
    assert "Cast" not in left


def weight_of_a_float_product(activations: str) -> onnx.ModelProto:
    """A product with an 8-bit weight, scaled by column and reshaped, of activations that are rounded or not."""
    constants = {
        "codes": RANDOM.integers(-64, 64, (6, 4)).astype(np.int8),
        "scales": RANDOM.uniform(0.01, 0.02, 4).astype(np.float32),
        "zeros": np.zeros(4, np.int8),
        "shape": np.array([1, 6, 4]),
        "scale": np.float32(0.1),
        "zero": np.uint8(128),
    }
    nodes = [helper.make_node("DequantizeLinear", ["codes", "scales", "zeros"], ["matrix"], axis=1)]
    weight = "matrix"
    if activations == "floats, after a Reshape":
        weight = "weight"
        nodes.append(helper.make_node("Reshape", ["matrix", "shape"], ["weight"]))
    if activations == "integers":
        nodes.append(helper.make_node("QuantizeLinear", ["rows", "scale", "zero"], ["levels"]))
        nodes.append(helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["rounded"]))
    x = "rounded" if activations == "integers" else "rows"
    nodes.append(helper.make_node("MatMul", [x, weight], ["y"]))
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [2, "batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "batch", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(("activations", "count"), [("floats", 1), ("floats, after a Reshape", 1), ("integers", 0)])
def test_only_weights_that_meet_floats_are_dequantized_at_load(activations: str, count: int) -> None:
    model, rows = weight_of_a_float_product(activations), RANDOM.normal(size=(2, 3, 6)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"rows": rows})[0]
    assert dequantize_at_load(model) == count
    onnx.checker.check_model(model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Cast") == count
    assert kinds.count("DequantizeLinear") == (2 if activations == "integers" else 0)
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"rows": rows})[0], expected)


@pytest.mark.parametrize(
    ("scale", "kinds"),
    [
        pytest.param(np.linspace(0.01, 0.02, 4, dtype=np.float32), ["Cast", "Mul", "MatMul"], id="scale per column"),
        pytest.param(np.ones((), np.float32), ["Cast", "MatMul"], id="bare codes"),
    ],
)
def test_one_matrix_among_three_dimensions_becomes_a_matrix_that_can_be_packed(
    scale: np.ndarray, kinds: list[str]
) -> None:
    constants = {
        "codes": RANDOM.integers(-127, 128, (1, 6, 4)).astype(np.int8),
        "scale": scale,
        "zero": np.zeros(scale.shape, np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["weight"], axis=2),
        helper.make_node("MatMul", ["rows", "weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [2, "batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "batch", 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    rows = RANDOM.normal(size=(2, 3, 6)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"rows": rows})[0]
    assert dequantize_at_load(model) == 1
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == kinds
    assert {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}["codes"] == [6, 4]
    assert np.allclose(ReferenceEvaluator(model).run(None, {"rows": rows})[0], expected, rtol=1e-6)


def test_the_integer_lstm_is_close_and_rounds_its_input_once() -> None:
    model, rows = rounded_lstm_graph(), RANDOM.normal(size=(3, 5, HIDDEN)).astype(np.float32)
    expected = run(model, rows)
    assert compute_on_integers(model) == 1
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Transpose", "DynamicQuantizeLSTM"]
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20), ("com.microsoft", 1)]
    assert np.abs(run(model, rows) - expected).max() < DYNAMIC


def test_an_lstm_with_float_weights_stays_as_it_is() -> None:
    model = rounded_lstm_graph()
    dequantize_at_load(model)
    before = model.SerializeToString()
    assert (dequantize_at_load(model), compute_on_integers(model)) == (0, 0)
    assert model.SerializeToString() == before


def exported_outputs(order: tuple[int, ...]) -> onnx.ModelProto:
    """An LSTM whose outputs are brought to [T, B, H] as the exporter does it; `order` names the sizes that it joins."""
    model = lstm_graph(per_row=True)
    order_lstm_weights(model)
    picks = [helper.make_node("Gather", ["shape", f"place{k}"], [f"size{k}"]) for k in range(4)]
    kept = [f"size{k}" for k in order]
    nodes = [
        helper.make_node("Transpose", ["y"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Shape", ["turned"], ["shape"]),
        *picks,
        helper.make_node("Mul", ["size2", "size3"], ["joined"]),
        helper.make_node("Concat", [*kept, "joined"], ["new"], axis=0),
        helper.make_node("Reshape", ["turned", "new"], ["flat"]),
    ]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(np.array([k]), f"place{k}") for k in range(4))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["t", "b", HIDDEN]))
    return model


def test_the_axis_of_directions_goes_with_one_squeeze() -> None:
    model = exported_outputs((0, 1))
    x = RANDOM.normal(size=(5, 3, HIDDEN)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert squeeze_outputs(model) == 1
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node[-2:]] == ["LSTM", "Squeeze"]
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)


def test_outputs_that_are_reshaped_otherwise_stay() -> None:
    model = exported_outputs((1, 0))  # the same size, and other places
    assert squeeze_outputs(model) == 0
    assert "Reshape" in [node.op_type for node in model.graph.node]
