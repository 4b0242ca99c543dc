"""Explanations of a run: every weight is the model's own, they sum to one, and aggregates are those of the windows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.cli.app import main
from qat_tft.errors import DataError, RunFolderError
from qat_tft.report.explain_run import explain_run
from qat_tft.report.weights import WeightCells
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import PRESENT

HISTORY, HORIZON, MARKUP = 6, 3, "<b>x</b> & $y$"
ROUNDING = 1e-5
"""Of sums and means in single precision."""

Key = tuple[Any, ...]


@pytest.fixture(scope="module")
def every(finished: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The weights of every window of the test part."""
    out = tmp_path_factory.mktemp("explained") / "every.parquet"
    explain_run(finished, detail="windows", most=10_000, out=out)
    return pq.read_table(out)


def test_weights_of_a_window_sum_to_one(every: pa.Table) -> None:
    sums: dict[Key, float] = {}
    for row in every.to_pylist():
        if row["weight"] is not None:
            place = row["position"] if row["weight_of"] != "attention" else None
            key = (row["plant"], row["forecast_origin"], row["weight_of"], row["forecast_step"], place)
            sums[key] = sums.get(key, 0.0) + row["weight"]
    kinds = {key[2] for key in sums}
    assert kinds == {"static", "historical", "future", "attention"}
    assert list(sums.values()) == pytest.approx([1.0] * len(sums), abs=ROUNDING)


def test_weights_are_the_models_own(finished: RunFolder, every: pa.Table) -> None:
    windows, scaling = finished.load_check_windows(), finished.load_preprocessing().scaling()
    with torch.no_grad():
        inputs = scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)
        said = finished.load_qat_model()(*inputs)
    cells = every.num_rows // len(windows.target)
    place = finished.load_effective_schema().group("historical").columns.index(PRESENT)
    variables = {"historical": ["load", MARKUP, "hour"], "static": ["plant"], "future": ["hour", "(linear path)"]}
    padded = 0
    for window in (0, len(windows.target) // 2, len(windows.target) - 16, len(windows.target) - 1):
        for row in every.slice(window * cells, cells).to_pylist():
            kind, step, position = row["weight_of"], row["forecast_step"], row["position"]
            at = None if position is None else position + HISTORY - 1
            if at is not None and at < HISTORY and windows.historical[window, at, place] == 0:
                assert row["weight"] is None
                padded += 1
                continue
            if kind == "attention":
                own = said.attention[window, step - 1, at]
            elif kind == "static":
                own = said.static_weights[window, variables[kind].index(row["variable"])]
            elif kind == "historical":
                own = said.historical_weights[window, at, variables[kind].index(row["variable"])]
            else:
                own = said.future_weights[window, position - 1, variables[kind].index(row["variable"])]
            assert row["weight"] == pytest.approx(float(own), abs=1e-6)
    assert padded > 0


def test_no_attention_is_left_out_of_the_file(finished: RunFolder, every: pa.Table) -> None:
    attending = every.filter(pa.compute.equal(every["weight_of"], "attention")).to_pylist()
    assert all(row["position"] <= row["forecast_step"] for row in attending)
    assert {row["position"] for row in attending} == set(range(1 - HISTORY, HORIZON + 1))


@pytest.mark.parametrize("detail", ["all", "series"])
def test_aggregates_are_those_of_the_windows(finished: RunFolder, every: pa.Table, tmp_path: Path, detail: str) -> None:
    out = tmp_path / "some.parquet"
    explain_run(finished, detail=detail, most=10_000, out=out)  # type: ignore[arg-type]
    names = ("plant",) * (detail == "series") + ("weight_of", "variable", "forecast_step", "position")
    by_cell: dict[Key, list[float]] = {}
    for row in every.to_pylist():
        values = by_cell.setdefault(tuple(row[name] for name in names), [])
        if row["weight"] is not None:
            values.append(row["weight"])
    found = pq.read_table(out).to_pylist()
    assert {tuple(row[name] for name in names) for row in found} == set(by_cell)
    assert len(found) == len(by_cell)
    for row in found:
        values = by_cell[tuple(row[name] for name in names)]
        assert row["windows"] == len(values)
        if not values:
            assert row["mean"] is None
            continue
        expected = [np.mean(values), np.std(values), *np.quantile(values, (0.1, 0.5, 0.9))]
        told = [row[name] for name in ("mean", "standard_deviation", "q0.1", "q0.5", "q0.9")]
        assert told == pytest.approx(expected, abs=ROUNDING)


def test_each_model_has_weights_of_its_own(finished: RunFolder, changeable: RunFolder) -> None:
    fp32, qat = (explain_run(finished, model=kind, most=4) for kind in ("fp32", "qat"))  # type: ignore[arg-type]
    assert fp32.windows == qat.windows
    assert fp32.windows[0] == 4
    assert fp32.explanations.attention[0].mean != qat.explanations.attention[0].mean
    changeable.weights_file("qat").unlink()
    assert explain_run(changeable, most=4).explanations.attention[0].mean == fp32.explanations.attention[0].mean
    with pytest.raises(RunFolderError, match="`qat-tft quantize mine`"):
        explain_run(changeable, model="qat")


def test_other_rows_are_explained_whole(finished: RunFolder, tmp_path: Path) -> None:
    (path,) = finished.load_config().data.parquet_files
    table = pq.read_table(path).filter(pa.compute.field("plant") == "north").slice(0, HISTORY + HORIZON + 4)
    pq.write_table(table, tmp_path / "north.parquet")
    report = explain_run(finished, files=[tmp_path / "north.parquet"])
    assert report.windows == (5 + HISTORY - 3, 5 + HISTORY - 3)  # histories of 3 steps and more
    assert report.source == str(tmp_path / "north.parquet")


def test_a_file_that_cannot_be_written_is_named(finished: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the explanations cannot be written"):
        explain_run(finished, most=2, out=tmp_path / "nowhere" / "weights.parquet")


def test_the_command_prints_one_object(finished: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "weights.parquet"
    assert main(["explain", str(finished.path), "--max-windows", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert MARKUP in printed
    assert "Of the history, the steps" in printed
    assert pq.read_table(out)["windows"].to_pylist()[0] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--windows"], "--windows has no file to write to. Name one with --out."),
        (["--by-series"], "--by-series has no file"),
        (["--windows", "--by-series", "--out", "some.parquet"], "are given together"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    finished: RunFolder, refusal: Callable[..., str], words: list[str], said: str
) -> None:
    assert said in refusal("explain", finished.path, *words)


def test_more_weights_than_torch_takes_quantiles_of_are_aggregated() -> None:
    cells = WeightCells.of({"static": (), "historical": ("a",) * 340, "future": ()}, history=100, horizon=1)
    table = cells.aggregated("fp32", torch.ones(500, cells.columns.num_rows), {})
    assert table.num_rows == cells.columns.num_rows > 2**24 / 500
    assert set(table["q0.9"].to_pylist()) == {1.0}
