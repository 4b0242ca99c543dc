"""A file or folder that cannot be used: one message, exit code 2, and nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.cli.app import main

ROWS = 60
START = datetime(2024, 1, 1)
ROLES = ["--time", "time", "--target", "y", "--id", "series", "--known", "hour", "--observed", "x"]
SHAPE = ["--history", "6", "--horizon", "3", "--hidden", "8", "--epochs", "1"]


def table(rows: int = ROWS, **changes: list[object]) -> pa.Table:
    """Two series, alternating by row; `changes` replace whole columns."""
    columns: dict[str, list[object]] = {
        "series": ["a" if row % 2 else "b" for row in range(rows)],
        "time": [START + timedelta(hours=row // 2) for row in range(rows)],
        "y": [float(row % 7) for row in range(rows)],
        "hour": [(row // 2) % 24 for row in range(rows)],
        "x": [float(row % 5) for row in range(rows)],
    }
    return pa.table({**columns, **changes})


def changed(column: str, row: int, value: object) -> pa.Table:
    """A table with one value replaced."""
    values = table().column(column).to_pylist()
    values[row] = value
    return table(**{column: values})


def parquet(make: Callable[[], pa.Table]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(make(), path)


def truncated(path: Path) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-40])


CASES = [
    pytest.param(parquet(lambda: table().drop_columns("x")), ["column", "x"], id="missing column"),
    pytest.param(parquet(lambda: table(y=["high"] * ROWS)), ["y", "string"], id="target that is text"),
    pytest.param(parquet(lambda: table(x=[[1.0]] * ROWS)), ["x", "list"], id="nested column"),
    pytest.param(parquet(lambda: table(time=["monday"] * ROWS)), ["time"], id="time that is text"),
    pytest.param(parquet(lambda: changed("x", 7, None)), ["x", "7"], id="null"),
    pytest.param(parquet(lambda: changed("y", 8, float("nan"))), ["y", "8"], id="NaN"),
    pytest.param(parquet(lambda: changed("x", 9, float("inf"))), ["x", "9"], id="infinity"),
    pytest.param(parquet(lambda: table(x=pa.nulls(ROWS, pa.float64()))), ["x"], id="all null"),
    pytest.param(parquet(lambda: changed("time", 4, START)), ["b", "2024-01-01"], id="duplicate time"),
    pytest.param(parquet(lambda: table(12)), ["0 train windows", "need 9 rows", "longest has 6"], id="too short"),
    pytest.param(parquet(lambda: table(0)), ["no rows"], id="no rows"),
    pytest.param(lambda path: path.write_text("time,y\n1,2\n"), ["Parquet"], id="not a Parquet file"),
    pytest.param(truncated, ["Parquet"], id="truncated"),
    pytest.param(lambda path: path.write_bytes(b""), ["Parquet"], id="empty file"),
    pytest.param(lambda path: path.mkdir(), ["Parquet"], id="empty folder"),
]


@pytest.mark.parametrize(("write", "said"), CASES)
def test_a_file_that_cannot_be_used_is_one_message_and_no_run(write, said, tmp_path, capsys):
    path, runs = tmp_path / "data.parquet", tmp_path / "runs"
    write(path)
    code = main(["train", "--parquet-file", str(path), *ROLES, *SHAPE, "--runs-dir", str(runs)])
    printed = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in printed.err
    assert printed.out == ""
    missing = [word for word in ("data.parquet", *said) if word not in printed.err.replace("\n", " ")]
    assert missing == [], printed.err
    assert not runs.exists() or list(runs.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path, capsys):
    path = tmp_path / "data.parquet"
    pq.write_table(table(), path)
    (tmp_path / "runs").write_text("a file stands where the folder should be")
    code = main(["train", "--parquet-file", str(path), *ROLES, *SHAPE, "--runs-dir", str(tmp_path / "runs")])
    assert code == 2
    assert str(tmp_path / "runs") in capsys.readouterr().err.replace("\n", "")


def test_the_same_rows_unbroken_are_trained(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(table(240), path)
    assert main(["train", "--parquet-file", str(path), *ROLES, *SHAPE, "--runs-dir", str(tmp_path / "runs")]) == 0
