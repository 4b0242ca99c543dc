"""Reading: every accepted type, any order of rows, and one message for each thing that cannot be read."""

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qat_tft.data.panel import Panel
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]
PLAIN = Schema(time="time", target="y")


def message(path: Any, schema: Schema, kind: type[Exception] = DataError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        read_panel(path, schema, **options)
    return str(caught.value)


def naive_panel(columns: dict[str, Any], schema: Schema) -> dict[tuple[str, ...], list[tuple[Any, ...]]]:
    """Series id -> rows (time, historical real values, historical category texts), in the order of time."""
    history = schema.group("historical")
    series: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for row in range(len(columns["time"])):
        ids = tuple(str(columns[column][row]) for column in schema.id)
        real = tuple(np.float32(columns[column][row]) for column in history.real)
        category = tuple(str(columns[column][row]) for column in history.category)
        series.setdefault(ids, []).append((columns["time"][row], real, category))
    return {ids: sorted(rows, key=lambda row: row[0]) for ids, rows in sorted(series.items())}


def assert_equals_naive(panel: Panel, columns: dict[str, Any]) -> None:
    expected = naive_panel(columns, panel.schema)
    history = panel.schema.group("historical")
    assert panel.series_ids == list(expected)
    for series, rows in enumerate(expected.values()):
        begin, end = panel.series_start[series : series + 2].tolist()
        assert end - begin == len(rows)
        for place, (time, real, category) in zip(range(begin, end), rows, strict=True):
            assert panel.time_text(int(panel.time[place])) == time.isoformat()
            assert tuple(panel.values[place, : len(real)].numpy()) == real
            texts = [
                panel.dictionaries[column][int(panel.values[place, len(real) + at])]
                for at, column in enumerate(history.category)
            ]
            assert tuple(texts) == category


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(12)), files=st.integers(1, 3))
def test_rows_in_any_order_and_in_any_number_of_files_give_the_same_sorted_panel(
    write: Write, cities: Cities, city_schema: Schema, order: list[int], files: int
) -> None:
    columns = cities(6)
    shuffled = {name: [values[row] for row in order] for name, values in columns.items()}
    paths = [
        write({name: values[part::files] for name, values in shuffled.items()}, f"{part}.parquet")
        for part in range(files)
    ]
    assert_equals_naive(read_panel(paths, city_schema), columns)


def test_a_folder_stands_for_all_parquet_files_below_it(write: Write, cities: Cities, city_schema: Schema) -> None:
    columns = cities(6)
    first = write({name: values[:6] for name, values in columns.items()}, "set/a.parquet")
    write({name: values[6:] for name, values in columns.items()}, "set/deep/b.parquet")
    write({"unrelated": [1]}, "set/_ignored.parquet")
    assert_equals_naive(read_panel(first.parent, city_schema), columns)


def test_static_values_stand_once_per_series(write: Write, cities: Cities, city_schema: Schema) -> None:
    panel = read_panel(write(cities(6)), city_schema)
    assert panel.static[:, 0].tolist() == [100.0, 250.0]
    assert [panel.dictionaries["city"][int(code)] for code in panel.static[:, 1]] == ["A", "B"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(pa.array([1, 2, 3], pa.int8()), [1, 2, 3], id="int8"),
        pytest.param(pa.array([1, 2, 3], pa.uint64()), [1, 2, 3], id="uint64"),
        pytest.param(pa.array(np.array([0.5, 1, 2], np.float16)), [0.5, 1, 2], id="half"),
        pytest.param(pa.array([0.5, 1, 2], pa.float64()), [0.5, 1, 2], id="double"),
        pytest.param(pa.array([True, False, True]), [1, 0, 1], id="boolean"),
        pytest.param(pa.array([decimal.Decimal("1.50")] * 3), [1.5] * 3, id="decimal"),
        pytest.param(pa.array([7, 8, 7]).dictionary_encode(), [7, 8, 7], id="dictionary of numbers"),
    ],
)
def test_a_real_column_takes_every_type_of_number(write: Write, values: pa.Array, expected: list[float]) -> None:
    panel = read_panel(write({"time": [1, 2, 3], "y": values}), PLAIN)
    assert panel.target.tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(pa.array(["b", "a", None]), ["b", "a", "<null>"], id="string with a null"),
        pytest.param(pa.array(["b", "a", "b"], pa.large_string()), ["b", "a", "b"], id="large string"),
        pytest.param(pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"], id="dictionary"),
        pytest.param(pa.array([3, -1, 3]), ["3", "-1", "3"], id="integer"),
        pytest.param(pa.array([3.0, None, 12.0]), ["3", "<null>", "12"], id="whole floats with a null"),
        pytest.param(pa.array([3.0, np.nan, 12.0]), ["3", "<null>", "12"], id="whole floats with a NaN"),
        pytest.param(pa.array([True, False, True]), ["1", "0", "1"], id="boolean"),
        pytest.param(pa.array([date(2020, 1, 2)] * 3), ["2020-01-02"] * 3, id="date"),
        pytest.param(pa.array([3_000_000] * 3, pa.int32()).cast(pa.date32()), ["10183-09-21"] * 3, id="distant date"),
        pytest.param(pa.nulls(3), ["<null>"] * 3, id="nulls only"),
    ],
)
def test_a_category_column_takes_text_whole_numbers_booleans_and_dates(
    write: Write, values: pa.Array, expected: list[str]
) -> None:
    schema = Schema(time="time", target="y", observed=Columns(category=("c",)))
    panel = read_panel(write({"time": [1, 2, 3], "y": [1.0, 2, 3], "c": values}), schema)
    assert [panel.dictionaries["c"][int(code)] for code in panel.values[:, 1]] == expected


@pytest.mark.parametrize(
    ("times", "kind", "texts"),
    [
        pytest.param(pa.array([5, 7], pa.int32()), TimeKind.STEP, ["5", "7"], id="steps"),
        pytest.param(
            pa.array([date(2020, 2, 28), date(2020, 2, 29)]), TimeKind.DATE, ["2020-02-28", "2020-02-29"], id="dates"
        ),
        pytest.param(
            pa.array([datetime(2020, 1, 1, 5), datetime(2020, 1, 1, 6)], pa.timestamp("ms")),
            TimeKind.TIMESTAMP,
            ["2020-01-01T05:00:00", "2020-01-01T06:00:00"],
            id="timestamps",
        ),
        pytest.param(
            pa.array(
                [datetime(2020, 1, 1, 5, tzinfo=UTC), datetime(2020, 1, 1, 6, tzinfo=UTC)],
                pa.timestamp("us", tz="Europe/Berlin"),
            ),
            TimeKind.TIMESTAMP,
            ["2020-01-01T05:00:00", "2020-01-01T06:00:00"],
            id="timestamps with a zone, in UTC",
        ),
    ],
)
def test_time_may_be_steps_dates_or_timestamps(write: Write, times: pa.Array, kind: TimeKind, texts: list[str]) -> None:
    panel = read_panel(write({"time": times, "y": [1.0, 2.0]}), PLAIN)
    assert panel.time_kind is kind
    assert [panel.time_text(int(time)) for time in panel.time] == texts
    assert [panel.parse_time(text) for text in texts] == panel.time.tolist()


def test_files_may_differ_in_the_width_of_numbers_and_the_unit_of_time(write: Write) -> None:
    when = datetime(2020, 1, 1)
    first = write({"time": pa.array([when], pa.timestamp("s")), "y": pa.array([1], pa.int8())}, "a.parquet")
    later = pa.array([when + timedelta(hours=1)], pa.timestamp("ns"))
    second = write({"time": later, "y": pa.array([2.5])}, "b.parquet")
    panel = read_panel([first, second], PLAIN)
    assert panel.target.tolist() == [1.0, 2.5]
    assert int(panel.time.diff()) == 3_600_000_000_000


# What is refused.


def test_a_column_that_float32_would_flatten_is_refused_by_name(write: Write) -> None:
    start = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1e9)
    stamps = [start + minute * 60_000_000_000 for minute in range(60)]
    schema = Schema(time="time", target="y", known=Columns(real=("epoch",)))
    text = message(write({"time": list(range(60)), "y": np.arange(60.0), "epoch": stamps}), schema)
    assert "column 'epoch' spreads over 3.54e+12 at a magnitude of 1.7e+18" in text
    assert "Subtract a constant" in text


def test_a_column_that_float32_keeps_coarsely_is_noted_by_name(write: Write) -> None:
    values = 1_000_000 + np.random.default_rng(0).normal(size=100) * 100
    panel = read_panel(write({"time": list(range(100)), "y": values}), PLAIN)
    assert len(panel.notes) == 1
    assert panel.notes[0].startswith("column 'y' spreads over")


def test_large_whole_numbers_that_float32_holds_exactly_pass_without_a_note(write: Write) -> None:
    panel = read_panel(write({"time": [1, 2, 3], "y": [16_000_001, 16_000_002, 16_000_003]}), PLAIN)
    assert panel.notes == ()
    assert panel.target.tolist() == [16_000_001, 16_000_002, 16_000_003]


def test_a_number_too_large_for_float32_is_refused(write: Write) -> None:
    assert "too large for float32" in message(write({"time": [1, 2], "y": [1.0, 1e39]}), PLAIN)


# Rows to forecast.


def test_the_last_rows_may_lack_target_and_observed_columns_only_when_asked(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = cities(6)
    for column in ("y", "wind"):
        columns[column] = pa.array([None if row in (4, 5, 11) else x for row, x in enumerate(columns[column])])
    path = write(columns)
    assert "is null or NaN in rows 4, 5, 11" in message(path, city_schema)
    panel = read_panel(path, city_schema, checked=False)
    assert torch.isnan(panel.target).nonzero().flatten().tolist() == [4, 5, 11]


def test_future_rows_in_a_file_of_their_own_need_no_static_columns(write: Write) -> None:
    schema = Schema(
        time="time",
        target="y",
        id=("id",),
        static=Columns(real=("size",), category=("kind",)),
        known=Columns(real=("k",)),
    )
    past = {"id": ["a", "b"] * 2, "time": [1, 1, 2, 2], "y": [1.0] * 4, "size": [3.0, 4.0] * 2, "kind": ["x", "z"] * 2}
    past_path = write({**past, "k": [5.0] * 4}, "past.parquet")
    future_path = write({"id": ["a", "b", "a"], "time": [3, 3, 4], "k": [6.0, 7.0, 8.0]}, "future.parquet")
    for paths in ([past_path, future_path], [future_path, past_path]):
        panel = read_panel(paths, schema, checked=False)
        kinds = [panel.dictionaries["kind"][int(code)] for code in panel.static[:, 1]]
        assert (panel.static[:, 0].tolist(), kinds) == ([3.0, 4.0], ["x", "z"])
        assert panel.values[:, 1].tolist() == [5.0, 5.0, 6.0, 8.0, 5.0, 5.0, 7.0]
        assert torch.isnan(panel.target).tolist() == [False, False, True, True, False, False, True]
    with pytest.raises(DataError, match="column 'size' is null or NaN"):
        read_panel([past_path, future_path], schema)


def test_a_column_name_with_a_dot_is_no_nested_path(write: Write) -> None:
    path = write({"time": [1, 2], "a.y": [1.0, 2.0], "a": [{"y": 5}, {"y": 6}]})
    assert read_panel(path, Schema(time="time", target="a.y")).target.tolist() == [1.0, 2.0]


def test_reading_does_not_depend_on_row_groups(write: Write, cities: Cities, city_schema: Schema) -> None:
    columns = cities(12)
    path = write(columns, row_group_size=5)
    assert pq.read_metadata(path).num_row_groups > 1
    assert_equals_naive(read_panel(path, city_schema), columns)
