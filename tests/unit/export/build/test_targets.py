"""INT8 files for other targets than the default, and with onnxruntime's integer LSTM: what they hold and forecast."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto

from qat_tft.errors import CalibrationError, ExportError, RunFolderError
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.build.graph_rules import verify_explicit_pairs
from qat_tft.export.build.run_export import export_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.machine import cpu_saturates
from qat_tft.export.verify.saturation import saturation
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder

SAME = 1e-6  # of the largest forecast: single precision
FLIPPED = 0.1  # share of windows in which a code may fall the other way, each by at most ...
FLIP = 0.02  # ... this share of the largest forecast
CLOSE = 0.1  # of it: LSTMs that round their state within ranges of their own, in a model with random weights


def domains(model: ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node}


def forecasts(run: RunFolder, *, optimized: bool) -> tuple[np.ndarray, np.ndarray]:
    """Raw forecasts of the run's INT8 file and of its QAT model, for the same windows."""
    file = ForecastSession(run.onnx_file("int8"), optimized=optimized)
    windows = run.load_check_windows()
    inputs = window_inputs(windows, torch.arange(len(windows.target)), file.metadata)
    qat = RawForecaster(run.load_qat_model(), run.load_preprocessing().scaling(), file.metadata).eval()
    with torch.no_grad():
        expected = qat(*(torch.from_numpy(inputs[spec.name]) for spec in file.inputs)).numpy()
    return file.forecast(inputs), expected


def test_a_tensorrt_file_is_made_of_explicit_symmetric_pairs_and_equals_its_model(run_for) -> None:
    run = run_for("tensorrt")
    model = onnx.load(run.onnx_file("int8"))
    verify_explicit_pairs(model)
    assert domains(model) == {""}
    assert ForecastSession(run.onnx_file("int8")).metadata.target == "tensorrt"
    for optimized in (False,) if cpu_saturates() else (True, False):
        ours, expected = forecasts(run, optimized=optimized)
        error = np.abs(ours - expected).max((1, 2)) / np.abs(expected).max()
        assert (error > SAME).mean() <= FLIPPED
        assert error.max() <= FLIP


@pytest.mark.parametrize("target", ["tensorrt", "portable"])
def test_onnxruntime_rounds_nothing_that_the_file_does_not_round(run_for, target: str, tmp_path: Path) -> None:
    """Of a weight matrix and its DequantizeLinear onnxruntime makes a product that rounds the other side as well."""
    run = run_for(target)
    ForecastSession(run.onnx_file("int8"), optimized_graph=tmp_path / "optimized.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not kinds & {"MatMulNBits", "DynamicQuantizeMatMul", "MatMulInteger"}


@pytest.mark.parametrize(("target", "written"), [("x86", True), ("portable", False), ("tensorrt", False)])
def test_products_are_pairs_where_other_runtimes_read_the_file(run_for, target: str, written: bool) -> None:
    run = run_for(target)
    kinds = [node.op_type for node in onnx.load(run.onnx_file("int8")).graph.node]
    assert ("MatMulInteger" in kinds) == written


def test_a_file_with_integer_lstms_is_close_to_its_model_and_its_check_says_what_it_is(run_for) -> None:
    run = run_for("x86", target="x86-vnni", lstm="dynamic")
    model = onnx.load(run.onnx_file("int8"))
    assert domains(model) == {"", "com.microsoft"}
    assert [node.op_type for node in model.graph.node if node.domain] == ["DynamicQuantizeLSTM"] * 2
    assert saturation(model).saturating == 0, "weights keep the 7 bits that the model was trained with"
    metadata = ForecastSession(run.onnx_file("int8")).metadata
    assert (metadata.target, metadata.lstm) == ("x86-vnni", "dynamic")
    ours, expected = forecasts(run, optimized=True)
    assert 0 < np.abs(ours - expected).max() <= CLOSE * np.abs(expected).max()
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert (report.lstm, report.facts.exact) == ("dynamic", False)
    assert report.found.batch_mates_change != 0.0
    assert report.found.operators.integer["DynamicQuantizeLSTM"] == 2
    assert report.found.tensors.equal, report.found.tensors


@pytest.mark.parametrize(
    ("trained", "options", "message"),
    [
        pytest.param("x86", {"target": "tensorrt"}, "cannot be exported for 'tensorrt'", id="other codes"),
        pytest.param("tensorrt", {"target": "portable"}, "cannot be exported for 'portable'", id="saturating"),
        pytest.param("x86", {"target": "arm64", "lstm": "dynamic"}, "'arm64' has no integer LSTM", id="arm64"),
        pytest.param("x86", {"target": "portable", "lstm": "dynamic"}, "no integer LSTM", id="portable"),
    ],
)
def test_what_a_target_cannot_run_is_refused_before_anything_is_written(
    run_for, damaged, trained: str, options: dict[str, str], message: str
) -> None:
    run = damaged(run_for(trained, exported=False))
    for name in (layout.ONNX["fp32"], layout.ONNX["int8"]):
        (run.path / name).unlink(missing_ok=True)
    with pytest.raises(ExportError, match=message):
        export_run(run, int8=True, **options)
    assert not list(run.path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        pytest.param("model.head.input.batches", 0, r"head: 1 of \d+ quantizers were never calibrated", id="never ran"),
        pytest.param("model.head.input.scale", -1.0, "head: .* not a positive finite number", id="scale"),
        pytest.param("model.head.input.minimum", None, "head: .* range of zero width", id="zero width"),
    ],
)
def test_a_range_that_cannot_be_used_is_named_and_nothing_is_written(
    run_for, damaged, tensor: str, value: float | None, message: str
) -> None:
    run = damaged(run_for("x86", exported=False))
    weights = run.load_qat_model().state_dict()
    weights[tensor].fill_(weights["model.head.input.maximum"] if value is None else value)
    run.write_weights("qat", weights)
    (run.onnx_file("int8")).unlink(missing_ok=True)
    with pytest.raises(CalibrationError, match=message):
        export_run(run, int8=True)
    assert not (run.onnx_file("int8")).exists()


@pytest.mark.parametrize("kind", ["fp32", "qat"])
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_written(run_for, damaged, kind: str) -> None:
    run = damaged(run_for("x86", exported=False))
    model = run.load_fp32_model() if kind == "fp32" else run.load_qat_model()
    weights = model.state_dict()
    weights["lstm_decoder.cell.bias_hh_l0" if kind == "fp32" else "model.lstm_decoder.cell.bias_hh"][3] = np.nan
    run.write_weights(kind, weights)
    for name in (layout.ONNX["fp32"], layout.ONNX["int8"]):
        (run.path / name).unlink(missing_ok=True)
    with pytest.raises(RunFolderError, match=r"lstm_decoder\.cell\.bias_hh.*' holds NaN or infinity"):
        export_run(run, int8=True)
    assert not list(run.path.glob("*.onnx"))


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_a_check_on_windows_that_are_not_finite_names_the_column(run_for, damaged, value: float) -> None:
    run = damaged(run_for("tensorrt"))
    windows = run.load_check_windows()
    windows.historical[0, 2, 1] = value
    run.write_check_windows(windows)
    said = r"column .wind. of the check windows \(historical\) holds NaN or infinity"
    with pytest.raises(RunFolderError, match=said):
        check_model(run.onnx_file("int8"), seconds=0.0)


def test_a_portable_file_holds_standard_operators_only_and_passes(run_for) -> None:
    run = run_for("portable")
    assert domains(onnx.load(run.onnx_file("int8"))) == {""}
    report = check_model(run.onnx_file("int8"), run, seconds=0.0)
    assert report.passed or report.reasons[0].startswith("the INT8 file has"), report.reasons
