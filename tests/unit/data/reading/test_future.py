"""Future rows go on as the series did, on the clock of its zone, and carry the calendar of their times."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import torch

from qat_tft.data.preparation import Preparation, TimeMeaning
from qat_tft.data.reading.future import can_extend, with_future_rows
from qat_tft.data.reading.parquet import read_panel
from qat_tft.errors import DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]


def following(path: Path, steps: int) -> list[datetime]:
    """The times of the rows that follow those of a file with one series."""
    panel = read_panel(path, Schema(time="time", target="y"), Preparation(calendar=("year",)))
    times = with_future_rows(panel, steps).time[-steps:]
    return [datetime.fromisoformat(panel.time_text(int(time))) for time in times]


@pytest.mark.parametrize(
    ("known", "coming"),
    [
        pytest.param(
            [datetime(2024, 2, 28, 21) + timedelta(hours=hour) for hour in range(3)],
            [datetime(2024, 2, 29, 0), datetime(2024, 2, 29, 1)],
            id="hours",
        ),
        pytest.param(
            [datetime(2023, 11, 1), datetime(2023, 12, 1)], [datetime(2024, 1, 1), datetime(2024, 2, 1)], id="months"
        ),
        pytest.param(
            [datetime(2023, 12, 31), datetime(2024, 1, 31)], [datetime(2024, 2, 29), datetime(2024, 3, 31)], id="ends"
        ),
        pytest.param(
            [datetime(2023, 7, 15), datetime(2023, 10, 15)],
            [datetime(2024, 1, 15), datetime(2024, 4, 15)],
            id="quarters",
        ),
        pytest.param(
            [datetime(2024, 1, 1), datetime(2024, 1, 2), datetime(2024, 1, 3), datetime(2024, 1, 9)],
            [datetime(2024, 1, 10), datetime(2024, 1, 11)],
            id="after a gap",
        ),
    ],
)
def test_times_go_on_by_the_usual_step(write: Write, known: list[datetime], coming: list[datetime]) -> None:
    assert following(write({"time": known, "y": np.arange(len(known)) + 0.5}), 2) == coming


def test_days_of_a_zone_keep_their_midnight_where_the_clock_changes(write: Write) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    days = [datetime(2024, 3, day, tzinfo=berlin) for day in (26, 27, 28, 29, 30, 31)]
    times = pa.array(days[:-1], pa.timestamp("us", "Europe/Berlin"))
    coming = [day.astimezone(UTC).replace(tzinfo=None) for day in (days[-1], datetime(2024, 4, 1, tzinfo=berlin))]
    assert following(write({"time": times, "y": np.arange(5.0)}), 2) == coming


def test_what_training_learned_of_time_holds_for_few_rows(write: Write) -> None:
    schema = Schema(time="time", target="y")
    worked = np.arange("2024-01-01", "2024-06-01", dtype="datetime64[D]")
    worked = worked[np.is_busday(worked, weekmask="1111001")].astype("datetime64[us]")
    trained = read_panel(write({"time": worked, "y": np.arange(float(len(worked)))}), schema).preparation
    assert trained.time == TimeMeaning("timestamp", "", "1111001", 5)
    few = write({"time": worked[-3:], "y": np.arange(3.0)}, "few.parquet")  # Tuesday to Thursday
    times = with_future_rows(read_panel(few, schema, trained), 2).time[-2:]
    assert times.numpy().astype("datetime64[ns]").astype("datetime64[D]").tolist() == [
        date(2024, 6, 2),
        date(2024, 6, 3),
    ]
    assert read_panel(few, schema, trained).preparation == trained


@pytest.mark.parametrize(
    ("zone", "hours"),
    [pytest.param("UTC", [8, 9], id="utc"), pytest.param("America/New_York", [8, 9], id="another zone")],
)
def test_times_are_read_on_the_clock_of_the_training(write: Write, zone: str, hours: list[int]) -> None:
    schema, calendar = Schema(time="time", target="y"), Preparation(calendar=("hour:category",))
    whens = pa.array([datetime(2024, 5, 1, hour, tzinfo=UTC) for hour in (6, 7)])
    berlin = whens.cast(pa.timestamp("us", "Europe/Berlin"))
    trained = read_panel(write({"time": berlin, "y": [1.0, 2.0]}), schema, calendar).preparation
    path = write({"time": whens.cast(pa.timestamp("ms", zone)), "y": [1.0, 2.0]}, "other.parquet")
    assert read_panel(path, schema, trained).values[:, 1].tolist() == hours
    naive = write({"time": whens.cast(pa.timestamp("ms")), "y": [1.0, 2.0]}, "naive.parquet")
    with pytest.raises(DataError, match="has no time zone, and training had Europe/Berlin"):
        read_panel(naive, schema, trained)


def test_a_model_of_times_does_not_read_steps(write: Write) -> None:
    schema = Schema(time="time", target="y")
    trained = read_panel(write({"time": [datetime(2024, 5, day) for day in (1, 2)], "y": [1.0, 2.0]}), schema)
    with pytest.raises(DataError, match="'time' is int64, and training had a timestamp"):
        read_panel(write({"time": [1, 2], "y": [1.0, 2.0]}), schema, trained.preparation)


def test_without_a_second_row_there_is_no_step(write: Write) -> None:
    with pytest.raises(DataError, match="no series has two rows"):
        following(write({"time": [datetime(2024, 1, 1)], "y": [1.0]}), 2)


def test_future_rows_are_those_that_a_file_with_future_times_would_have(
    write: Write, cities: Callable[..., dict[str, Any]]
) -> None:
    schema = Schema(
        time="time",
        target="y",
        id=("city",),
        static=Columns(category=("city",)),
        observed=Columns(real=("wind",), category=("sky",)),
    )
    preparation = Preparation(calendar=("hour", "day_of_week:category"))
    columns = cities(30)
    ahead = np.array([row % 30 >= 27 for row in range(60)])
    columns["y"], columns["wind"] = (np.where(ahead, np.nan, columns[name]) for name in ("y", "wind"))
    whole = read_panel(write(columns), schema, preparation, checked=False)
    known = {name: pa.array(values).filter(pa.array(~ahead)) for name, values in columns.items()}
    panel = read_panel(write(known, "known.parquet"), schema, preparation)
    extended = with_future_rows(panel, 3)
    assert can_extend(panel)
    assert torch.equal(extended.time, whole.time)
    assert torch.equal(extended.series_start, whole.series_start)
    sky = whole.schema.group("historical").columns.index("sky")
    others = [place for place in range(whole.values.shape[1]) if place != sky]
    torch.testing.assert_close(extended.values[:, others], whole.values[:, others], rtol=0, atol=0, equal_nan=True)


def test_without_a_known_column_there_are_future_rows_too(write: Write) -> None:
    panel = read_panel(write({"step": [1, 3], "y": [1.0, 2.0]}), Schema(time="step", target="y"))
    assert can_extend(panel)
    extended = with_future_rows(panel, 2)
    assert extended.time.tolist() == [1, 3, 5, 7]
    assert extended.target.isnan().tolist() == [False, False, True, True]


@pytest.mark.parametrize("calendar", [(), ("hour",)], ids=["no calendar", "another known column"])
def test_a_panel_with_other_known_columns_is_not_extended(
    write: Write, cities: Callable[..., dict[str, Any]], calendar: tuple[str, ...]
) -> None:
    schema = Schema(time="time", target="y", id=("city",), known=Columns(real=("hour_sin",)))
    panel = read_panel(write(cities(12)), schema, Preparation(calendar=calendar))
    assert not can_extend(panel)
    with pytest.raises(ValueError, match="not a calendar feature"):
        with_future_rows(panel, 2)


def test_stretches_end_where_their_rows_do(write: Write, cities: Callable[..., dict[str, Any]]) -> None:
    schema = Schema(time="time", target="y", id=("city",))
    panel = read_panel(write(cities(12)), schema, Preparation(calendar=("hour",)))
    split = replace(panel, stretch_start=torch.tensor([0, 5, 12, 20, 24]))
    assert with_future_rows(split, 3).stretches.tolist() == [0, 5, 15, 23, 30]
    assert with_future_rows(panel, 3).stretches.tolist() == [0, 15, 30]


def test_dates_stay_dates(write: Write) -> None:
    columns = {"day": [date(2024, 12, 30), date(2024, 12, 31)], "y": [1.0, 2.0]}
    panel = read_panel(write(columns), Schema(time="day", target="y"), Preparation(calendar=("day_of_year",)))
    extended = with_future_rows(panel, 2)
    assert [panel.time_text(int(time)) for time in extended.time] == [
        "2024-12-30",
        "2024-12-31",
        "2025-01-01",
        "2025-01-02",
    ]
