"""Calendar features agree with the standard library's calendar, in the zone of the file."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.time.calendar import CALENDAR_FEATURES, Calendar, parse_calendar, with_calendar
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Columns, Kind, Schema

FLOAT32_ROUNDING = 2e-6  # a unit or two in the last place of a number near 10
MOMENTS = st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2261, 12, 31)), min_size=1, max_size=20)


def nanoseconds(moments: list[datetime]) -> np.ndarray:
    utc = [moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment for moment in moments]
    return np.array(utc, dtype="datetime64[ns]").astype(np.int64)


def calendar_of(*features: str, kind: TimeKind = TimeKind.TIMESTAMP, zone: str | None = None) -> Calendar:
    return Calendar.of(features, kind, zone)


def weeks_of(moment: datetime) -> int:
    return date(moment.isocalendar().year, 12, 28).isocalendar().week


def days_of_month(moment: datetime) -> int:
    return ((moment.replace(day=1) + timedelta(days=31)).replace(day=1) - timedelta(days=1)).day


PLACES = {
    "minute": lambda t: (t.minute, 60, str(t.minute)),
    "hour": lambda t: (t.hour, 24, str(t.hour)),
    "day_of_week": lambda t: (t.weekday(), 7, str(t.isoweekday())),
    "day_of_month": lambda t: (t.day - 1, days_of_month(t), str(t.day)),
    "day_of_year": lambda t: (
        t.timetuple().tm_yday - 1,
        date(t.year, 12, 31).timetuple().tm_yday,
        str(t.timetuple().tm_yday),
    ),
    "week_of_year": lambda t: (t.isocalendar().week - 1, weeks_of(t), str(t.isocalendar().week)),
    "month": lambda t: (t.month - 1, 12, str(t.month)),
    "quarter": lambda t: ((t.month - 1) // 3, 4, str((t.month + 2) // 3)),
}


@pytest.mark.parametrize("name", PLACES)
@given(moments=MOMENTS)
def test_a_cycle_closes_at_its_end_and_a_category_is_what_people_call_it(name: str, moments: list[datetime]) -> None:
    sine, cosine, category = calendar_of(name, f"{name}:category").columns
    values = calendar_of(name, f"{name}:category").values(nanoseconds(moments))
    for row, moment in enumerate(moments):
        place, length, text = PLACES[name](moment)
        angle = 2 * np.pi * place / length
        assert values[sine.name][row] == pytest.approx(np.sin(angle), abs=FLOAT32_ROUNDING)
        assert values[cosine.name][row] == pytest.approx(np.cos(angle), abs=FLOAT32_ROUNDING)
        assert category.categories[int(values[category.name][row])] == text


@given(moments=MOMENTS)
def test_years_are_decimals_since_2000_and_weekends_are_flags(moments: list[datetime]) -> None:
    values = calendar_of("year", "is_weekend").values(nanoseconds(moments))
    for row, moment in enumerate(moments):
        start = datetime(moment.year, 1, 1)
        share = (moment - start) / timedelta(days=date(moment.year, 12, 31).timetuple().tm_yday)
        expected = moment.year - 2000 + share
        assert values["calendar.year"][row] == pytest.approx(expected, rel=1e-7, abs=1e-7)
        assert values["calendar.is_weekend"][row] == (moment.isoweekday() > 5)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_a_zone_reads_its_own_clock_through_both_changes_of_the_hour(zone: str) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(minutes=30 * step) for step in range(2 * 24 * 366)]
    local = [moment.astimezone(ZoneInfo(zone)) for moment in moments]
    values = calendar_of("hour:category", "minute:category", "day_of_week:category", zone=zone).values(
        nanoseconds(moments)
    )
    assert values["calendar.hour"].tolist() == [moment.hour for moment in local]
    assert values["calendar.minute"].tolist() == [moment.minute for moment in local]
    assert values["calendar.day_of_week"].tolist() == [moment.weekday() for moment in local]


def test_the_columns_of_a_feature_are_known_columns_after_those_of_the_file() -> None:
    schema = Schema(time="t", target="y", known=Columns(real=("price",), category=("event",)))
    extended = with_calendar(schema, ("hour", "month:category", "is_weekend"))
    assert extended.known.real == ("price", "calendar.hour.sin", "calendar.hour.cos", "calendar.is_weekend")
    assert extended.known.category == ("event", "calendar.month")
    assert with_calendar(schema, ()) is schema
    for name in CALENDAR_FEATURES:
        columns = calendar_of(name).columns
        assert all((column.name in with_calendar(schema, (name,)).known.real) for column in columns)
        assert all(column.kind is Kind.REAL and not column.categories for column in columns)


def test_a_column_that_the_file_has_already_is_refused() -> None:
    schema = Schema(time="t", target="y", observed=Columns(real=("calendar.year",)))
    with pytest.raises(SchemaError, match=r"'calendar.year' is in the schema and a calendar feature"):
        with_calendar(schema, ("year",))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        pytest.param(("hours",), "no calendar feature 'hours' .did you mean hour", id="unknown"),
        pytest.param(("hour:real",), "hour cannot be 'real': choose from cyclic, category", id="form"),
        pytest.param(("year:category",), "year cannot be 'category': choose from real", id="year"),
        pytest.param(("hour", "hour:cyclic"), "hour is named twice", id="twice"),
    ],
)
def test_what_is_no_feature_is_refused_with_the_choices(features: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_calendar(features)


@pytest.mark.parametrize(
    ("kind", "zone", "message"),
    [
        pytest.param(TimeKind.STEP, None, "counts steps, which have no calendar", id="steps"),
        pytest.param(TimeKind.DATE, None, "dates, which have no hour and no minute", id="dates"),
    ],
)
def test_times_without_such_a_calendar_are_refused(kind: TimeKind, zone: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Calendar.of(("hour", "minute"), kind, zone)
    assert Calendar.of((), TimeKind.STEP, None).columns == ()
    assert Calendar.of(("month",), TimeKind.DATE, None).values(np.zeros(1, np.int64))["calendar.month.cos"] == 1


def test_a_panel_carries_the_features_of_its_rows_on_the_clock_of_the_file(
    write: Callable[..., Path], cities: Callable[..., dict[str, Any]]
) -> None:
    columns = cities(40)
    columns["time"] = pa.array(columns["time"], pa.timestamp("us", tz="Asia/Kolkata"))
    schema = Schema(time="time", target="y", id=("city",), known=Columns(category=("sky",)))
    panel = read_panel(write(columns), schema, Preparation(calendar=("hour:category", "year")))
    assert panel.schema.known == Columns(real=("calendar.year",), category=("sky", "calendar.hour"))
    local = [time.astimezone(ZoneInfo("Asia/Kolkata")) for time in columns["time"].to_pylist()]
    hour = panel.values[:, panel.schema.group("historical").columns.index("calendar.hour")].int().tolist()
    assert [panel.dictionaries["calendar.hour"][code] for code in hour] == [str(time.hour) for time in local]
    assert panel.schema.without({"calendar.hour", "calendar.year"}) == schema
