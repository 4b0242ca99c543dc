import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.errors import CalibrationError, ExportError
from qat_tft.export.build.graph_rules import (
    unchanged_bytes,
    verify_explicit_pairs,
    verify_graph,
    verify_integer_graph,
    weight_bytes,
)
from qat_tft.export.build.passes.cleanup import remove_full_range_clips, strip

WEIGHT = np.random.default_rng(0).integers(-64, 64, (4, 3)).astype(np.int8)


def integer_graph(**changes: object) -> onnx.ModelProto:
    """Float in, one product of 8-bit activations and 8-bit weights, float out; with what the exporter leaves."""
    values = {
        "scale": np.float32(0.05),
        "zero": np.uint8(120),
        "low": np.uint8(0),
        "high": np.uint8(255),
        "weight": WEIGHT,
        "weight_scale": np.array([0.01, 0.02, 0.03], np.float32),
        "weight_zero": np.zeros(3, np.int8),
        "never_read": np.zeros((2, 2), np.float32),
    } | changes
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["levels"]),
        helper.make_node("Clip", ["levels", "low", "high"], ["clipped"]),
        helper.make_node("DequantizeLinear", ["clipped", "scale", "zero"], ["activation"]),
        helper.make_node("DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["matrix"], axis=1),
        helper.make_node("MatMul", ["activation", "matrix"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2, 3])
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "integers", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_clip_over_the_whole_range_goes_and_nothing_else_changes() -> None:
    model, before = integer_graph(), integer_graph()
    assert remove_full_range_clips(model) == 1
    assert operators(model) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert {"low", "high", "never_read"}.isdisjoint(tensor.name for tensor in model.graph.initializer)
    onnx.checker.check_model(model)
    x = np.random.default_rng(1).normal(scale=9, size=(5, 2, 4)).astype(np.float32)
    after, expected = (ReferenceEvaluator(graph).run(None, {"x": x})[0] for graph in (model, before))
    assert np.array_equal(after, expected)


def test_a_clip_that_clips_stays() -> None:
    model = integer_graph(high=np.uint8(127))
    assert remove_full_range_clips(model) == 0
    assert "Clip" in operators(model)


def test_nothing_of_the_exporters_story_is_left() -> None:
    model = integer_graph()
    model.producer_name = "pytorch"
    model.graph.node[0].doc_string = "File /home/someone/secret.py"
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.stack_trace", "File /home/someone/secret.py"
    strip(model)
    assert b"someone" not in model.SerializeToString()
    assert b"pytorch" not in model.SerializeToString()


def test_bytes_are_counted_by_kind_without_zero_points() -> None:
    counted = weight_bytes(integer_graph())
    assert (counted.integer, counted.codes) == (WEIGHT.size, WEIGHT.size)
    assert counted.floating == 4 * (1 + 3 + 4)  # scale, weight scales, the matrix that nobody reads


def test_metadata_and_the_floats_that_rows_are_looked_up_in_are_left_as_they_are() -> None:
    model = integer_graph(table=np.zeros((7, 3), np.float32), rows=np.array([1, 2]), codes=np.zeros((9, 3), np.int8))
    lookups = [("table", "rows", "found"), ("codes", "rows", "levels of codes"), ("x", "rows", "from the input")]
    model.graph.node.extend(helper.make_node("Gather", [data, at], [found]) for data, at, found in lookups)
    helper.set_model_props(model, {"key": "\N{MICRO SIGN}m"})
    assert unchanged_bytes(model) == 4 * 7 * 3 + 3
    assert unchanged_bytes(integer_graph()) == 0


def test_a_sound_integer_graph_passes() -> None:
    model = integer_graph()
    remove_full_range_clips(model)
    verify_integer_graph(model, codes=WEIGHT.size)
    verify_graph(model, lstm_nodes=0, portable=True)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, -0.1], ids=str)
def test_a_scale_that_is_no_positive_number_is_refused(scale: float) -> None:
    with pytest.raises(CalibrationError, match="not a positive finite number"):
        verify_integer_graph(integer_graph(scale=np.float32(scale)), codes=WEIGHT.size)


def test_a_weight_that_was_left_float_behind_a_quantizer_is_refused() -> None:
    model = integer_graph(weight=WEIGHT.astype(np.float32))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    quantize = helper.make_node("QuantizeLinear", ["turned", "weight_scale", "weight_zero"], ["weight_levels"], axis=1)
    turn = helper.make_node("Identity", ["weight"], ["turned"])  # hiding it behind a step does not help
    nodes[3].input[0] = "weight_levels"
    model.graph.node.extend([turn, quantize, *nodes])
    with pytest.raises(ExportError, match="stored as float behind a QuantizeLinear"):
        verify_integer_graph(model, codes=WEIGHT.size)


def test_a_weight_that_became_float_is_noticed_by_the_count() -> None:
    with pytest.raises(ExportError, match="stores 12 integer weights, the model has 24"):
        verify_integer_graph(integer_graph(), codes=2 * WEIGHT.size)


def test_a_lost_lstm_is_refused() -> None:
    with pytest.raises(ExportError, match="0 LSTM nodes instead of 2"):
        verify_graph(integer_graph(), lstm_nodes=2, portable=False)


def test_portable_takes_standard_operators_only() -> None:
    model = integer_graph()
    model.graph.node[-1].domain = "com.microsoft"
    verify_graph(model, lstm_nodes=0, portable=False)
    with pytest.raises(ExportError, match=r"com\.microsoft:MatMul"):
        verify_graph(model, lstm_nodes=0, portable=True)


def symmetric_graph(**changes: object) -> onnx.ModelProto:
    model = integer_graph(**({"zero": np.int8(0), "low": np.int8(-128), "high": np.int8(127)} | changes))
    remove_full_range_clips(model)
    return model


def test_symmetric_pairs_of_one_scale_are_explicit() -> None:
    verify_explicit_pairs(symmetric_graph())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"zero": np.uint8(0), "low": np.uint8(0), "high": np.uint8(255)}, id="unsigned"),
        pytest.param({"zero": np.int8(3)}, id="zero point"),
        pytest.param({"scale": np.full(2, 0.05, np.float32), "zero": np.zeros(2, np.int8)}, id="scale per channel"),
        pytest.param({"weight_zero": np.ones(3, np.int8)}, id="zero point of a weight"),
        pytest.param({"weight": WEIGHT.astype(np.uint8), "weight_zero": np.zeros(3, np.uint8)}, id="unsigned weight"),
        pytest.param({"high": np.int8(100)}, id="something between"),
    ],
)
def test_rounding_of_another_form_is_not_explicit(changes: dict[str, object]) -> None:
    with pytest.raises(ExportError, match="not part of a symmetric int8 pair"):
        verify_explicit_pairs(symmetric_graph(**changes))


def test_a_pair_of_two_scales_is_not_explicit() -> None:
    model = symmetric_graph()
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    dequantize = next(node for node in model.graph.node if node.output[0] == "activation")
    dequantize.input[1] = "one"
    with pytest.raises(ExportError, match="DequantizeLinear 'activation'"):
        verify_explicit_pairs(model)
