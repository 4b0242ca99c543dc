"""INT8 files for other targets than the default, and with onnxruntime's integer LSTM: what they hold and forecast."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from onnx import ModelProto

from qat_tft.config.run import RunConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Part, Split
from qat_tft.data.windows import Windows
from qat_tft.errors import CalibrationError, DataError, ExportError
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.build.graph_rules import verify_explicit_pairs
from qat_tft.export.build.run_export import export_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.saturation import saturation
from qat_tft.quantization.calibrate import calibrate
from qat_tft.runs import layout
from qat_tft.runs.build import build_model, build_qat_model
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema

SCHEMA = Schema(time="time", target="y", observed=Columns(real=("wind",)), known=Columns(real=("hour",)))
SAME = 1e-6  # of the largest forecast: single precision
FLIPPED = 0.1  # share of windows in which a code may fall the other way, each by at most ...
FLIP = 0.02  # ... this share of the largest forecast
CLOSE = 0.1  # of it: LSTMs that round their state within ranges of their own, in a model with random weights


def calibrated_run(folder: Path, target: str) -> RunFolder:
    """A run of a small model with random weights, calibrated for a target: what training leaves, without training."""
    hours = np.arange(120)
    random = np.random.default_rng(0)
    columns = {"time": hours, "y": np.sin(hours / 4), "wind": random.normal(size=120), "hour": hours % 24.0}
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "data.parquet")
    panel = read_panel(folder / "data.parquet", SCHEMA)
    split = Split.by_fraction(panel, 0.2, 0.3)
    preprocessing = Preprocessing.fit(panel, split)
    config = RunConfig.checked(
        {
            "data": {"standardize": "global"},
            "model": {"hidden": 32, "heads": 2, "history": 6, "horizon": 3},
            "quantization": {"use_qat": True, "target": target},
        },
        where="the test",
    )
    run = RunFolder(folder)
    run.write_setup(config, SCHEMA, preprocessing)
    torch.manual_seed(0)
    model = build_model(config.model, preprocessing, SCHEMA)
    run.write_weights("fp32", model.state_dict())
    windows = Windows(preprocessing.encode(panel), history=6, horizon=3, split=split, part=Part.TEST)
    batch = windows[list(range(len(windows)))]
    run.write_check_windows(batch)
    qat = build_qat_model(model, target)
    calibrate(qat, [preprocessing.scaling().scale_inputs(batch.static, batch.historical, batch.future, batch.series)])
    run.write_weights("qat", qat.state_dict())
    return run


@pytest.fixture(scope="module")
def run_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Make a calibrated run for a target, once."""
    runs: dict[str, RunFolder] = {}

    def make(target: str) -> RunFolder:
        if target not in runs:
            runs[target] = calibrated_run(tmp_path_factory.mktemp("runs") / target, target)
        return runs[target]

    return make


def copy(run: RunFolder, folder: Path) -> RunFolder:
    """A copy that a test may damage."""
    return RunFolder(copytree(run.path, folder / "copy"))


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
    export_run(run, int8=True)
    model = onnx.load(run.onnx_file("int8"))
    verify_explicit_pairs(model)
    assert domains(model) == {""}
    assert ForecastSession(run.onnx_file("int8")).metadata.target == "tensorrt"
    for optimized in (True, False):
        ours, expected = forecasts(run, optimized=optimized)
        error = np.abs(ours - expected).max((1, 2)) / np.abs(expected).max()
        assert (error > SAME).mean() <= FLIPPED
        assert error.max() <= FLIP


@pytest.mark.parametrize("target", ["tensorrt", "portable"])
def test_onnxruntime_rounds_nothing_that_the_file_does_not_round(run_for, target: str, tmp_path: Path) -> None:
    """Of a weight matrix and its DequantizeLinear onnxruntime makes a product that rounds the other side as well."""
    run = run_for(target)
    export_run(run, int8=True)
    ForecastSession(run.onnx_file("int8"), optimized_graph=tmp_path / "optimized.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not kinds & {"MatMulNBits", "DynamicQuantizeMatMul", "MatMulInteger"}


@pytest.mark.parametrize(("target", "written"), [("x86", True), ("portable", False), ("tensorrt", False)])
def test_products_are_pairs_where_other_runtimes_read_the_file(run_for, target: str, written: bool) -> None:
    run = run_for(target)
    export_run(run, int8=True)
    kinds = [node.op_type for node in onnx.load(run.onnx_file("int8")).graph.node]
    assert ("MatMulInteger" in kinds) == written


def test_a_file_with_integer_lstms_is_close_to_its_model_and_its_check_says_what_it_is(run_for) -> None:
    run = run_for("x86")
    export_run(run, int8=True, target="x86-vnni", lstm="dynamic")
    model = onnx.load(run.onnx_file("int8"))
    assert domains(model) == {"", "com.microsoft"}
    assert [node.op_type for node in model.graph.node if node.domain] == ["DynamicQuantizeLSTM"] * 2
    assert saturation(model).saturating == 0, "weights keep the 7 bits that the model was trained with"
    metadata = ForecastSession(run.onnx_file("int8")).metadata
    assert (metadata.target, metadata.lstm) == ("x86-vnni", "dynamic")
    ours, expected = forecasts(run, optimized=True)
    assert 0 < np.abs(ours - expected).max() <= CLOSE * np.abs(expected).max()
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert (report.lstm, report.exact) == ("dynamic", False)
    assert report.batch_mates_change != 0.0
    assert report.integer_ops["DynamicQuantizeLSTM"] == 2


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
    run_for, tmp_path: Path, trained: str, options: dict[str, str], message: str
) -> None:
    run = copy(run_for(trained), tmp_path)
    for name in (layout.ONNX["fp32"], layout.ONNX["int8"]):
        (run.path / name).unlink(missing_ok=True)
    with pytest.raises(ExportError, match=message):
        export_run(run, int8=True, **options)
    assert not list(run.path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        pytest.param("model.head.input.batches", 0, r"head: 1 of \d+ quantizers were never calibrated", id="never ran"),
        pytest.param("model.head.input.scale", np.inf, "head: .* not a positive finite number", id="scale"),
        pytest.param("model.head.input.minimum", None, "head: .* range of zero width", id="zero width"),
    ],
)
def test_a_range_that_cannot_be_used_is_named_and_nothing_is_written(
    run_for, tmp_path: Path, tensor: str, value: float | None, message: str
) -> None:
    run = copy(run_for("x86"), tmp_path)
    weights = run.load_qat_model().state_dict()
    weights[tensor].fill_(weights["model.head.input.maximum"] if value is None else value)
    run.write_weights("qat", weights)
    (run.onnx_file("int8")).unlink(missing_ok=True)
    with pytest.raises(CalibrationError, match=message):
        export_run(run, int8=True)
    assert not (run.onnx_file("int8")).exists()


@pytest.mark.parametrize("kind", ["fp32", "qat"])
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_written(run_for, tmp_path: Path, kind: str) -> None:
    run = copy(run_for("x86"), tmp_path)
    model = run.load_fp32_model() if kind == "fp32" else run.load_qat_model()
    weights = model.state_dict()
    weights["lstm_decoder.cell.bias_hh_l0" if kind == "fp32" else "model.lstm_decoder.cell.bias_hh"][3] = np.nan
    run.write_weights(kind, weights)
    for name in (layout.ONNX["fp32"], layout.ONNX["int8"]):
        (run.path / name).unlink(missing_ok=True)
    with pytest.raises(ExportError, match=r"'lstm_decoder\.cell\.bias_hh.*' holds NaN or infinity"):
        export_run(run, int8=True)
    assert not list(run.path.glob("*.onnx"))


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_a_check_on_windows_that_are_not_finite_names_the_column(run_for, tmp_path: Path, value: float) -> None:
    run = run_for("tensorrt")
    if not (run.onnx_file("int8")).exists():
        export_run(run, int8=True)
    run = copy(run, tmp_path)
    windows = run.load_check_windows()
    windows.historical[0, 2, 1] = value
    run.write_check_windows(windows)
    with pytest.raises(DataError, match=r"column 'wind': input 'historical_real' holds"):
        check_model(run.onnx_file("int8"), seconds=0.0)
