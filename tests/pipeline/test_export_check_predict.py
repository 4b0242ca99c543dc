"""From a trained run to forecasts, through the command line: export, check, predict, and their failures."""

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from types import ModuleType

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, numpy_helper

from qat_tft.cli.app import main
from qat_tft.config.run import RunConfig
from qat_tft.errors import CalibrationError, ExportError
from qat_tft.export.build import run_export
from qat_tft.export.build.run_export import export_run, plan_int8, write_plans
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import FORMAT_VERSION, METADATA_KEY
from qat_tft.export.verify import check
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.layers import compared_layers
from qat_tft.quantization.stored import StoredAffine, StoredLinear
from qat_tft.runs.build import build_qat_model
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema
from qat_tft.training.job import train

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [ROOT / "examples" / f"{name}.py" for name in ("onnxruntime_only", "ten_lines")]
CHANGING = re.compile(r"(?<=PASSED).*|\S*/\S+|against [a-z ]+|[-+\N{MINUS SIGN}]?\d[\d.,]*( ?%)?|[─━│┃┏┳┓┡╇┩└┴┘\s]+")
HISTORY, HORIZON = 8, 3
SAME_SUMS = 0.001  # steps of a layer: the same few products, added in another order
SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(category=("plant",)),
    observed=Columns(real=("wind", "sun", "rain")),
    known=Columns(real=("hour",), category=("shift",)),
)


def write_data(path: Path) -> Path:
    random = np.random.default_rng(0)
    hours = np.arange(300)
    tables = []
    for number, plant in enumerate(("north", "south")):
        wind, sun, rain = random.normal(size=(3, len(hours)))
        tables.append(
            pa.table(
                {
                    "plant": [plant] * len(hours),
                    "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                    "load": 40 + 10 * number + 5 * np.sin(hours / 4) + 0.3 * wind,
                    "wind": wind,
                    "sun": sun,
                    "rain": rain,
                    "hour": (hours % 24).astype(np.float64),
                    "shift": ["day" if 6 <= hour % 24 < 18 else "night" for hour in hours],
                }
            )
        )
    pq.write_table(pa.concat_tables(tables), path)
    return path


def train_small(root: Path, *, target: str = "x86", use_qat: bool = True) -> RunFolder:
    config = RunConfig.checked(
        {
            "data": {"parquet_files": [str(write_data(root / "data.parquet"))]},
            "model": {"history": HISTORY, "horizon": HORIZON, "hidden": 16, "heads": 2, "selection_chunk": 2},
            "training": {"epochs": 1, "batches_per_epoch": 8, "use_gradient_checkpointing": True},
            "quantization": {
                "use_qat": use_qat,
                "qat_epochs": 1,
                "calibration_batches": 4,
                "target": target,
                "products": "integer",
            },
        },
        where="the test",
    )
    return train(config, SCHEMA, runs_dir=root / "runs", name="small").folder


@pytest.fixture(autouse=True)
def no_long_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check times both files for seconds; here nobody reads how long they take."""
    monkeypatch.setattr(check, "_TIMING_SECONDS", 0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = train_small(tmp_path_factory.mktemp("trained"))
    assert main(["export", "--int8", "--runs-dir", str(run.path.parent), "--json"]) == 0
    return run


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the whole runs folder, that a test may damage."""
    copytree(trained.path.parent, tmp_path / "runs")
    return RunFolder(tmp_path / "runs" / trained.name)


def test_the_check_of_the_latest_export_passes_and_prints_one_object(run: RunFolder, call) -> None:
    code, output, messages = call("check", run.path, "--json")
    report = json.loads(output)
    assert (code, report["passed"], report["reasons"]) == (0, True, [])
    assert "Warning" not in messages
    assert min(report["sqnr_db"].values()) >= 55
    assert (report["tensors"]["differing"], report["tensors"]["missing"]) == ([], [])
    assert 0.4 < report["integer_share"] < 1
    assert report["max_error_steps"] is not None
    assert {model: set(risks) for model, risks in report["q_risk"].items()} == {
        model: {"0.1", "0.5", "0.9"} for model in ("fp32", "qat", "int8")
    }
    assert report["bytes"]["int8_file"] == (run.onnx_file("int8")).stat().st_size
    assert report["bytes"]["fp32_file"] == (run.onnx_file("fp32")).stat().st_size
    assert sum(report["integer_ops"].values()) > 20
    assert report["float_products"]["LSTM"] == 2
    assert {"LSTM cells", "head"} & {name for names in report["float_layers"].values() for name in names} == {
        "LSTM cells"
    }
    assert report["saturating_products"] == 0
    assert {layer["name"] for layer in report["layers"]} == set(compared_layers(run.load_qat_model()))
    assert (report["missing_layers"], report["quantized_constants"]) == ([], [])
    assert report["layer_max_steps"] < SAME_SUMS
    assert report["runtimes"][0]["sqnr_db"] >= 40
    assert set(report["latency_ms"]["fp32"]) == set(report["latency_ms"]["int8"]) == {"1", "32"}
    assert isinstance(report["quantile_crossings"], int)
    assert json.loads((run.path / "check.json").read_text()) == report


def test_the_page_of_a_checked_run_tells_of_its_layers_and_versions(run: RunFolder, call) -> None:
    assert call("check", "--runs-dir", run.path.parent)[0] == 0
    code, output, messages = call("report", run.path, "--json")
    assert (code, messages) == (0, "")
    page = Path(json.loads(output)["page"]).read_text()
    assert "What this run lacks" not in page
    assert all(layer in page for layer in compared_layers(run.load_qat_model()))
    assert importlib.metadata.version("torch").partition("+")[0] in page
    assert "INT8 is the file model.int8.onnx in onnxruntime." in page


def test_without_the_weights_the_tables_of_a_run_are_shown_and_no_page(run: RunFolder, call) -> None:
    run.weights_file("fp32").unlink()
    code, output, messages = call("report", run.path, "--json")
    assert (code, json.loads(output)["page"]) == (0, None)
    assert "No page is written" in messages
    assert "fp32.safetensors" in messages


def test_check_and_report_print_the_lines_that_the_readme_shows(
    run: RunFolder, call, readme_block: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are those of `make demo`, on another machine; the words have to be those of today."""
    monkeypatch.delenv("COLUMNS", raising=False)  # tables are as wide as they are
    code, checked, _ = call("check", run.onnx_file("int8"))
    assert code == 0
    assert "MatMulIntegerToFloat" in checked
    code, reported, _ = call("report", run.path)
    assert code == 0
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    outputs = {"train": reported, "check": checked, "report": reported}  # report repeats the tables of train
    made = readme_block.block("".join(f"qat-tft {name}\n{output}" for name, output in outputs.items()))
    assert masked(made) == masked(readme_block.taken(readme))


def masked(text: str) -> list[str]:
    """The lines of a block, without commands and what differs from run to run: figures, names, widths of cells."""
    lines = (CHANGING.sub(" ", line).strip() for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line and not line.startswith("qat-tft ")]


def test_every_quantized_weight_is_stored_as_int8_once(run: RunFolder) -> None:
    stored = onnx.load(run.onnx_file("int8"))
    integers = sum(
        numpy_helper.to_array(tensor).size
        for tensor in stored.graph.initializer
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) > 1
    )
    qat = run.load_qat_model()
    weights, modules = dict(qat.model.named_parameters()), list(qat.model.named_modules())
    names = [
        name
        for layer in qat.quantized_layers()
        for name in (f"{layer}.weight", f"{layer}.weight_ih", f"{layer}.weight_hh")
    ]
    names += [f"{name}.weight" for name, module in modules if isinstance(module, StoredLinear | StoredAffine)]
    names += [f"{name}.bias" for name, module in modules if isinstance(module, StoredAffine)]
    rows = sum(
        table.numel()
        for name in qat.tables()
        for table in qat.model.get_submodule(name.removesuffix(".table")).tables()
    )
    assert integers == rows + sum(weights[name].numel() for name in names if name in weights)


def test_nothing_stands_between_the_integer_weights_and_their_product(run: RunFolder) -> None:
    nodes = onnx.load(run.onnx_file("int8")).graph.node
    producers = {name: node for node in nodes for name in node.output}
    weights = [producers[node.input[place]] for node in nodes if node.op_type == "LSTM" for place in (1, 2)]
    assert [node.op_type for node in weights] == ["Mul"] * 4
    assert [producers[node.input[0]].op_type for node in weights] == ["Cast"] * 4
    rearranging = {"Split", "Concat", "Transpose"}
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    moved = [node for node in nodes if node.op_type in rearranging and dequantized & set(node.input)]
    assert [node.op_type for node in moved] == ["Transpose"] * len(moved)  # the LSTM's input: time first


def test_the_file_describes_itself(run: RunFolder) -> None:
    metadata = ForecastSession(run.onnx_file("int8")).metadata
    assert metadata.kind == "int8"
    assert metadata.schema == SCHEMA
    assert metadata.target == run.load_config().quantization.target
    assert "head" in metadata.quantized_layers
    assert dict(metadata.float_layers)
    assert metadata.vocabularies["shift"] == ("day", "night")
    assert set(metadata.versions) == {"qat-tft", "torch", "onnx", "onnxscript"}


def test_predict_forecasts_with_the_file_alone(run: RunFolder, tmp_path: Path, call) -> None:
    alone = tmp_path / "alone.onnx"
    alone.write_bytes((run.onnx_file("int8")).read_bytes())
    data, out = write_data(tmp_path / "new.parquet"), tmp_path / "forecasts.parquet"
    code, output, _ = call("predict", alone, "--parquet-file", data, "--out", out, "--json")
    assert code == 0
    assert json.loads(output)["rows"] == 2 * HORIZON
    table = pq.read_table(out)
    assert table.column_names == [
        "plant",
        "forecast_origin",
        "time",
        "forecast_step",
        "q0.1",
        "q0.5",
        "q0.9",
    ]
    assert np.isfinite(table["q0.5"].to_numpy()).all()
    of_the_run = tmp_path / "of_the_run.parquet"
    assert call("predict", run.path, "--parquet-file", data, "--out", of_the_run)[0] == 0
    assert pq.read_table(of_the_run).equals(table), "a run stands for its INT8 file"


def test_a_backtest_has_both_files_and_the_naive_forecasts_side_by_side(run: RunFolder, tmp_path: Path, call) -> None:
    out = tmp_path / "backtest.parquet"
    code, output, messages = call("backtest", run.path, "--stride", 2, "--max-windows", 9, "--out", out, "--json")
    assert code == 0, messages
    report = json.loads(output)
    models = report["models"]
    assert set(models) == {"fp32", "int8", "seasonal_naive", "last_value"}
    assert models["int8"]["mae"] != models["fp32"]["mae"]
    assert models["int8"]["mae"] == pytest.approx(models["fp32"]["mae"], rel=0.1)  # 8 bits cost a trained model little
    assert [len(models[name]["by_step"]) for name in models] == [HORIZON] * 4
    table = pq.read_table(out)
    assert table.num_rows == 9 * HORIZON * 4
    assert table.column_names[-5:] == ["forecast_model", "load", "q0.1", "q0.5", "q0.9"]
    code, output, _ = call("backtest", run.path)
    assert code == 0
    assert all(word in output for word in ("INT8 file", "last value", "MASE", "P10 to P90"))


@pytest.mark.slow
def test_layers_left_in_floating_point_are_float_in_the_next_file_and_the_last_one_fails(run: RunFolder, call) -> None:
    left_out = ("head", "lstm_decoder.cell", "historical_selection.table")
    run.write_config(run.load_config().with_float_layers(left_out))
    code, output, _ = call("check", run.onnx_file("int8"), "--json")
    (reason,) = json.loads(output)["reasons"]
    assert (code, "leaves other layers in floating point" in reason) == (1, True)
    write_plans(run, [plan_int8(run)])
    report = check_model(run.onnx_file("int8"))
    assert report.passed, report.reasons
    assert report.found.max_error_steps is None, "the last layer has no quantization step"
    assert report.found.layers
    assert not {layer.name for layer in report.found.layers} & set(left_out)


def test_exporting_again_gives_the_same_bytes(run: RunFolder) -> None:
    before = (run.onnx_file("int8")).read_bytes()
    (run.onnx_file("int8")).unlink()
    write_plans(run, [plan_int8(run)])
    assert (run.onnx_file("int8")).read_bytes() == before


def test_a_file_of_other_weights_fails_with_exit_code_1(run: RunFolder, call) -> None:
    model = onnx.load(run.onnx_file("int8"))
    bias = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("head.bias"))
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.5), bias.name))
    onnx.save(model, run.onnx_file("int8"))
    code, output, messages = call("check", run.onnx_file("int8"), "--json")
    assert (code, json.loads(output)["passed"]) == (1, False)
    code, output, messages = call("check", run.onnx_file("int8"))
    assert code == 1
    assert "FAILED" in output
    assert "SQNR optimized is" in messages


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("check", "{tmp}/none.onnx"), "there is no such file", id="check nothing"),
        pytest.param(("check", "{tmp}/data.parquet"), "cannot load this file", id="check Parquet"),
        pytest.param(("check", "--runs-dir", "{tmp}/none"), "no finished run", id="check no run"),
        pytest.param(("export", "--runs-dir", "{tmp}/none"), "no finished run", id="export no run"),
        pytest.param(("export", "{tmp}/none"), "no run folder", id="export nothing"),
        pytest.param(
            ("export", "{run}", "--int8", "--target", "tensorrt"),
            "cannot be exported for 'tensorrt'",
            id="unsafe target",
        ),
        pytest.param(("export", "{run}", "--int8", "--target", "gpu"), "unknown target profile 'gpu'", id="no target"),
        pytest.param(("export", "{run}", "--lstm", "dynamic"), "Add --int8", id="INT8 options without INT8"),
        pytest.param(
            ("predict", "{run}/model.int8.onnx", "--parquet-file", "{tmp}/none.parquet"),
            "there is no such file",
            id="predict nothing",
        ),
        pytest.param(
            ("predict", "{run}/model.int8.onnx", "--parquet-file", "{run}/config.toml"),
            "not a complete Parquet file",
            id="predict from TOML",
        ),
        pytest.param(
            ("predict", "{run}/config.toml", "--parquet-file", "{tmp}/data.parquet"),
            "cannot load this file",
            id="predict with TOML",
        ),
        pytest.param(
            (
                "predict",
                "{run}/model.int8.onnx",
                "--parquet-file",
                "{tmp}/data.parquet",
                "--out",
                "{tmp}/none/f.parquet",
            ),
            "the forecasts cannot be written",
            id="predict into nowhere",
        ),
        pytest.param(("backtest", "{tmp}/none"), "no run folder", id="backtest nothing"),
        pytest.param(("backtest", "{run}", "--from", "soon"), "--from soon is not a time", id="backtest from no time"),
        pytest.param(("backtest", "{run}", "--until", "1960-01-01"), "is not before --until", id="backtest nowhere"),
        pytest.param(
            ("backtest", "{run}", "--parquet-file", "{run}/config.toml"),
            "not a complete Parquet file",
            id="backtest on TOML",
        ),
        pytest.param(
            ("backtest", "{run}", "--out", "{tmp}/none/f.parquet"), "cannot be written", id="backtest into nowhere"
        ),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    run: RunFolder, tmp_path: Path, call, words: tuple[str, ...], message: str
) -> None:
    write_data(tmp_path / "data.parquet")
    before = sorted(tmp_path.rglob("*"))
    code, output, messages = call(*(word.format(run=run.path, tmp=tmp_path) for word in words))
    assert (code, output) == (2, "")
    assert messages.count("error:") == 1
    assert message in messages
    assert "Traceback" not in messages
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_of_a_later_version_is_refused(run: RunFolder, tmp_path: Path, call) -> None:
    model = onnx.load(run.onnx_file("int8"))
    entry = next(entry for entry in model.metadata_props if entry.key == METADATA_KEY)
    entry.value = json.dumps(json.loads(entry.value) | {"format_version": FORMAT_VERSION + 1})
    onnx.save(model, run.onnx_file("int8"))
    data, out = write_data(tmp_path / "data.parquet"), tmp_path / "f.parquet"
    for words in (
        ("check", run.onnx_file("int8")),
        ("predict", run.onnx_file("int8"), "--parquet-file", data),
    ):
        code, _, messages = call(*words, *(("--out", out) if words[0] == "predict" else ()))
        assert code == 2
        assert f"format version {FORMAT_VERSION + 1}" in messages.replace("\n", " ")
    assert not out.exists()
    assert not (run.path / "check.json").exists()


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        pytest.param("wind", lambda values: [*values[:-9], float("nan"), *values[-8:]], "null or NaN", id="NaN"),
        pytest.param("wind", lambda values: [*values[:-9], float("inf"), *values[-8:]], "inf", id="infinity"),
        pytest.param("sun", lambda values: ["high"] * len(values), "string", id="text"),
        pytest.param("rain", lambda values: None, "rain", id="missing column"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused_by_column(
    run: RunFolder,
    tmp_path: Path,
    call,
    column: str,
    change: Callable[[list[float]], list[object] | None],
    message: str,
) -> None:
    table = pq.read_table(write_data(tmp_path / "data.parquet"))
    values, place = change(table[column].to_pylist()), table.column_names.index(column)
    changed = table.remove_column(place) if values is None else table.set_column(place, column, pa.array(values))
    pq.write_table(changed, tmp_path / "data.parquet")
    out = tmp_path / "f.parquet"
    code, _, messages = call(
        "predict", run.onnx_file("int8"), "--parquet-file", tmp_path / "data.parquet", "--out", out
    )
    assert code == 2
    assert column in messages
    assert message in messages
    assert not out.exists()


def test_a_damaged_run_is_named_and_no_file_is_left(run: RunFolder, call) -> None:
    (run.onnx_file("int8")).unlink()
    weights = run.path / "qat.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, _, messages = call("export", run.path, "--int8")
    assert code == 2
    assert "qat.safetensors" in messages
    assert not (run.onnx_file("int8")).exists()


def test_a_model_that_was_never_calibrated_is_not_exported(run: RunFolder) -> None:
    (run.onnx_file("int8")).unlink()
    fresh = build_qat_model(run.load_fp32_model(), "x86")
    run.write_weights("qat", fresh.state_dict())
    with pytest.raises(CalibrationError, match="never calibrated"):
        export_run(run, int8=True)
    assert not (run.onnx_file("int8")).exists()


def test_an_int8_graph_with_float_weights_is_not_written(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.onnx_file("int8")).unlink()
    floating = onnx.load(run.onnx_file("fp32"))
    monkeypatch.setattr(run_export, "build_graph", lambda forecaster, metadata: floating)
    with pytest.raises(ExportError, match="stores 0 integer weights"):
        export_run(run, int8=True)
    assert not (run.onnx_file("int8")).exists()


def test_a_report_of_the_fp32_file_has_no_integers(run: RunFolder) -> None:
    report = check_model(run.onnx_file("fp32"))
    assert report.passed, report.reasons
    assert report.found.operators.integer == {}
    assert report.found.max_error_steps is None


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in an interpreter that finds numpy and onnxruntime and no other package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "onnxruntime"):
        installed = Path(importlib.import_module(name).__file__ or "").parent
        for part in (installed, installed.with_name(f"{name}.libs")):
            if part.exists():
                (packages / part.name).symlink_to(part)

    def run(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(script), *(str(argument) for argument in arguments)]
        start = f"sys.argv = {words!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
        code = f"import runpy, sys; sys.path.append({str(packages)!r}); {start}"
        isolated = [sys.executable, "-I", "-S", "-c", code]  # no site-packages, no variables, no working directory
        return subprocess.run(isolated, capture_output=True, text=True, check=True, cwd=tmp_path)

    return run


def test_the_examples_run_a_file_where_neither_this_package_nor_torch_is_installed(
    run: RunFolder, tmp_path: Path, bare
) -> None:
    long, short = (bare(script, run.onnx_file("int8")).stdout.splitlines() for script in EXAMPLES)
    assert long[0] == "int8 model of 'load', next 3 steps"
    assert len(long) == 2 + HORIZON
    assert len(short) == HORIZON
    probe = tmp_path / "probe.py"
    probe.write_text("import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'qat_tft', 'onnx')])")
    assert bare(probe).stdout.strip() == "[None, None, None]"
