"""Explanations out of a file: the same forecasts to the last bit, and the weights that the model has in torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
import torch
from onnx import helper, numpy_helper

from qat_tft.cli.app import main
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import METADATA_KEY
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.machine import cpu_saturates
from qat_tft.report.explain_run import explain_run
from qat_tft.runs.folder import RunFolder

HISTORY, HORIZON = 6, 3
WEIGHTS = ("static_weights", "historical_weights", "future_weights", "attention")
FLIP = 5e-3
"""What a code that falls on the other side of a rounding boundary may move a weight by."""
NEVER_ROUNDED = 1e-6
"""Of a weight, where no code was flipped: sums in another order."""


@pytest.fixture(scope="module")
def file(explained_run: RunFolder) -> ForecastSession:
    return ForecastSession(explained_run.onnx_file("int8"))


@pytest.mark.parametrize("optimized", [True, False], ids=["optimized", "unoptimized"])
@pytest.mark.parametrize("batch", [1, 3, 64], ids=str)
def test_forecasts_are_those_of_the_file_without_to_the_last_bit(
    explained_run: RunFolder, run_for: Callable[[], RunFolder], batch: int, optimized: bool
) -> None:
    windows = explained_run.load_check_windows()
    with_weights, without = (
        ForecastSession(run.onnx_file("int8"), optimized=optimized) for run in (explained_run, run_for())
    )
    inputs = window_inputs(windows, torch.arange(batch), without.metadata)
    expected = without.forecast(inputs)
    assert np.array_equal(with_weights.forecast(inputs), expected)
    assert np.array_equal(with_weights.explain(inputs)["quantiles"], expected)


def test_a_file_without_says_nothing_of_explanations(run_for: Callable[[], RunFolder]) -> None:
    session = ForecastSession(run_for().onnx_file("int8"))
    assert not {"explained", "outputs"} & set(_metadata(session.path))
    assert list(session.signature()[1]) == ["quantiles"]


def test_outputs_and_their_variables_stand_in_the_metadata(file: ForecastSession) -> None:
    shapes = {
        "quantiles": ("batch", HORIZON, 3),
        "static_weights": ("batch", 3),
        "historical_weights": ("batch", HISTORY, 4),
        "future_weights": ("batch", HORIZON, 3),
        "attention": ("batch", HORIZON, HISTORY + HORIZON),
    }
    assert file.signature()[1] == {name: ("float32", shape) for name, shape in shapes.items()}
    told = _metadata(file.path)
    assert told["outputs"] == {name: list(shape) for name, shape in shapes.items()}
    assert told["explained"] == {
        "static": ["height", "(scale of the window)", "plant"],
        "historical": ["load", "wind", "hour", "shift"],
        "future": ["hour", "(linear path)", "shift"],
    }


@pytest.mark.skipif(cpu_saturates(), reason="this CPU saturates where the file multiplies integers")
def test_weights_are_those_of_the_model(explained_run: RunFolder, file: ForecastSession) -> None:
    windows, scaling = explained_run.load_check_windows(), explained_run.load_preprocessing().scaling()
    with torch.no_grad():
        inputs = scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)
        said = explained_run.load_qat_model()(*inputs)
    found = file.explain(window_inputs(windows, torch.arange(len(windows.target)), file.metadata))
    for name in WEIGHTS:
        own = getattr(said, name).numpy()
        assert found[name].sum(-1) == pytest.approx(np.ones(own.shape[:-1]), abs=1e-5)
        error = np.abs(found[name] - own)
        assert error.max() < FLIP
        assert np.median(error) < NEVER_ROUNDED


@pytest.mark.skipif(cpu_saturates(), reason="this CPU saturates where the file multiplies integers")
@pytest.mark.parametrize("detail", ["all", "series", "windows"])
def test_the_command_writes_what_it_writes_of_the_run(explained_run: RunFolder, tmp_path: Path, detail: str) -> None:
    data, outs = explained_run.path / "data.parquet", [tmp_path / "file.parquet", tmp_path / "run.parquet"]
    options = {"all": [], "series": ["--by-series"], "windows": ["--windows"]}[detail]
    words = ["--parquet-file", str(data), "--max-windows", "9", "--out", str(outs[0]), *options]
    assert main(["explain", str(explained_run.onnx_file("int8")), *words]) == 0
    explain_run(explained_run, files=[data], model="qat", detail=detail, most=9, out=outs[1])  # type: ignore[arg-type]
    ours, expected = (pq.read_table(out) for out in outs)
    assert ours.schema == expected.schema
    assert set(ours["forecast_model"].to_pylist()) == {"int8"}
    for name in ours.column_names:
        one, other = ours[name].to_pylist(), expected[name].to_pylist()
        if name in ("mean", "standard_deviation", "q0.1", "q0.5", "q0.9", "weight"):
            assert one == pytest.approx(other, abs=FLIP)
        elif name != "forecast_model":
            assert one == other


def test_what_a_file_cannot_explain_is_refused_in_one_sentence(
    explained_run: RunFolder, run_for: Callable[[], RunFolder], refusal: Callable[..., str]
) -> None:
    plain, data = run_for().onnx_file("int8"), explained_run.path / "data.parquet"
    said = refusal("explain", plain, "--parquet-file", data)
    assert "puts out no explanations" in said
    assert "`qat-tft export --with-explanations` writes one that does" in said
    file = explained_run.onnx_file("int8")
    assert "Name them with --parquet-file" in refusal("explain", file)
    assert "--model is given beside an ONNX file" in refusal("explain", file, "--parquet-file", data, "--model", "fp32")


def test_a_check_compares_the_weights(explained_run: RunFolder) -> None:
    report = check_model(explained_run.onnx_file("int8"), seconds=0.0)
    assert report.passed, report.reasons
    assert set(report.to_json()["explanations_sqnr_db"]) == set(WEIGHTS)


def test_weights_that_are_not_the_models_fail_the_check(
    explained_run: RunFolder, damaged: Callable[[RunFolder], RunFolder]
) -> None:
    run = damaged(explained_run)
    model = onnx.load(run.onnx_file("int8"))
    maker = next(node for node in model.graph.node if "attention" in node.output)
    maker.output[list(maker.output).index("attention")] = "before"
    for node in model.graph.node:
        node.input[:] = ["before" if name == "attention" else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.array(1.01, np.float32), "more"))
    model.graph.node.append(helper.make_node("Mul", ["before", "more"], ["attention"]))
    onnx.save(model, run.onnx_file("int8"))
    reasons = check_model(run.onnx_file("int8"), seconds=0.0).reasons
    assert [reason for reason in reasons if reason.startswith("SQNR")] == [
        "SQNR of the output attention is 40.00 dB, below 55 dB"
    ]


def test_other_variables_than_the_runs_are_a_breach_of_the_contract(
    explained_run: RunFolder, damaged: Callable[[RunFolder], RunFolder]
) -> None:
    run = damaged(explained_run)
    model = onnx.load(run.onnx_file("int8"))
    (entry,) = (entry for entry in model.metadata_props if entry.key == METADATA_KEY)
    entry.value = entry.value.replace('"height", "(scale of', '"width", "(scale of')
    onnx.save(model, run.onnx_file("int8"))
    (reason,) = check_model(run.onnx_file("int8"), seconds=0.0).reasons
    assert reason.startswith("the explained variables in the file's metadata are not those of")


def _metadata(path: Path) -> Any:
    (entry,) = (entry for entry in onnx.load(path).metadata_props if entry.key == METADATA_KEY)
    return json.loads(entry.value)
