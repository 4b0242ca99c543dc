"""Broken input for the command line: data that would do but for one change, and what a refusal has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.cli.app import main

ROWS = 60
START = datetime(2024, 1, 1)
ROLES = {"--time": "time", "--target": "y", "--id": "series", "--known": "hour", "--observed": "x"}
SHAPE = ["--history", "6", "--horizon", "3", "--hidden", "8", "--epochs", "1"]


@pytest.fixture(scope="session")
def table() -> Callable[..., pa.Table]:
    """Make two series of 30 hours, alternating by row: `table(rows, column=values, ...)`."""
    return intact


def intact(rows: int = ROWS, **changes: object) -> pa.Table:
    """Two series, alternating by row; `changes` replace whole columns."""
    columns: dict[str, object] = {
        "series": ["a" if row % 2 else "b" for row in range(rows)],
        "time": [START + timedelta(hours=row // 2) for row in range(rows)],
        "y": [float(row % 7) for row in range(rows)],
        "hour": [(row // 2) % 24 for row in range(rows)],
        "x": [float(row % 5) for row in range(rows)],
    }
    return pa.table({**columns, **changes})


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """A file with nothing wrong."""
    pq.write_table(intact(), tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


@pytest.fixture(scope="session")
def training() -> Callable[..., list[str]]:
    """Make the words of a training: `training(data, *options, role=columns, ...)`."""
    return words_of_training


def words_of_training(data: Path, *options: str, **roles: str) -> list[str]:
    """A training on this data that would work but for what is broken; keywords replace role options."""
    named = {**ROLES, **{f"--{role}": columns for role, columns in roles.items()}}
    given = [word for pair in named.items() for word in pair]
    return ["train", "--parquet-file", str(data), *given, *SHAPE, *options, "--runs-dir", str(data.parent / "runs")]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(word) for word in words])
        output, messages = capfd.readouterr()
        return code, output, messages

    return run


@pytest.fixture
def refused(tmp_path: Path, refusal: Callable[..., str]) -> Callable[..., None]:
    """Run a command that has to be refused: what it says, and that it leaves everything as it was."""

    def run(words: Sequence[object], said: Sequence[str]) -> None:
        before = contents(tmp_path)
        message = refusal(*words)
        assert [word for word in said if word not in message] == [], message
        assert message.count("\n") == 1, message
        assert contents(tmp_path) == before

    return run


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder; empty folders do not count."""
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
