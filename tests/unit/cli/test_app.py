"""The command line tells what is wrong in one message, and names only options that its command has."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.cli.app import main

SCHEMA = 'time = "time"\ntarget = "y"\nid = []\n'


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """A file with a row that repeats the time of another, and a schema beside it."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"time": [*range(99), 98], "y": [float(row % 7) for row in range(100)]}), path)
    path.with_suffix(".schema.toml").write_text(SCHEMA)
    return path


def message(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 2
    (_, text) = capsys.readouterr().err.split("error: ")
    assert text.count("\n") == 1
    return text


def test_a_refusal_names_an_option_where_the_command_has_it(repeated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = message(capsys, "train", "--parquet-file", repeated, "--runs-dir", repeated.parent / "runs")
    assert "otherwise drop them. Or merge them with --duplicates last or mean." in text


def test_a_refusal_names_training_where_the_command_lacks_the_option(
    repeated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = message(capsys, "plan", "--parquet-file", repeated, "--history", 5, "--horizon", 2)
    assert "Or train anew: `qat-tft train` can merge them with --duplicates last or mean." in text


def test_a_file_system_that_refuses_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = message(capsys, "report", "--runs-dir", tmp_path / ("x" * 300))
    assert text.endswith(": File name too long.\n")


def test_a_name_whose_bytes_are_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = message(capsys, "inspect", os.fsdecode(b"data\xff.parquet"))
    assert "'data\\udcff.parquet' is not text in the encoding of file names here, utf-8" in text


@pytest.mark.parametrize(("chosen", "kept"), [(None, "1"), ("0", "0")], ids=["by default", "unless chosen"])
def test_onnxruntime_sends_no_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chosen: str | None, kept: str
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    if chosen is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", chosen)
    main(["--help"])
    assert os.environ["ORT_DISABLE_TELEMETRY"] == kept
