"""Folders of files whose schemas differ but fit together, folders that carry values in their names, times as text."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.columns import CategoryColumn
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.reading.source import open_source
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]

PLAIN = Schema(time="t", target="y")
WITH_CATEGORY = Schema(time="t", target="y", known=Columns(category=("c",)))


def texts(panel: Panel, column: str) -> list[str]:
    place = panel.schema.group("historical").columns.index(column)
    return [panel.dictionaries[column][int(code)] for code in panel.values[:, place]]


NUMBERS = {
    "int8": pa.int8(),
    "int64": pa.int64(),
    "uint16": pa.uint16(),
    "half": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(18, 2),
    "wide decimal": pa.decimal256(50, 3),
    "dictionary": pa.dictionary(pa.int8(), pa.int32()),
    "null": pa.null(),
}
TEXTS = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "int": pa.int16(),
    "float": pa.float32(),
    "half": pa.float16(),
    "double": pa.float64(),
    "decimal": pa.decimal128(12, 0),
    "null": pa.null(),
}


def array_of(values: list[int | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_null(type_):
        return pa.nulls(len(values))
    if pa.types.is_dictionary(type_):
        return array_of(values, type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_float16(type_):
        return pa.array([None if value is None else np.float16(value) for value in values], type_)
    if pa.types.is_string_view(type_):
        return pa.array([None if value is None else str(value) for value in values], type_)
    return pa.array(values, pa.int32()).cast(type_)


VALUES = st.lists(st.integers(0, 9) | st.none(), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.tuples(VALUES, st.sampled_from(sorted(NUMBERS)), st.sampled_from(sorted(TEXTS))), max_size=3))
def test_every_mixture_of_types_gives_the_same_numbers_and_categories(
    write: Write, parts: list[tuple[list[int | None], str, str]]
) -> None:
    parts = [([1, 2], "double", "string"), *parts]
    paths, start = [], 0
    numbers: list[float | None] = []
    categories: list[str] = []
    for place, (values, number, text) in enumerate(parts):
        columns = {"t": list(range(start, start + len(values)))}
        columns |= {"y": array_of(values, NUMBERS[number]), "c": array_of(values, TEXTS[text])}
        paths.append(write(columns, f"{place}.parquet", row_group_size=2))
        start += len(values)
        numbers += [None if number == "null" else value for value in values]
        categories += ["<null>" if value is None or text == "null" else str(value) for value in values]
    panel = read_panel(paths, WITH_CATEGORY, Preparation(missing=("forward",)))
    assert [None if np.isnan(value) else value for value in panel.target.tolist()] == numbers
    assert texts(panel, "c") == categories


def test_booleans_and_their_dictionaries_are_categories(write: Write) -> None:
    flags = pa.array([True, None, False])
    panel = read_panel(write({"t": [1, 2, 3], "y": [1.0, 2.0, 3.0], "c": flags}), WITH_CATEGORY)
    assert texts(panel, "c") == ["1", "<null>", "0"]


def test_a_dictionary_may_hold_values_that_no_row_has(write: Write) -> None:
    unused = pa.DictionaryArray.from_arrays(pa.array([2, 2, None], pa.int8()), pa.array(["a", "b", "c"]))
    path = write({"t": [1, 2, 3], "y": [1.0, 2.0, 3.0], "c": unused})
    column = CategoryColumn(open_source(path), "c")
    assert column.take(unused, 0).tolist() == [0, 0, 1]
    assert column.values == ("c", "<null>")


def test_a_column_that_a_file_lacks_is_missing_there_with_a_note(write: Write) -> None:
    first = write({"t": [1, 2], "y": [1.0, 2.0], "c": ["a", "b"], "x": [5.0, 6.0]}, "a.parquet")
    second = write({"t": [3], "y": [3.0]}, "b.parquet")
    schema = Schema(time="t", target="y", observed=Columns(real=("x",)), known=Columns(category=("c",)))
    panel = read_panel([first, second], schema, Preparation(missing=("x=mean",)))
    assert texts(panel, "c") == ["a", "b", "<null>"]
    assert panel.values[:, 1].isnan().tolist() == [False, False, True]
    assert panel.notes == tuple(f"column '{name}' is read as missing in {second}, which lack it." for name in "xc")


def test_a_column_of_another_kind_in_one_file_is_refused_with_that_file(write: Write) -> None:
    first = write({"t": [1], "y": [1.0]}, "a.parquet")
    second = write({"t": [2], "y": ["1.0"]}, "b.parquet")
    with pytest.raises(DataError, match="column 'y' is string, not a number") as caught:
        read_panel([first, second], PLAIN)
    assert caught.value.where == str(second)


@pytest.mark.parametrize(
    "nested",
    [
        pytest.param(pa.array([[1], [2]]), id="list"),
        pytest.param(pa.array([{"a": 1}, {"a": 2}]), id="struct"),
        pytest.param(pa.array([[("k", 1)], [("k", 2)]], pa.map_(pa.string(), pa.int64())), id="map"),
        pytest.param(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), id="fixed-size list"),
    ],
)
@pytest.mark.parametrize("role", ["y", "c", "t"])
def test_nested_columns_are_refused_by_name_in_every_role(write: Write, nested: pa.Array, role: str) -> None:
    columns: dict[str, Any] = {"t": [1, 2], "y": [1.0, 2.0], "c": ["a", "b"], role: nested}
    with pytest.raises(DataError, match=f"column '{role}' is "):
        read_panel(write(columns), WITH_CATEGORY)


def test_a_nested_column_that_no_role_names_does_not_matter(write: Write) -> None:
    path = write({"t": [1, 2], "y": [1.0, 2.0], "deep": [{"y": [1]}, {"y": [2]}]})
    assert read_panel(path, PLAIN).target.tolist() == [1.0, 2.0]


# Folders that carry values in their names.


def test_names_of_folders_are_columns(write: Write, tmp_path: Path) -> None:
    for year in (2023, 2024):
        for city in ("A b", "C"):
            folder = f"set/year={year}/city={city.replace(' ', '%20')}"
            write({"t": [year * 10, year * 10 + 1], "y": [1.0, 2.0]}, f"{folder}/part.parquet")
    schema = Schema(time="t", target="y", id=("city",), known=Columns(real=("year",)))
    panel = read_panel(tmp_path / "set", schema)
    assert panel.series_ids == [("A b",), ("C",)]
    assert panel.values[:, 1].tolist() == [2023, 2023, 2024, 2024] * 2


def test_an_empty_partition_is_null_and_a_column_of_the_file_itself_wins(write: Write, tmp_path: Path) -> None:
    write({"t": [1], "y": [1.0]}, "set/c=__HIVE_DEFAULT_PARTITION__/a.parquet")
    write({"t": [2], "y": [2.0]}, "set/c=x/b.parquet")
    write({"t": [3], "y": [3.0], "c": ["own"]}, "set/c=y/c.parquet")
    assert texts(read_panel(tmp_path / "set", WITH_CATEGORY), "c") == ["<null>", "x", "own"]


def test_numbers_in_the_names_of_some_folders_only_are_text(write: Write, tmp_path: Path) -> None:
    write({"t": [1], "y": [1.0]}, "set/c=007/a.parquet")
    write({"t": [2], "y": [2.0]}, "set/c=x/b.parquet")
    assert texts(read_panel(tmp_path / "set", WITH_CATEGORY), "c") == ["007", "x"]


def test_the_time_may_be_the_name_of_a_folder(write: Write, tmp_path: Path) -> None:
    for day in ("2024-02-29", "2024-02-28"):
        write({"y": [float(day[-1])]}, f"set/t={day}/a.parquet")
    panel = read_panel(tmp_path / "set", PLAIN)
    assert panel.time_kind is TimeKind.DATE
    assert panel.target.tolist() == [8.0, 9.0]


def test_files_and_folders_named_one_by_one_have_such_columns_too(write: Write) -> None:
    first = write({"t": [1], "y": [1.0]}, "set/c=x/a.parquet")
    second = write({"t": [2], "y": [2.0]}, "set/c=y/a.parquet")
    for named in ([first, second], [first.parent, second.parent], [first, second.parent]):
        assert texts(read_panel(named, WITH_CATEGORY), "c") == ["x", "y"]
    assert texts(read_panel(first, WITH_CATEGORY), "c") == ["x"]


# Times.

MOMENT = datetime(2021, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+05:30"])
def test_timestamps_of_every_unit_and_zone_are_the_same_instants(write: Write, unit: str, zone: str | None) -> None:
    moments = [MOMENT.replace(tzinfo=UTC) + timedelta(hours=hour) for hour in range(3)]
    naive = pa.array([moment.replace(tzinfo=None) for moment in moments], pa.timestamp(unit))
    times = naive if zone is None else naive.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))
    panel = read_panel(write({"t": times, "y": [1.0, 2.0, 3.0]}), PLAIN)
    assert panel.time_zone == zone
    assert panel.time.tolist() == [int(moment.timestamp()) * 1_000_000_000 for moment in moments]


@pytest.mark.parametrize("zones", [("Europe/Berlin", "UTC"), ("UTC", "Europe/Berlin"), ("+00:00", "Europe/Berlin")])
def test_of_files_in_utc_and_in_a_zone_the_zone_counts_in_any_order(write: Write, zones: tuple[str, ...]) -> None:
    hours = [MOMENT.replace(tzinfo=UTC) + timedelta(hours=hour) for hour in range(2)]
    paths = [
        write({"t": pa.array([hour], pa.timestamp("s", zone)), "y": [float(place)]}, f"{place}.parquet")
        for place, (hour, zone) in enumerate(zip(hours, zones, strict=True))
    ]
    panel = read_panel(paths, PLAIN)
    assert panel.time_zone == "Europe/Berlin"
    assert panel.target.tolist() == [0.0, 1.0]
    assert panel.time.diff().tolist() == [3_600_000_000_000]


def test_times_without_a_zone_are_those_in_utc(write: Write) -> None:
    types = (pa.timestamp("us"), pa.timestamp("ms", tz="Etc/UTC"), pa.date32())
    for place, type_ in enumerate(types):
        write({"t": pa.array([place * 86_400]).cast(pa.timestamp("s")).cast(type_), "y": [1.0]}, f"set/{place}.parquet")
    panel = read_panel(write({"t": [3], "y": [1.0]}, "other.parquet").parent / "set", PLAIN)
    assert panel.time_kind is TimeKind.TIMESTAMP
    assert panel.time.diff().tolist() == [86_400_000_000_000] * 2


@pytest.mark.parametrize("type_", [pa.date32(), pa.date64()], ids=str)
def test_dates_of_both_widths_are_the_same_days(write: Write, type_: pa.DataType) -> None:
    panel = read_panel(write({"t": pa.array([date(2021, 1, 1), date(2021, 1, 2)], type_), "y": [1.0, 2.0]}), PLAIN)
    assert panel.time_kind is TimeKind.DATE
    assert panel.time_text(int(panel.time[1])) == "2021-01-02"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moments=st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2260, 1, 1)), min_size=1, max_size=6, unique=True),
    offset=st.none() | st.integers(-14 * 60, 14 * 60),
    separator=st.sampled_from("T "),
    dictionary=st.booleans(),
)
@example(moments=[datetime(1707, 1, 1, 0, 0, 0, 1), datetime(2000, 1, 1)], offset=None, separator="T", dictionary=False)
def test_text_in_iso_8601_is_read_as_the_time_that_it_is(
    write: Write, moments: list[datetime], offset: int | None, separator: str, dictionary: bool
) -> None:
    zone = None if offset is None else timezone(timedelta(minutes=offset))
    written = pa.array([moment.replace(tzinfo=zone).isoformat(separator) for moment in moments])
    columns = {"t": written.dictionary_encode() if dictionary else written, "y": np.arange(float(len(moments)))}
    panel = read_panel(write(columns, row_group_size=2), PLAIN)
    expected = sorted(moment.replace(tzinfo=zone or UTC) for moment in moments)
    found = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time // 1000) for time in panel.time.tolist()]
    assert found == expected
    assert panel.time_kind is TimeKind.TIMESTAMP
    assert panel.time_zone == (None if zone is None else "UTC")


def test_days_as_text_are_dates(write: Write) -> None:
    panel = read_panel(write({"t": ["2021-01-02", "2021-01-01"], "y": [2.0, 1.0]}), PLAIN)
    assert panel.time_kind is TimeKind.DATE
    assert panel.target.tolist() == [1.0, 2.0]


def test_a_null_among_times_as_text_is_refused_with_its_row(write: Write) -> None:
    with pytest.raises(DataError, match=r"time column 't' is null in row 1 \(counted from 0\)"):
        read_panel(write({"t": ["2021-01-02", None], "y": [2.0, 1.0]}), PLAIN)
