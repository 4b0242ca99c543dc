"""A backtest of a run's file: which origins, on which data, and the scores against the file run window by window."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qat_tft.errors import DataError, UserError
from qat_tft.evaluation.names import LAST, NAIVE
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.run_backtest import Span, backtest_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.runs.folder import RunFolder

HISTORY, HORIZON, ROWS, PLANTS = 6, 3, 120, 2
ROUNDING = 1e-5  # relative, torch or another batch size: float32 evaluations of forecasts of about 50


@pytest.fixture
def run(exported_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the run that knows where its data lie; its test part begins after 70 % of them."""
    copytree(exported_run.path, tmp_path / "plants")
    folder = RunFolder(tmp_path / "plants")
    config = folder.load_config()
    data = {"parquet_files": (str(folder.path / "data.parquet"),), "validation": 0.2, "test": 0.3, "season": 12}
    config = config.model_copy(update={"data": config.data.model_copy(update=data)})
    (folder.path / "config.toml").write_text(config.to_toml())
    return folder


def hour(number: int) -> str:
    return f"1970-01-{number // 24 + 1:02d}T{number % 24:02d}:00:00"


def test_origins_roll_over_the_test_part_a_horizon_apart(run: RunFolder, tmp_path: Path) -> None:
    report = backtest_run(run, Span(), out=tmp_path / "out.parquet")
    assert (report.windows, report.stride, report.season) == (PLANTS * 36 // HORIZON, HORIZON, 12)
    assert (report.first_origin, report.last_origin) == (hour(83), hour(116))
    assert list(report.scores) == ["fp32", "qat", NAIVE, LAST]
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == report.windows * HORIZON * 4
    assert set(table["forecast_model"].to_pylist()) == set(report.scores)


def test_forecasts_are_those_of_predict_from_the_same_origin(run: RunFolder, tmp_path: Path) -> None:
    backtest_run(run, Span(hour(100), hour(109), stride=2), out=tmp_path / "out.parquet")
    kept = pq.read_table(tmp_path / "out.parquet").filter(pc.equal(pc.field("forecast_model"), "fp32"))
    assert [str(time) for time in pc.unique(kept["forecast_origin"]).to_pylist()] == [
        hour(number).replace("T", " ") for number in (99, 101, 103, 105)
    ]
    file = ForecastSession(run.onnx_file("fp32"))
    for number in (99, 103):
        expected = forecast_parquet(file, run.path / "data.parquet", origin=hour(number)).table
        at = pc.equal(kept["forecast_origin"], expected["forecast_origin"][0])
        found = kept.filter(at).select(expected.column_names)
        for column in expected.column_names:
            if column.startswith("q"):
                assert np.allclose(found[column], expected[column], rtol=ROUNDING)
            else:
                assert found[column].to_pylist() == expected[column].to_pylist()


def test_scores_are_those_of_the_kept_rows(run: RunFolder, tmp_path: Path) -> None:
    report = backtest_run(run, Span(stride=1), out=tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    actual = pq.read_table(run.path / "data.parquet").to_pylist()
    load = {(row["plant"], row["time"]): row["load"] for row in actual}
    assert [load[key] for key in zip(table["plant"].to_pylist(), table["time"].to_pylist(), strict=True)] == (
        pytest.approx(table["load"].to_pylist(), rel=ROUNDING)
    )
    for model, scores in report.scores.items():
        rows = table.filter(pc.equal(table["forecast_model"], model))
        error = rows["q0.5"].to_numpy().astype(float) - rows["load"].to_numpy()
        assert scores.overall.mae == pytest.approx(np.abs(error).mean(), rel=ROUNDING)
        assert scores.overall.bias == pytest.approx(error.mean(), rel=ROUNDING, abs=ROUNDING)


def test_mase_is_scaled_by_seasonal_changes_of_the_training_rows(run: RunFolder) -> None:
    read = []
    report = backtest_run(run, Span(), reading=lambda *rows: read.append(rows))
    assert read[-1] == (4 * ROWS, 4 * ROWS), "two series, read twice"
    rows = pq.read_table(run.path / "data.parquet").to_pylist()
    for place, plant in enumerate(("north", "south")):
        load = np.array([row["load"] for row in rows if row["plant"] == plant])[: ROWS // 2]
        scale = np.abs(load[12:] - load[:-12]).mean()
        for scores in report.scores.values():
            assert scores.series[place].mase == pytest.approx(scores.series[place].mae / scale, rel=ROUNDING)


def test_without_a_file_the_model_in_torch_forecasts_the_same(run: RunFolder) -> None:
    expected = backtest_run(run, Span(most=10)).scores["fp32"].overall
    (run.onnx_file("fp32")).unlink()
    found = backtest_run(run, Span(most=10)).scores["fp32"].overall
    assert found.mae == pytest.approx(expected.mae, rel=ROUNDING)
    assert found.q_risk == pytest.approx(expected.q_risk, rel=ROUNDING)


def test_at_most_so_many_origins_are_taken_evenly(run: RunFolder) -> None:
    report = backtest_run(run, Span(stride=1, most=5))
    assert report.windows == 5
    assert (report.first_origin, report.last_origin) == (hour(83), hour(116))


def test_other_data_may_be_newer_than_all_training_rows(run: RunFolder, tmp_path: Path) -> None:
    table = pq.read_table(run.path / "data.parquet")
    newer = table.filter(
        pc.greater_equal(table["time"], pa.scalar(datetime.fromisoformat(hour(70)), table["time"].type))
    )
    pq.write_table(newer, tmp_path / "newer.parquet")
    pinned = run.load_config().with_split(hour(60), hour(84))
    (run.path / "config.toml").write_text(pinned.to_toml())
    old, new = backtest_run(run, Span()), backtest_run(run, Span(), files=[tmp_path / "newer.parquet"])
    assert new.source == str(tmp_path / "newer.parquet")
    assert new.scores["fp32"].overall.mae == pytest.approx(old.scores["fp32"].overall.mae, rel=ROUNDING)
    assert new.scores["fp32"].overall.mase is not None  # from the rows before the span
    assert any("no training row" in note for note in new.notes)


def with_value(run: RunFolder, path: Path, column: str, number: int, value: float | None) -> Path:
    """The data of the run with another value at an hour of the first plant."""
    table = pq.read_table(run.path / "data.parquet")
    values = table[column].to_pylist()
    values[table["time"].to_pylist().index(datetime.fromisoformat(hour(number)))] = value
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values)), path)
    return path


@pytest.mark.parametrize(("column", "value"), [("wind", None), ("wind", float("inf")), ("load", None), ("hour", 1e300)])
def test_other_data_may_hold_anything_where_no_window_reads(
    run: RunFolder, tmp_path: Path, column: str, value: float | None
) -> None:
    other = with_value(run, tmp_path / "other.parquet", column, 3, value)
    found, expected = (backtest_run(run, Span(), files=files).scores["fp32"] for files in ([other], []))
    assert [step.q_risk for step in found.steps] == [step.q_risk for step in expected.steps]
    assert found.overall.mase == pytest.approx(expected.overall.mase, rel=0.01)  # of errors in training, one less


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        pytest.param("wind", None, "'wind' is null or NaN", id="null in a history"),
        pytest.param("hour", None, "'hour' is null or NaN", id="null in the future"),
        pytest.param("load", float("inf"), "'load' is infinite", id="infinite target"),
    ],
)
def test_other_data_are_refused_where_a_window_reads_no_number(
    run: RunFolder, tmp_path: Path, column: str, value: float | None, said: str
) -> None:
    other = with_value(run, tmp_path / "other.parquet", column, 90, value)
    with pytest.raises(DataError, match=f"{said}.* at {hour(90)} in plant=north, where a forecast needs it"):
        backtest_run(run, Span(), files=[other])


def test_other_data_may_be_a_folder(run: RunFolder, tmp_path: Path) -> None:
    table = pq.read_table(run.path / "data.parquet")
    (tmp_path / "parts").mkdir()
    for number, plant in enumerate(("north", "south")):
        pq.write_table(table.filter(pc.equal(table["plant"], plant)), tmp_path / "parts" / f"{number}.parquet")
    found = backtest_run(run, Span(), files=[tmp_path / "parts"], out=tmp_path / "out.parquet")
    assert found.scores == backtest_run(run, Span()).scores


def test_a_span_before_the_test_part_and_a_stride_of_a_season_are_noted(run: RunFolder) -> None:
    report = backtest_run(run, Span(since=hour(50), stride=24))
    assert any(note.startswith(f"The span begins before the test part ({hour(84)})") for note in report.notes)
    assert any("--stride 25 would cover the whole season" in note for note in report.notes)
    assert backtest_run(run, Span()).notes == ()


def test_a_series_that_never_changed_in_training_is_left_out_of_mase_by_name(run: RunFolder) -> None:
    table = pq.read_table(run.path / "data.parquet")
    still = pc.and_(
        pc.equal(table["plant"], "south"),
        pc.less(table["time"], pa.scalar(datetime.fromisoformat(hour(60)), table["time"].type)),
    )
    load = pc.if_else(still, 50.0, table["load"])
    place = table.column_names.index("load")
    pq.write_table(table.set_column(place, "load", load), run.path / "data.parquet")
    report = backtest_run(run, Span())
    assert report.scores["fp32"].series[1].mase is None
    assert report.scores["fp32"].overall.mase == pytest.approx(report.scores["fp32"].series[0].mase)
    assert report.notes == ("MASE leaves out 1 series without a change on training rows: plant=south.",)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        pytest.param(Span(since="soon"), r"--from soon is not a time.*1970-01-01T00:00:00 to", id="from"),
        pytest.param(Span(until="1970-13-01"), "--until 1970-13-01 is not a time", id="until"),
        pytest.param(Span(until=hour(10)), "is not before --until", id="empty"),
        pytest.param(Span(since="2020-01-01"), "0 test windows.*Move --from or --until", id="after the data"),
    ],
)
def test_a_span_that_cannot_be_is_refused(run: RunFolder, tmp_path: Path, span: Span, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backtest_run(run, span, out=tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
