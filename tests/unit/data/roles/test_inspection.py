"""Inspection counts what is there, proposes roles with reasons, and what it proposes can be read."""

import io
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.roles.field_metadata import with_declared_roles
from qat_tft.data.roles.inspection import Inspection, inspect_file
from qat_tft.data.sample.samples import embedded_rentals, simulated_schema, write_sample
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]


def proposed(inspection: Inspection) -> dict[str, str]:
    """Column -> roles and kind in one text."""
    return {
        profile.name: "+".join(proposal.roles) + (f" {proposal.kind}" if proposal.kind else "")
        for profile, proposal in inspection.columns
    }


def rendered(inspection: Inspection) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for part in inspection.tables():
            console.print(part)
    return console.export_text()


def test_series_of_a_panel_get_their_roles_with_a_reason(write: Write, cities: Cities) -> None:
    scanned = []
    inspection = inspect_file(write(cities(72)), told=lambda *stage: scanned.append(stage))
    assert scanned[0][1:] == (0, len(scanned))
    assert {what.removeprefix("scanning ") for what, _, _ in scanned} == {one.name for one, _ in inspection.columns}
    assert proposed(inspection) == {
        "city": "id+static category",
        "time": "time",
        "y": "target real",
        "height": "static real",
        "wind": "observed real",
        "sky": "observed category",
        "hour": "known category",
        "hour_sin": "known real",
    }
    assert all(proposal.reason for _, proposal in inspection.columns)
    assert inspection.problems == ()


def test_the_proposed_schema_reads_the_file_it_was_proposed_for(write: Write, cities: Cities) -> None:
    path = write(cities(72))
    inspection = inspect_file(path)
    assert inspection.schema is not None
    assert read_panel(path, inspection.schema).rows == inspection.rows == 144


def test_series_lengths_frequency_and_duplicates_are_counted(write: Write, cities: Cities) -> None:
    columns = {name: list(values)[:40] for name, values in cities(30).items()}
    series = inspect_file(write(columns)).series
    assert series is not None
    assert (series.count, series.shortest, series.median, series.longest) == (2, 10, 20.0, 30)
    assert (series.frequency, series.regular, series.duplicates) == ("1 hour", 1.0, 0)
    assert (series.first, series.last) == ("2020-01-01T00:00:00", "2020-01-02T05:00:00")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (timedelta(minutes=30), "30 minutes"),
        (timedelta(days=1), "1 day"),
        (timedelta(days=7), "7 days"),
        (timedelta(milliseconds=250), "0.25 seconds"),
    ],
)
def test_frequency_is_told_in_the_largest_unit_that_divides_it(write: Write, step: timedelta, text: str) -> None:
    times = [datetime(2020, 1, 1) + n * step for n in range(20)]
    series = inspect_file(write({"time": times, "y": np.arange(20.0) + 0.5})).series
    assert series is not None
    assert series.frequency == text


def test_months_are_a_frequency_although_their_lengths_differ(write: Write) -> None:
    times = [datetime(2020 + month // 12, month % 12 + 1, 1) for month in range(30)]
    series = inspect_file(write({"time": times, "y": np.arange(30.0) + 0.5})).series
    assert series is not None
    assert (series.frequency, series.regular) == ("1 month", 1.0)


def test_two_columns_together_may_name_the_series(write: Write) -> None:
    columns = {
        "shop": ["a", "a", "b", "b"] * 3,
        "article": ["x", "y", "x", "y"] * 3,
        "day": [datetime(2020, 1, 1 + n // 4) for n in range(12)],
        "sales": np.arange(12.0) + 0.5,
    }
    schema = inspect_file(write(columns)).schema
    assert schema is not None
    assert schema.id == ("shop", "article")


def test_rows_that_no_column_tells_apart_are_a_problem_with_a_way_out(write: Write) -> None:
    inspection = inspect_file(write({"time": [1, 1, 2, 2], "y": [0.5, 1.5, 2.5, 3.5]}))
    assert inspection.series is not None
    assert inspection.series.duplicates == 2
    assert inspection.problems == ("2 rows repeat the series and time of another: name the id columns with --id.",)


@pytest.mark.parametrize("type_", [pa.int64(), pa.decimal128(38, 0)], ids=str)
def test_ids_of_many_digits_are_told_apart(write: Write, type_: pa.DataType) -> None:
    ids = [Decimal(2**53 + place) for place in range(3)]
    times = np.tile(np.arange(40), 3)
    columns = {
        "account_id": pa.array(np.repeat(ids, 40), pa.decimal128(38, 0)).cast(type_),
        "t": times,
        "y": times % 7 + 0.5,
    }
    inspection = inspect_file(write(columns))
    assert proposed(inspection)["account_id"] == "id+static category"
    profile = next(profile for profile, _ in inspection.columns if profile.name == "account_id")
    assert (profile.minimum, profile.maximum, profile.distinct) == (str(2**53), str(2**53 + 2), 3)


def test_infinite_nested_and_constant_values_are_left_out_and_say_why(write: Write) -> None:
    columns = {
        "time": list(range(6)),
        "y": [0.5, 1.5, 2.5, 1.5, 0.5, 1.0],
        "broken": pa.array([1.0, None, 2.0, np.nan, np.inf, 3.0]),
        "nested": pa.array([[1.0]] * 6),
        "constant": [7] * 6,
        "empty": pa.nulls(6),
        "kind": pa.array(["a", None, "b", "a", "b", "a"]),
    }
    inspection = inspect_file(write(columns))
    found = {profile.name: (profile, proposal) for profile, proposal in inspection.columns}
    assert proposed(inspection) == {
        "time": "time",
        "y": "target real",
        "broken": "",
        "nested": "",
        "constant": "",
        "empty": "",
        "kind": "observed category",
    }
    assert (found["broken"][0].nulls, found["broken"][0].not_finite, found["broken"][0].infinite) == (1, 2, 1)
    assert "infinite in 1 rows" in found["broken"][1].reason
    assert "<null>" in found["kind"][1].reason
    assert "null in every row" in found["empty"][1].reason


def test_a_value_that_merely_changed_slowly_is_not_taken_for_one_known_beforehand(write: Write) -> None:
    times = [datetime(2020, 1, 1) + timedelta(days=day) for day in range(300)]
    monthly = [float(np.random.default_rng(time.month).normal()) for time in times]
    inspection = inspect_file(write({"time": times, "y": np.arange(300.0) + 0.5, "rate": monthly}))
    assert proposed(inspection)["rate"] == "observed real"


def test_a_value_shared_by_all_series_at_a_time_is_not_taken_for_one_known_beforehand(write: Write) -> None:
    days = [datetime(2020, 1, 1) + timedelta(days=day) for day in range(40)]
    market = np.random.default_rng(0).normal(size=40)
    columns = {
        "symbol": np.repeat([f"s{n}" for n in range(20)], 40),
        "time": days * 20,
        "close": np.random.default_rng(1).normal(size=800),
        "market": np.tile(market, 20),
    }
    assert proposed(inspect_file(write(columns)))["market"] == "observed real"


def test_a_name_with_a_calendar_word_alone_does_not_make_a_column_known(write: Write) -> None:
    random = np.random.default_rng(0)
    columns = {
        "time": [datetime(2020, 1, 1) + timedelta(days=day) for day in range(40)],
        "y": random.normal(size=40),
        "day_high": random.normal(size=40),
        "sales_last_week": random.integers(0, 100, 40),
        "days_to_expiry": np.arange(40)[::-1],
    }
    assert proposed(inspect_file(write(columns))) == {
        "time": "time",
        "y": "target real",
        "day_high": "observed real",
        "sales_last_week": "observed real",
        "days_to_expiry": "known real",
    }


def test_columns_named_by_the_user_are_taken_and_wrong_ones_refused(write: Write, cities: Cities) -> None:
    path = write(cities(48))
    schema = inspect_file(path, target="wind", ids=["city"]).schema
    assert schema is not None
    assert schema.target == "wind"
    assert "y" in schema.observed.real
    with pytest.raises(SchemaError, match="Did you mean 'wind'"):
        inspect_file(path, target="wnd")
    assert inspect_file(path, target="sky").problems == ("The target 'sky' is string, not a number.",)
    assert inspect_file(path, target="city").problems == ("The target 'city' is string, not a number.",)


def test_without_a_time_column_the_columns_are_shown_and_the_problem_named(write: Write) -> None:
    inspection = inspect_file(write({"y": [0.5, 1.5], "note": ["a", "b"]}))
    assert inspection.schema is None
    assert inspection.problems == ("No column is a timestamp, a date or a step: name the time column with --time.",)
    assert "note" in rendered(inspection)


@pytest.mark.parametrize("rows", [pytest.param(0, id="no rows"), pytest.param(1, id="one row")])
def test_tiny_files_do_not_break_it(write: Write, rows: int) -> None:
    path = write({"time": pa.array([5] * rows, pa.int64()), "y": pa.array([1.5] * rows, pa.float64())})
    if rows:
        assert inspect_file(path).rows == rows
    else:
        with pytest.raises(DataError, match="there are no rows"):
            inspect_file(path)


def test_the_result_is_plain_json_and_readable_tables(write: Write, cities: Cities) -> None:
    inspection = inspect_file(write(cities(48)))
    value = json.loads(json.dumps(inspection.to_json(), allow_nan=False))
    assert Schema.from_toml(value["schema_toml"]) == Schema.model_validate(value["schema"]) == inspection.schema
    assert value["columns"][0]["roles"] == ["id", "static"]
    text = rendered(inspection)
    assert "2 series of 48 rows" in text
    assert "[known]" in text


def test_names_that_look_like_markup_are_shown_as_they_are(write: Write) -> None:
    text = rendered(inspect_file(write({"time": [1, 2], "[red]y[/]": [0.5, 1.5]})))
    assert "[red]y[/]" in text


def test_a_schema_is_written_once_and_never_over_a_file(write: Write, cities: Cities, tmp_path: Path) -> None:
    inspection = inspect_file(write(cities(48)))
    path = inspection.write_schema(tmp_path / "s.toml")
    assert Schema.read(path) == inspection.schema
    with pytest.raises(SchemaError, match="the file already exists"):
        inspection.write_schema(path)
    with pytest.raises(SchemaError, match="cannot be written"):
        inspection.write_schema(tmp_path / "missing" / "s.toml")


def test_a_schema_that_the_disk_has_no_room_for_leaves_no_file(
    write: Write, cities: Cities, tmp_path: Path, full_disk: Any
) -> None:
    inspection, folder = inspect_file(write(cities(48))), tmp_path / "schemas"
    folder.mkdir()
    with full_disk(20), pytest.raises(SchemaError, match="cannot be written: File too large"):
        inspection.write_schema(folder / "s.toml")
    assert list(folder.iterdir()) == []


def test_the_embedded_rentals_and_the_simulated_bars_are_understood(tmp_path: Path) -> None:
    path, schema = embedded_rentals()
    found = inspect_file(path).schema
    assert found is not None
    assert (found.time, found.target, found.id, found.static) == (
        schema.time,
        schema.target,
        schema.id,
        schema.static,
    )
    assert set(found.known.category) | {"weather"} == set(schema.known.category)
    # That a weather forecast is assumed cannot be seen: its columns are left among the observed.
    assert set(found.observed.names) == {*schema.known.real, "weather"}
    path = write_sample("tft225", 2_400, tmp_path / "bars.parquet")
    expected = simulated_schema()
    assert inspect_file(path).schema == expected  # the fields of the file declare it
    table = pq.read_table(path)
    pq.write_table(table.cast(pa.schema([field.remove_metadata() for field in table.schema])), path)
    bars = inspect_file(path).schema
    assert bars is not None
    assert (bars.target, bars.id) == (expected.target, expected.id)
    assert set(expected.observed.names) <= set(bars.observed.names)
    # Two days of bars do not show that a column follows from the weekday: it is left among the observed.
    assert {"minute_sin", "minute_cos", "minutes_to_close"} <= set(bars.known.names) < set(expected.known.names)
    assert bars.static == Columns(real=expected.static.real, category=("contract",))


def sure(inspection: Inspection) -> dict[str, str]:
    return {profile.name: str(proposal.confidence) for profile, proposal in inspection.columns}


def test_a_proposal_says_how_sure_it_is(write: Write, cities: Cities) -> None:
    columns = cities(72)
    columns |= {"price": columns["wind"][::-1], "strike_day": [row % 17 == 3 for row in range(144)]}
    inspection = inspect_file(write(columns))
    assert sure(inspection) == {
        "city": "likely",  # it tells series apart, but so might another column
        "time": "sure",
        "y": "likely",
        "height": "sure",
        "wind": "likely",
        "sky": "likely",
        "hour": "sure",
        "hour_sin": "sure",
        "price": "guess",
        "strike_day": "likely",
    }
    assert {row["name"]: row["confidence"] for row in inspection.to_json()["columns"]} == sure(inspection)
    named = inspect_file(write(columns), time="time", ids=["city"], target="wind")
    assert {name: sure(named)[name] for name in ("time", "city", "wind")} == dict.fromkeys(
        ("time", "city", "wind"), "sure"
    )


def test_without_a_usual_name_the_target_is_a_guess(write: Write) -> None:
    values = np.random.default_rng(0).normal(size=20)
    inspection = inspect_file(write({"step": list(range(20)), "flow": values, "depth": values + 1}))
    assert proposed(inspection) == {"step": "time", "flow": "target real", "depth": "observed real"}
    assert sure(inspection) == {"step": "guess", "flow": "guess", "depth": "likely"}


def events(rows: int, rate: int, **types: pa.DataType) -> dict[str, Any]:
    """Two series whose flags are set on the same days, one in ``rate`` of them."""
    random = np.random.default_rng(0)
    flag = random.permutation([day % rate == 0 for day in range(rows)])
    days = [datetime(2020, 1, 1) + timedelta(days=day) for day in range(rows)]
    columns = {"shop": ["a"] * rows + ["b"] * rows, "time": days * 2, "y": random.normal(size=2 * rows)}
    return columns | {name: pa.array(np.tile(flag, 2)).cast(type_) for name, type_ in types.items()}


def test_flags_are_categories_whatever_their_type_and_events_where_they_are_rare_and_shared(write: Write) -> None:
    types = {"music_fest": pa.int8(), "closed": pa.bool_(), "bank_holiday": pa.float32()}
    rare = inspect_file(write(events(50, 10, **types)))
    assert {name: proposed(rare)[name] for name in types} == dict.fromkeys(types, "known category")
    assert {name: sure(rare)[name] for name in types} == {
        "music_fest": "guess",
        "closed": "guess",
        "bank_holiday": "likely",
    }
    common = inspect_file(write(events(50, 2, **types)))
    assert {name: proposed(common)[name] for name in types} == {
        "music_fest": "observed category",
        "closed": "observed category",
        "bank_holiday": "known category",
    }


def test_a_rare_flag_of_one_series_alone_is_observed(write: Write) -> None:
    columns = events(50, 10, closed=pa.bool_())
    columns["closed"] = pa.array([bool(value) and row < 50 for row, value in enumerate(columns["closed"].to_pylist())])
    assert proposed(inspect_file(write(columns)))["closed"] == "observed category"
    alone = {name: pa.array(values)[:50] for name, values in events(50, 10, closed=pa.bool_()).items()}
    assert proposed(inspect_file(write(alone)))["closed"] == "observed category"


def test_columns_with_gaps_keep_their_roles_and_the_way_to_use_them_is_said(write: Write) -> None:
    columns = {"time": list(range(6)), "y": [0.5, None, 2.5, 1.5, 0.5, 1.0], "wind": [None, 1.5, 2.5, 1.5, 0.5, 1.0]}
    inspection = inspect_file(write(columns))
    assert proposed(inspection) == {"time": "time", "y": "target real", "wind": "observed real"}
    assert len(inspection.problems) == 1
    assert inspection.problems[0].startswith("Values are missing in y, wind: train with --missing")


def test_times_that_are_text_are_found_by_name_and_form(write: Write) -> None:
    days = [f"2024-01-{day:02}" for day in range(1, 21)]
    inspection = inspect_file(write({"note": days, "date": days, "y": np.arange(20.0) + 0.5}))
    assert proposed(inspection)["date"] == "time"
    assert sure(inspection)["date"] == "likely"


def test_the_clock_of_the_files_zone_tells_what_follows_from_the_time(write: Write) -> None:
    times = pa.array(
        [datetime(2024, 3, 20) + timedelta(hours=hour) for hour in range(24 * 20)], pa.timestamp("us", "Europe/Paris")
    )
    hours = [time.hour for time in times.to_pylist()]  # with the change of the hour on 31 March
    inspection = inspect_file(write({"time": times, "y": np.random.default_rng(0).normal(size=480), "bell": hours}))
    assert proposed(inspection)["bell"] == "known category"
    assert sure(inspection)["bell"] == "sure"


def test_declared_roles_are_taken_and_options_win_over_them(write: Write, cities: Cities, city_schema: Schema) -> None:
    table = pa.table(cities(48))
    path = write(dict(zip(table.column_names, table.columns, strict=True)))
    pq.write_table(table.cast(with_declared_roles(table.schema, city_schema)), path)
    inspection = inspect_file(path)
    assert inspection.schema == city_schema
    assert set(sure(inspection).values()) == {"sure"}
    assert inspect_file(path, target="wind").schema == city_schema.model_copy(
        update={"target": "wind", "observed": Columns(real=("y",), category=("sky",))}
    )


@pytest.mark.parametrize("width", [20, 60, 100])
def test_column_names_are_never_broken_however_narrow_the_terminal(write: Write, width: int) -> None:
    name = "average_yearly_household_income_of_the_district"
    inspection = inspect_file(write({"time": [1, 2, 3], name: [0.5, 1.5, 1.0]}))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(inspection.tables()[0], crop=False)
    assert name in console.export_text()
