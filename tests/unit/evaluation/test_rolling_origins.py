"""Rolling origins: every model forecasts the same windows, batch by batch, and is scored on the actual values."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from qat_tft.data.panel import Panel
from qat_tft.data.split import Split
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.written import WrittenTimes
from qat_tft.data.windows import Windows
from qat_tft.errors import DataError
from qat_tft.evaluation.backtest_report import BacktestReport
from qat_tft.evaluation.forecast_table import MODEL_COLUMN, ForecastFile, ForecastRows
from qat_tft.evaluation.rolling_origins import RollingOrigins
from qat_tft.schema import Schema

LEVELS = (0.1, 0.5, 0.9)
ROWS, HISTORY, HORIZON, STRIDE = 30, 4, 3, 2


def panel() -> Panel:
    """Two series that count up from 0 and from 100, with one missing target."""
    values = torch.cat([torch.arange(ROWS), 100 + torch.arange(ROWS)]).float()[:, None]
    values[25] = torch.nan
    return Panel(
        schema=Schema(time="step", target="y", id=("name",)),
        values=values,
        static=torch.zeros(2, 0),
        time=torch.arange(ROWS).repeat(2),
        series_start=torch.tensor([0, ROWS, 2 * ROWS]),
        series_ids=[("a",), ("b",)],
        series_code=torch.tensor([1, 2]),
        time_kind=TimeKind.STEP,
        encoded=True,
    )


def origins(batch_size: int = 4) -> RollingOrigins:
    windows = Windows(panel(), history=HISTORY, horizon=HORIZON, split=Split(20, 20, 29), part="test", stride=STRIDE)
    scale = torch.tensor([2.0, torch.nan], dtype=torch.float64)
    return RollingOrigins(windows, torch.arange(len(windows)), LEVELS, scale, batch_size)


def off_by(distance: float):
    """A forecast whose quantiles lie one apart, the middle one `distance` above what comes."""

    def forecast(batch, first_rows):
        middle = first_rows[:, None] % ROWS + first_rows[:, None] // ROWS * 100 + torch.arange(HORIZON) + distance
        return torch.stack([middle - 1, middle, middle + 1], -1).float()

    return forecast


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_scores_are_of_every_origin_step_and_series_whatever_the_batches(batch_size: int) -> None:
    found = origins(batch_size).score({"right": off_by(0), "high": off_by(2)})
    # first targets 20, 22, 24, 26 of each series: 8 windows of 3 steps, 24 targets, of which row 25 is missing once
    assert found["right"].overall.targets == 23
    assert [step.targets for step in found["right"].steps] == [8, 7, 8]
    assert [series.targets for series in found["right"].series] == [11, 12]
    assert (found["right"].overall.mae, found["right"].overall.bias) == (0.0, 0.0)
    assert (found["high"].overall.mae, found["high"].overall.bias) == (2.0, 2.0)
    assert found["high"].overall.coverage == (1.0, 1.0, 1.0)
    assert found["high"].overall.interval == 0.0
    assert [series.mase for series in found["high"].series] == [1.0, None]  # a scale of 2, and none


def test_the_file_has_one_row_per_origin_step_series_and_model(tmp_path: Path) -> None:
    rolling = origins()
    rows = ForecastRows(rolling.windows.panel, (pa.string(),), WrittenTimes(pa.int64()))
    with ForecastFile(tmp_path / "out.parquet") as file:
        found = rolling.score({"right": off_by(0), "high": off_by(2)}, rows=rows, out=file)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == [
        "name", "forecast_origin", "step", "forecast_step", "forecast_model", "y", "q0.1", "q0.5", "q0.9"
    ]  # fmt: skip
    listed = table.to_pylist()
    keys = {tuple(row[key] for key in ("name", "forecast_origin", "forecast_step", "forecast_model")) for row in listed}
    assert len(keys) == len(listed) == 2 * 8 * HORIZON
    assert all(row["step"] == row["forecast_origin"] + row["forecast_step"] for row in listed)
    assert sum(row["y"] is None for row in listed) == 2
    scored = [row for row in listed if row["y"] is not None]
    assert all(row["y"] == row["step"] + 100 * (row["name"] == "b") for row in scored)
    errors = {model: [abs(row["q0.5"] - row["y"]) for row in scored if row[MODEL_COLUMN] == model] for model in found}
    assert set(errors["right"]) == {0.0}
    assert sum(errors["high"]) / len(errors["high"]) == found["high"].overall.mae


def test_a_forecast_that_is_not_finite_is_named_with_its_origin() -> None:
    def broken(batch, first_rows):
        quantiles = off_by(0)(batch, first_rows)
        quantiles[first_rows == ROWS + 24, 1, 2] = torch.inf
        return quantiles

    with pytest.raises(DataError, match="forecast of wild is not finite for name=b from 24 onward"):
        origins().score({"wild": broken})


def report(season: int = 12) -> BacktestReport:
    found = origins().score({"fp32": off_by(0), "seasonal_naive": off_by(2)})
    return BacktestReport(
        run="mine",
        source="data.parquet",
        first_origin="19",
        last_origin="25",
        stride=STRIDE,
        windows=8,
        levels=LEVELS,
        season=season,
        scores=found,
        series={0: "name=a", 1: "name=b"},
        notes=("A note.",),
        out=Path("out.parquet"),
    )


def test_a_report_shows_every_model_step_and_series() -> None:
    console = Console(width=80, file=StringIO())
    for table in report().tables():
        console.print(table)
    text = console.file.getvalue()
    words = (
        "FP32",
        "seasonal naive",
        "P10",
        "MASE",
        "P10 to P90",
        "8 origins in 2 series from 19 to 25",
        "23 targets",
        "A note.",
    )
    assert [word for word in words if word not in text] == []
    risk = 2 * 11 * 1.0 / sum(row % ROWS for row in (20, 21, 22, 22, 23, 24, 24, 26, 26, 27, 28))
    assert ["name=a", "0.00000", f"{risk:.5f}", "0.000"] in [
        [cell for cell in line.split() if cell != "│"] for line in text.splitlines()
    ]


def test_a_seasonal_naive_forecast_with_a_season_of_one_row_is_called_the_last_value() -> None:
    console = Console(width=80, file=StringIO())
    for table in report(season=1).tables():
        console.print(table)
    assert "seasonal naive" not in console.file.getvalue()
    assert console.file.getvalue().count("last value") == 5


def test_the_strongest_naive_forecast_is_named_and_every_model_compared_with_it() -> None:
    found = origins().score({"fp32": off_by(1), "seasonal_naive": off_by(4), "last_value": off_by(2)})
    one = replace(report(), scores=found)
    assert "The strongest simple forecast is last value; q-risk P50 against it: FP32 \N{MINUS SIGN}50.0 %" in [
        str(part) for part in one.tables()
    ]
    value = one.to_json()
    assert value["strongest_simple"] == "last_value"
    assert value["gain_over_strongest_simple"] == pytest.approx({"fp32": 0.5, "seasonal_naive": -1, "last_value": 0})


def test_the_json_of_a_report_has_every_step_and_series() -> None:
    value = report().to_json()
    assert (value["windows"], value["series"], value["out"]) == (8, 2, "out.parquet")
    naive = value["models"]["seasonal_naive"]
    assert [step["targets"] for step in naive["by_step"]] == [8, 7, 8]
    assert naive["by_series"]["name=b"]["mae"] == 2.0
    assert naive["by_series"]["name=b"]["mase"] is None
