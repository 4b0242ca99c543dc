"""Files and columns that cannot be read are refused by name, row and series."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from qat_tft.data.reading.parquet import read_panel
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]
PLAIN = Schema(time="time", target="y")


def message(path: Any, schema: Schema, kind: type[Exception] = DataError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        read_panel(path, schema, **options)
    return str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    assert message("/nowhere/x.parquet", PLAIN) == "/nowhere/x.parquet: there is no such file. Check the path."


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_text("time,y\n1,2\n")
    assert "data.parquet: this is not a complete Parquet file" in message(path, PLAIN)


@pytest.mark.parametrize(("name", "kind"), [("data.csv", "a CSV file"), ("data.JSON", "a JSON file")])
def test_a_file_of_another_kind_is_called_that(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("time,y\n1,2\n")
    said = message(tmp_path / name, PLAIN)
    assert f"{name}: this is {kind} and no Parquet file. Allowed: Parquet" in said


def test_a_truncated_file_is_named(write: Write) -> None:
    path = write({"time": list(range(1000)), "y": np.random.default_rng(0).normal(size=1000)})
    path.write_bytes(path.read_bytes()[:-100])
    assert "data.parquet: this is not a complete Parquet file" in message(path, PLAIN)


def test_a_file_with_a_damaged_page_is_named(write: Write) -> None:
    path = write({"time": list(range(1000)), "y": np.random.default_rng(0).normal(size=1000)}, compression="zstd")
    content = bytearray(path.read_bytes())
    content[40 : len(content) // 2] = bytes(len(content) // 2 - 40)
    path.write_bytes(content)
    assert "data.parquet: " in message(path, PLAIN)


def test_an_empty_folder_and_an_empty_list_are_refused(tmp_path: Path) -> None:
    assert "the folder holds no .parquet file" in message(tmp_path, PLAIN)
    assert "the list of Parquet files is empty" in message([], PLAIN)


def test_a_file_without_rows_is_refused(write: Write) -> None:
    path = write({"time": pa.array([], pa.int64()), "y": pa.array([], pa.float64())})
    assert "there are no rows" in message(path, PLAIN)


def test_a_missing_column_is_refused_with_close_matches(write: Write) -> None:
    path = write({"time": [1], "Temperature": [1.0], "wind": [2.0]})
    text = message(path, Schema(time="time", target="temperature"), SchemaError)
    assert "there is no column 'temperature'" in text
    assert "Allowed: 'time', 'Temperature', 'wind'" in text
    assert "Did you mean 'Temperature'?" in text


def test_a_time_column_that_one_of_several_files_lacks_is_refused_with_that_file(write: Write) -> None:
    paths = [write({"time": [1], "y": [1.0]}, "a.parquet"), write({"y": [2.0]}, "b.parquet")]
    text = message(paths, PLAIN, SchemaError)
    assert "b.parquet: there is no column 'time'" in text


def test_rows_without_a_value_because_their_file_lacks_the_column_are_refused_with_that_file(write: Write) -> None:
    paths = [write({"time": [1], "y": [1.0]}, "a.parquet"), write({"time": [2]}, "b.parquet")]
    text = message(paths, PLAIN)
    assert f"column 'y' is null or NaN in row 0 of {paths[1]}" in text
    assert f"{paths[1]} lacks the column" in text


@pytest.mark.parametrize(
    ("target", "part"),
    [
        pytest.param(pa.array(["1", "2"]), "column 'y' is string, not a number", id="text"),
        pytest.param(pa.array([datetime(2020, 1, 1)] * 2), "days since a start", id="timestamp"),
        pytest.param(pa.array([[1.0], [2.0]]), "column 'y' is list<", id="list"),
        pytest.param(pa.array([{"a": 1}, {"a": 2}]), "write each part as its own column", id="struct"),
        pytest.param(pa.array([b"1", b"2"]), "column 'y' is binary", id="binary"),
    ],
)
def test_a_target_that_is_no_number_is_refused_by_its_type(write: Write, target: pa.Array, part: str) -> None:
    text = message(write({"time": [1, 2], "y": target}), PLAIN)
    assert part in text
    assert "column 'y'" in text


@pytest.mark.parametrize(
    ("category", "part"),
    [
        pytest.param(pa.array([["a"], ["b"]]), "column 'c' is list<", id="list"),
        pytest.param(pa.array([0.5, 1.0]), "'c' is not a whole number in row 0 (counted from 0)", id="fraction"),
        pytest.param(pa.array([datetime(2020, 1, 1)] * 2), "which cannot be a category", id="timestamp"),
    ],
)
def test_a_category_of_an_unsuitable_type_is_refused(write: Write, category: pa.Array, part: str) -> None:
    schema = Schema(time="time", target="y", known=Columns(category=("c",)))
    assert part in message(write({"time": [1, 2], "y": [1.0, 2.0], "c": category}), schema)


@pytest.mark.parametrize(
    ("time", "part"),
    [
        pytest.param(pa.array(["2020-01-01", "yesterday"]), "'yesterday' in row 1 (counted from 0)", id="text"),
        pytest.param(pa.array(["2020-01-01", "2020-1-2"]), "'2020-1-2' in row 1 (counted from 0)", id="short month"),
        pytest.param(pa.array(["2020-02-01", "2020-02-30"]), "'2020-02-30' in row 1 (counted", id="no such day"),
        pytest.param(pa.array(["2020-01-01T05:00", "2020-01-01T05:00Z"]), "all with a time zone or none", id="zones"),
        pytest.param(pa.array([1.5, 2.5]), "time column 'time' is double", id="float"),
        pytest.param(pa.array([1, None]), "time column 'time' is null in row 1", id="null"),
        pytest.param(
            pa.array([datetime(2020, 1, 1), datetime(9999, 12, 31)], pa.timestamp("us")),
            "placeholder dates such as 9999-12-31",
            id="beyond nanoseconds",
        ),
    ],
)
def test_a_time_column_that_cannot_order_rows_is_refused(write: Write, time: pa.Array, part: str) -> None:
    assert part in message(write({"time": time, "y": [1.0, 2.0]}), PLAIN)


@pytest.mark.parametrize(
    ("types", "part"),
    [
        pytest.param(
            (pa.timestamp("us"), pa.timestamp("us", tz="Asia/Tokyo")),
            "has no time zone in one file and is in Asia/Tokyo",
            id="with and without a zone",
        ),
        pytest.param(
            (pa.timestamp("s", tz="Europe/Berlin"), pa.timestamp("s", tz="Asia/Tokyo")),
            "is in Asia/Tokyo in one file and in Europe/Berlin in another",
            id="two zones",
        ),
        pytest.param(
            (pa.timestamp("s", tz="Nowhere/Land"),) * 2, "'Nowhere/Land' of the time column is unknown", id="none"
        ),
        pytest.param((pa.timestamp("s"), pa.int64()), "Write all files with the same time type", id="times and steps"),
    ],
)
def test_files_whose_times_have_no_common_meaning_are_refused(write: Write, types: tuple, part: str) -> None:
    whens = pa.array([0, 3600]), pa.array([7200])
    paths = [
        write({"time": when.cast(type_), "y": [1.0] * len(when)}, f"{place}.parquet")
        for place, (when, type_) in enumerate(zip(whens, types, strict=True))
    ]
    assert part in message(paths, PLAIN)
    assert part in message(paths[::-1], PLAIN)


@pytest.mark.parametrize("column", ["y", "wind", "hour_sin", "height"])
@pytest.mark.parametrize("value", [pytest.param(None, id="null"), pytest.param(np.nan, id="NaN")])
def test_a_gap_in_any_real_column_is_refused_with_column_row_and_series(
    write: Write, cities: Cities, city_schema: Schema, column: str, value: float | None
) -> None:
    columns = cities(6)
    columns[column] = pa.array([value if row in (8, 9) else x for row, x in enumerate(columns[column])])
    text = message(write(columns), city_schema)
    assert f"column '{column}' is null or NaN in rows 8, 9 (counted from 0), first in city=B" in text
    assert "leave the column out of the schema" in text


def test_rows_are_named_as_they_stand_in_the_file_not_as_sorted(write: Write) -> None:
    path = write({"time": [3, 1, 2], "y": [1.0, None, 2.0]})
    assert "in row 1 (counted from 0)" in message(path, PLAIN)


def test_rows_of_several_files_are_named_with_their_file(write: Write) -> None:
    paths = [write({"time": [1, 2], "y": [1.0, 2.0]}, "a.parquet"), write({"time": [3], "y": [np.nan]}, "b.parquet")]
    assert f"row 0 of {paths[1]}" in message(paths, PLAIN)


def test_an_infinity_is_refused_with_column_and_row(write: Write) -> None:
    path = write({"time": [1, 2], "y": [1.0, -np.inf]})
    assert "column 'y' is infinite in row 1" in message(path, PLAIN)


def test_a_column_of_nulls_only_is_refused_also_when_its_type_is_null_in_one_file(write: Write) -> None:
    assert "column 'y' is null in every row" in message(write({"time": [1], "y": pa.nulls(1)}), PLAIN)
    paths = [
        write({"time": [1], "y": [1.0]}, "a.parquet"),
        write({"time": [2], "y": pa.nulls(1)}, "b.parquet"),
    ]
    assert "column 'y' is null or NaN in row 0 of" in message(paths, PLAIN)


def test_a_series_and_time_that_occurs_twice_is_refused_with_both_rows(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = cities(6)
    columns["time"][9] = columns["time"][7]
    text = message(write(columns), city_schema)
    assert "1 row repeats the series and time of another: city=B at 2020-01-01T01:00:00 in rows 7, 9" in text
    assert "name another column that distinguishes them as id" in text


def test_interleaved_series_without_an_id_get_the_hint_to_name_one(write: Write) -> None:
    text = message(write({"time": [1, 1, 2, 2], "y": [1.0] * 4}), PLAIN)
    assert "If they belong to several series, name their column as id" in text


def test_a_null_in_an_id_column_is_refused(write: Write) -> None:
    path = write({"time": [1, 2], "y": [1.0, 2.0], "shop": ["a", None]})
    assert "id column 'shop' is null in row 1" in message(path, Schema(time="time", target="y", id=("shop",)))


def test_a_static_column_that_changes_is_refused_with_series_and_row(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = cities(6)
    columns["height"][8] = 7.0
    text = message(write(columns), city_schema)
    assert "static column 'height' changes within city=B, in row 8" in text


def test_a_folder_without_access_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)  # the tests may run as root, who may read anything
    assert "no permission to read it" in message(tmp_path, PLAIN)


# Precision.


def footer_of(content: bytes) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def test_a_footer_that_says_another_number_of_rows_is_refused_before_anything_is_allocated(write: Write) -> None:
    path = write({"time": list(range(1000)), "y": [1.0] * 1000})
    content = path.read_bytes()
    begin = footer_of(content)
    of_file = content.index(b"\xd0\x0f", begin)  # 1000 as Thrift writes it
    path.write_bytes(content[:of_file] + b"\xfe\x7f" + content[of_file + 2 :])
    assert "its footer says 8,191 rows and it holds 1,000" in message(path, PLAIN)


def test_a_column_name_that_is_no_text_is_refused(write: Write) -> None:
    path = write({"time": list(range(9)), "load": [1.0] * 9})
    path.write_bytes(path.read_bytes().replace(b"\x04load", b"\x04lo\xff\xfe"))
    assert "this is a damaged Parquet file: " in message(path, PLAIN)


def test_texts_that_are_no_text_are_refused(write: Write) -> None:
    broken = pa.Array.from_buffers(pa.string(), 9, pa.array([b"\xff\xfe"] * 9, pa.binary()).buffers())
    path = write({"time": list(range(9)), "y": [1.0] * 9, "city": broken})
    schema = Schema(time="time", target="y", static=Columns(category=("city",)))
    assert "UTF8" in message(path, schema)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.parquet")
    assert "not a regular file" in message(tmp_path / "data.parquet", PLAIN)
