"""A run that one process writes to is refused to the next one, in one message, and is read all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder

Refusal = Callable[..., str]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        pytest.param("x.unfinished", ["train", "--resume", "x"], id="resume"),
        pytest.param("x.unfinished", ["train", "--resume"], id="resume whatever was written to last"),
        pytest.param("x", ["export", "x", "--int8"], id="export"),
        pytest.param("x", ["sensitivity", "x", "--max-drop", "1%"], id="sensitivity"),
    ],
)
def test_a_second_process_that_would_write_is_told_so(
    tmp_path: Path, refusal: Refusal, folder: str, words: list[str]
) -> None:
    run = RunFolder(tmp_path / folder)
    run.path.mkdir()
    (run.path / layout.CONFIG).write_text("the first one is writing this")
    with run.held():
        before = contents(run.path)
        message = refusal(*words, "--runs-dir", tmp_path)
        assert f"{run.path}: another process is working on this run. Wait until it has ended." in message
        assert contents(run.path) == before


def test_a_run_of_a_name_that_is_being_trained_is_not_begun_again(tmp_path: Path, refusal: Refusal) -> None:
    run = RunFolder.create(tmp_path, "x")
    with run.held():
        message = refusal("train", "--epochs", "1", "--name", "x", "--runs-dir", tmp_path)
    assert "an unfinished run of that name already exists" in message
