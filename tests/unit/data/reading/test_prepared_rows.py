"""Duplicates and gaps are handled as declared: compared with dictionaries of rows, however the files are cut."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.windows import Windows
from qat_tft.errors import DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]
Row = tuple[str, int, float | None, str | None]  # series, time, target, category

SCHEMA = Schema(time="t", target="y", id=("s",), observed=Columns(category=("c",)))
ROUNDING = 1e-5  # of a mean of float32 values of order 1
FUNCTION_SCOPED = [HealthCheck.function_scoped_fixture]

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "cc"]),
        st.integers(0, 12),
        st.floats(-5, 5, width=32, allow_subnormal=False) | st.none(),
        st.sampled_from(["u", "v", None]),
    ),
    min_size=1,
    max_size=25,
)


def written(write: Write, rows: list[Row], files: int = 1) -> list[Path]:
    paths = []
    for part in range(min(files, len(rows))):
        series, times, targets, categories = zip(*rows[part::files], strict=True)
        columns = {
            "s": series,
            "t": times,
            "y": pa.array(targets, pa.float64()),
            "c": pa.array(categories, pa.string()),
        }
        paths.append(write(columns, f"{part}.parquet", row_group_size=3))
    return paths


def in_file_order(rows: list[Row], files: int) -> list[Row]:
    return [row for part in range(files) for row in rows[part::files]]


def read(write: Write, rows: list[Row], files: int = 1, **policies: Any) -> Panel:
    return read_panel(written(write, rows, files), SCHEMA, Preparation(missing=("forward",), **policies))


def as_rows(panel: Panel) -> dict[tuple[str, int], tuple[float | None, str]]:
    found = {}
    for row in range(panel.rows):
        (series,) = panel.series_ids[int(panel.series_at(torch.tensor([row])))]
        target = float(panel.target[row])
        category = panel.dictionaries["c"][int(panel.values[row, 1])]
        found[series, int(panel.time[row])] = (None if np.isnan(target) else target, category)
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=FUNCTION_SCOPED)
@given(rows=ROWS, files=st.integers(1, 3), policy=st.sampled_from(["last", "mean"]))
def test_duplicates_become_one_row_by_the_declared_policy(
    write: Write, rows: list[Row], files: int, policy: str
) -> None:
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in in_file_order(rows, files):
        groups.setdefault(row[:2], []).append(row)
    panel = read(write, rows, files, duplicates=policy)
    found = as_rows(panel)
    assert list(found) == sorted(groups)
    for key, group in groups.items():
        values = [row[2] for row in group if row[2] is not None]
        last = [row for row in group if row[2] is not None or not values][-1] if policy == "last" else group[-1]
        expected = last[2] if policy == "last" else float(np.mean(values)) if values else None
        target, category = found[key]
        assert category == (last[3] or "<null>")
        assert target == (None if expected is None else pytest.approx(expected, abs=ROUNDING))
    repeated = len(rows) - len(groups)
    noted = [note for note in panel.notes if "repeat" in note]
    assert bool(noted) == bool(repeated)
    count = f"{repeated} rows repeat" if repeated > 1 else "1 row repeats"
    assert not noted or noted[0].startswith(f"{count} the series and time of another")


def unique(rows: list[Row]) -> list[Row]:
    return list({row[:2]: row for row in rows}.values())


@settings(max_examples=60, deadline=None, suppress_health_check=FUNCTION_SCOPED)
@given(rows=ROWS.map(unique))
def test_filling_inserts_a_row_for_every_step_between_the_first_and_last_of_a_series(
    write: Write, rows: list[Row]
) -> None:
    preparation = {"step": ("duration", 1)}  # found in training data that are not these
    found = as_rows(read(write, rows, gaps="fill", **preparation))
    expected = {row[:2]: (row[2], row[3] or "<null>") for row in rows}
    for series in {row[0] for row in rows}:
        times = [row[1] for row in rows if row[0] == series]
        for time in range(min(times), max(times) + 1):
            expected.setdefault((series, time), (None, "<null>"))
    assert list(found) == sorted(expected)
    assert found == expected


@settings(max_examples=60, deadline=None, suppress_health_check=FUNCTION_SCOPED)
@given(rows=ROWS.map(unique), history=st.integers(1, 3), horizon=st.integers(1, 2))
def test_under_split_no_window_spans_a_gap_and_every_window_without_one_is_there(
    write: Write, rows: list[Row], history: int, horizon: int
) -> None:
    rows = [(*row[:2], row[2] or 1.0, "u") for row in rows]
    preparation = Preparation(gaps="split", step=("duration", 1))
    panel = read_panel(written(write, rows), SCHEMA, preparation)
    times = {series: {row[1] for row in rows if row[0] == series} for series in ["a", "b", "cc"]}
    length = history + horizon
    expected = {
        (series, first)
        for series, there in times.items()
        for first in there
        if all(first + step in there for step in range(length))
    }
    panel = dataclasses.replace(panel, encoded=True)  # categories are not what this is about
    try:
        windows = Windows(panel, history=history, horizon=horizon)
    except DataError:
        assert not expected
        return
    targets = windows.target_rows(range(len(windows)))
    series = [panel.series_ids[place][0] for place in windows.series_of(range(len(windows))).tolist()]
    firsts = (panel.time[targets[:, 0] - history]).tolist()
    assert sorted(zip(series, firsts, strict=True)) == sorted(expected)
    for first, row in zip(firsts, targets.tolist(), strict=True):
        assert panel.time[row].tolist() == [first + history + step for step in range(horizon)]


HOURLY = [("a", time, 1.0, "u") for time in (0, 1, 2, 3, 7, 8, 9, 20, 21)]


def test_gaps_are_counted_and_the_largest_named_where_rows_are_taken_as_steps(write: Write) -> None:
    panel = read(write, HOURLY)
    assert panel.rows == 9
    assert panel.notes == (
        "the time step is 1, and 2 gaps leave out 13 steps, the largest 10 steps until 20 in s=a; "
        "the next row is taken for the next step (data.gaps = ignore).",
    )


def test_gaps_are_refused_where_that_is_declared(write: Write) -> None:
    with pytest.raises(DataError, match="2 gaps leave out 13 steps, the largest 10 steps until 20 in s=a") as caught:
        read(write, HOURLY, gaps="error")
    assert "accept the gaps with --gaps ignore, split or fill" in str(caught.value)


def test_rows_off_the_step_are_named_and_gaps_there_cannot_be_filled(write: Write) -> None:
    rows = [("a", time, 1.0, "u") for time in (0, 10, 20, 25, 30, 40)]
    assert "2 rows lie off it, first 25 in s=a" in read(write, rows).notes[0]
    with pytest.raises(DataError, match="cannot be filled where rows are off the time step"):
        read(write, rows, gaps="fill")


def test_a_single_far_row_does_not_fill_the_disk(write: Write) -> None:
    rows = [("a", time, 1.0, "u") for time in (0, 1, 2, 1_000_000_000)]
    with pytest.raises(DataError, match=r"999,999,997 steps.*too many rows to insert.*with --gaps split"):
        read(write, rows, gaps="fill")


def test_inserted_rows_need_a_policy_for_missing_values(write: Write) -> None:
    with pytest.raises(DataError, match=r"'y' has no value in the rows that data.gaps = fill inserts, first in s=a"):
        read_panel(written(write, HOURLY), SCHEMA, Preparation(gaps="fill"))


def test_the_step_of_the_training_data_is_kept_for_files_that_would_show_another(write: Write) -> None:
    trained = read(write, HOURLY, gaps="split").preparation
    assert trained.step == ("duration", 1)
    sparse = read_panel(written(write, [("a", time, 1.0, "u") for time in (0, 2, 4)]), SCHEMA, trained)
    assert sparse.stretches.tolist() == [0, 1, 2, 3]


def test_calendar_columns_of_inserted_rows_are_those_of_their_times(write: Write) -> None:
    hours = np.array(["2020-01-01T00", "2020-01-01T01", "2020-01-01T02", "2020-01-01T05"], "datetime64[ms]")
    path = write({"t": hours, "y": [1.0, 2.0, 3.0, 4.0]})
    preparation = Preparation(gaps="fill", missing=("forward",), calendar=("hour:category",))
    panel = read_panel(path, Schema(time="t", target="y"), preparation)
    names = panel.dictionaries["calendar.hour"]
    assert [names[int(code)] for code in panel.values[:, 1]] == ["0", "1", "2", "3", "4", "5"]
    assert panel.target.isnan().tolist() == [False, False, False, True, True, False]
