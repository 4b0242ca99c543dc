"""A file prepares rows as its training did: duplicates, gaps, and the time step that was found then."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.data.preparation import Preparation
from qat_tft.errors import DataError
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.predict_report import Predictions
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import ModelMetadata
from qat_tft.schema import Schema

HISTORY, HORIZON = 3, 2
Forecast = Callable[..., Predictions]


@pytest.fixture
def forecast(tmp_path: Path, persistence_for: Callable[[ModelMetadata], Path]) -> Forecast:
    """Forecast targets at whole-number times with a file that repeats the last one and has that preparation."""

    def run(times: list[int], targets: list[float], preparation: Preparation) -> Predictions:
        metadata = ModelMetadata(
            kind="fp32",
            schema=Schema(time="t", target="y"),
            vocabularies={},
            series=None,
            quantiles=(0.5,),
            history=HISTORY,
            horizon=HORIZON,
            preparation=preparation,
        )
        pq.write_table(pa.table({"t": times, "y": targets}), tmp_path / "data.parquet")
        return forecast_parquet(ForecastSession(persistence_for(metadata)), tmp_path / "data.parquet")

    return run


def test_duplicates_become_one_row_before_the_forecast(forecast: Forecast) -> None:
    times, targets = [0, 1, 2, 3, 3], [1.0, 2.0, 3.0, 4.0, 8.0]
    with pytest.raises(DataError, match="repeats the series and time"):
        forecast(times, targets, Preparation())
    last = forecast(times, targets, Preparation(duplicates="last"))
    mean = forecast(times, targets, Preparation(duplicates="mean"))
    assert last.table["q0.5"].to_pylist() == [8.0, 8.0]
    assert mean.table["q0.5"].to_pylist() == [6.0, 6.0]
    assert any("1 row repeats" in note for note in mean.notes)


def test_no_history_spans_a_gap_of_the_step_that_training_found(forecast: Forecast) -> None:
    split = Preparation(gaps="split", step=("duration", 1))
    assert forecast([0, 1, 2, 5, 6, 7], [1.0] * 6, split).table.num_rows == HORIZON
    with pytest.raises(DataError, match="0 forecasts"):
        forecast([0, 1, 2, 5, 6], [1.0] * 5, split)
    with pytest.raises(DataError, match="0 forecasts"):  # every second row: regular but for what training found
        forecast([0, 2, 4, 6, 8], [1.0] * 5, split)
    assert forecast([0, 2, 4, 6, 8], [1.0] * 5, Preparation(gaps="split")).table.num_rows == HORIZON
