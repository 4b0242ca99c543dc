"""Data that cannot be used, of every kind: exit code 2, one message that says what and where, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 60
START = datetime(2024, 1, 1)
HOURS = [START + timedelta(hours=row // 2) for row in range(ROWS)]
Table = Callable[..., pa.Table]
Make = Callable[[Table], pa.Table]
Write = Callable[[Path, Table], object]
Said = Sequence[str]


def changed(table: Table, column: str, row: int, value: object) -> pa.Table:
    """A table with one value replaced."""
    values = table().column(column).to_pylist()
    values[row] = value
    return table(**{column: values})


def holds(make: Make) -> Write:
    """Write one table."""
    return lambda path, table: pq.write_table(make(table), path)


def folder(*makes: Make) -> Write:
    """Write a folder of tables."""

    def write(path: Path, table: Table) -> None:
        path.mkdir()
        for number, make in enumerate(makes):
            pq.write_table(make(table), path / f"{number}.parquet")

    return write


def truncated(path: Path, table: Table) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-40])


def with_a_text_file(path: Path, table: Table) -> None:
    folder(intact)(path, table)
    (path / "notes.parquet").write_text("time,y\n1,2\n")


def intact(table: Table) -> pa.Table:
    return table()


def two_columns_of_one_name(table: Table) -> pa.Table:
    return table().append_column("x", pa.array([1.0] * ROWS))


FILES = [
    pytest.param(holds(lambda table: table().drop_columns("x")), ["no column 'x'"], id="missing column"),
    pytest.param(holds(two_columns_of_one_name), ["2 columns are called 'x'"], id="two columns of one name"),
    pytest.param(holds(lambda table: table(y=["high"] * ROWS)), ["'y'", "string"], id="target that is text"),
    pytest.param(holds(lambda table: table(y=[START] * ROWS)), ["'y'", "timestamp"], id="target that is a time"),
    pytest.param(holds(lambda table: table(x=[[1.0]] * ROWS)), ["'x'", "list"], id="list column"),
    pytest.param(holds(lambda table: table(x=[{"a": 1.0}] * ROWS)), ["'x'", "struct"], id="struct column"),
    pytest.param(holds(lambda table: table(x=[b"a"] * ROWS)), ["'x'", "binary"], id="bytes"),
    pytest.param(holds(lambda table: table(series=[[1]] * ROWS)), ["'series'", "list"], id="nested id"),
    pytest.param(holds(lambda table: changed(table, "series", 5, None)), ["'series'", "row 5"], id="null id"),
    pytest.param(holds(lambda table: table(time=["monday"] * ROWS)), ["'time'", "monday"], id="text that is no time"),
    pytest.param(holds(lambda table: changed(table, "time", 4, None)), ["'time'", "row 4"], id="null time"),
    pytest.param(holds(lambda table: table(time=[1.5] * ROWS)), ["'time'", "double"], id="time that is a fraction"),
    pytest.param(holds(lambda table: table(time=[time(12)] * ROWS)), ["'time'", "time64"], id="time of day"),
    pytest.param(
        holds(lambda table: changed(table, "time", 7, datetime(9999, 12, 31))),
        ["'time'", "9999"],
        id="placeholder date",
    ),
    pytest.param(holds(lambda table: changed(table, "x", 7, None)), ["'x'", "7"], id="null"),
    pytest.param(holds(lambda table: changed(table, "y", 8, float("nan"))), ["'y'", "8"], id="NaN in the target"),
    pytest.param(holds(lambda table: table(x=[0.5] * ROWS)), ["same value", ": x."], id="constant column"),
    pytest.param(holds(lambda table: table(y=[2.0] * ROWS)), ["same value", ": y."], id="constant target"),
    pytest.param(holds(lambda table: changed(table, "x", 9, float("inf"))), ["'x'", "9"], id="infinity"),
    pytest.param(holds(lambda table: table(x=pa.nulls(ROWS, pa.float64()))), ["'x'"], id="all null"),
    pytest.param(holds(lambda table: table(y=pa.nulls(ROWS))), ["'y'"], id="target of type null"),
    pytest.param(holds(lambda table: changed(table, "x", 58, 1e30)), ["'x'", "1e+30", "missing"], id="fill value"),
    pytest.param(holds(lambda table: changed(table, "x", 3, 1e300)), ["'x'", "1e+300", "float32"], id="beyond float32"),
    pytest.param(
        holds(lambda table: table(x=[1e12 + row % 5 for row in range(ROWS)])), ["'x'", "float32"], id="lost in float32"
    ),
    pytest.param(
        holds(lambda table: changed(table, "time", 4, START)), ["series=b", "2024-01-01"], id="two rows of one time"
    ),
    pytest.param(holds(lambda table: pa.concat_tables([table(), table()])), ["60 rows"], id="every row twice"),
    pytest.param(holds(lambda table: table(12)), ["0 train windows", "need 9 rows", "longest has 6"], id="too short"),
    pytest.param(holds(lambda table: table(0)), ["no rows"], id="no rows"),
    pytest.param(lambda path, _: path.write_text("time,y\n1,2\n"), ["Parquet"], id="not a Parquet file"),
    pytest.param(truncated, ["Parquet"], id="truncated"),
    pytest.param(lambda path, _: path.write_bytes(b""), ["Parquet"], id="empty file"),
    pytest.param(lambda path, _: None, ["no such file"], id="no file"),
    pytest.param(lambda path, _: path.mkdir(), ["no .parquet file"], id="empty folder"),
    pytest.param(with_a_text_file, ["notes.parquet", "Parquet"], id="folder with a text file"),
    pytest.param(
        folder(intact, lambda table: table(time=list(range(ROWS)))),
        ["'time'", "int64", "timestamp"],
        id="two kinds of time",
    ),
    pytest.param(
        folder(intact, lambda table: table(y=["a"] * ROWS)), ["'y'", "string"], id="number in one file, text in one"
    ),
    pytest.param(
        folder(intact, lambda table: table().drop_columns("time")), ["1.parquet", "'time'"], id="file without time"
    ),
    pytest.param(folder(intact, intact), ["60 rows", "repeat"], id="the same rows in two files"),
]


@pytest.mark.parametrize(("write", "said"), FILES)
def test_data_that_cannot_be_used_are_refused(
    write: Write, said: Said, tmp_path: Path, table: Table, training, refused
) -> None:
    path = tmp_path / "data.parquet"
    write(path, table)
    refused(training(path), ["data.parquet", *said])


def daily(table: Table) -> pa.Table:
    return table(time=[date(2024, 1, 1) + timedelta(days=row // 2) for row in range(ROWS)])


def steps(table: Table) -> pa.Table:
    return table(time=[row // 2 for row in range(ROWS)])


def with_a_gap(table: Table) -> pa.Table:
    return table().filter(pa.array([row not in (20, 22) for row in range(ROWS)]))


def off_the_hour(table: Table) -> pa.Table:
    return changed(table, "time", 20, HOURS[20] + timedelta(minutes=7))


USES = [
    pytest.param(
        lambda table: table(x=["high"] * ROWS), [], {"observed": "x:real"}, ["'x'", "string"], id="text as number"
    ),
    pytest.param(
        lambda table: table(x=[0.5] * ROWS), [], {"observed": "x:category"}, ["'x'", "whole"], id="half a category"
    ),
    pytest.param(
        lambda table: table(x=[START] * ROWS),
        [],
        {"known": "x", "observed": ""},
        ["'x'", "timestamp"],
        id="time as known",
    ),
    pytest.param(
        intact, [], {"static": "x", "observed": ""}, ["'x' changes within series=b"], id="static that changes"
    ),
    pytest.param(intact, [], {"target": "y,x"}, ["--target names 2 columns", "per target"], id="two targets"),
    pytest.param(intact, [], {"target": "time"}, ["'time' is both time and target"], id="time as target"),
    pytest.param(intact, [], {"known": "hour,x"}, ["'x' is both observed and known"], id="two roles"),
    pytest.param(intact, [], {"known": "hour,hour"}, ["'hour' is listed more than once"], id="named twice"),
    pytest.param(intact, [], {"known": "hours"}, ["no column 'hours'", "'hour'?"], id="unknown column"),
    pytest.param(intact, [], {"id": "shop"}, ["no column 'shop'"], id="unknown id"),
    pytest.param(intact, [], {"id": ""}, ["30 rows repeat", "id"], id="id left out"),
    pytest.param(intact, [], {"time": ""}, ["--time names 0 columns"], id="no time"),
    pytest.param(steps, ["--calendar", "month"], {}, ["steps, which have no calendar"], id="calendar of steps"),
    pytest.param(daily, ["--calendar", "hour"], {}, ["dates, which have no hour"], id="hour of dates"),
    pytest.param(with_a_gap, ["--gaps", "error"], {}, ["series=b", "2024-01-01"], id="gap"),
    pytest.param(off_the_hour, ["--gaps", "fill"], {}, ["series=b", "10:07"], id="filling between steps"),
    pytest.param(
        lambda table: changed(table, "y", 3, -1.0),
        ["--target-transform", "log"],
        {},
        ["'y'", "-1"],
        id="logarithm of a negative",
    ),
    pytest.param(intact, ["--target-transform", "softplus"], {}, ["'y'", "0"], id="softplus of a zero"),
    pytest.param(intact, ["--missing", "wnd=mean"], {}, ["'wnd'", "y, x, hour"], id="policy of an unknown column"),
    pytest.param(
        intact,
        ["--missing", "hour=mean"],
        {"known": "hour:category"},
        ["'hour'", "category"],
        id="policy of a category",
    ),
    pytest.param(
        intact,
        ["--validation-from", "2030-01-01", "--test-from", "2031-01-01"],
        {},
        ["0 validation"],
        id="split beyond",
    ),
    pytest.param(
        intact,
        ["--validation-from", "2001-01-01", "--test-from", "2002-01-01"],
        {},
        ["--validation-from 2001", "no row for training"],
        id="split before",
    ),
    pytest.param(
        intact,
        ["--validation-from", "2024-01-02", "--test-from", "2024-01-01"],
        {},
        ["--validation-from is after --test-from"],
        id="split in the wrong order",
    ),
    pytest.param(
        intact,
        ["--validation-from", "soon", "--test-from", "2024-01-02"],
        {},
        ["--validation-from is 'soon'", "ISO 8601"],
        id="split that is no time",
    ),
    pytest.param(intact, ["--history", "200"], {}, ["need 203 rows", "longest has 30"], id="history beyond the data"),
]


@pytest.mark.parametrize(("make", "options", "roles", "said"), USES)
def test_data_used_in_a_way_that_does_not_fit_are_refused(
    make: Make, options: list[str], roles: dict[str, str], said: Said, tmp_path: Path, table: Table, training, refused
) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(make(table), path)
    refused(training(path, *options, **roles), said)
