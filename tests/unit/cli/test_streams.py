"""Whatever a stream can hold and whoever reads it: what is printed stays readable, and the work goes on."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pytest
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table

from qat_tft.cli import console
from qat_tft.cli.app import main
from qat_tft.cli.streams import holdable, standard_streams
from qat_tft.errors import OutputError

MINUS, NAMES = "\N{MINUS SIGN}4.2 %", ("Köln", "中", "\N{GRINNING FACE}", "\udcff")
NARROW = ["ascii", "cp1252", "latin-1"]


@dataclass(frozen=True)
class Foreign:
    def to_json(self) -> dict[str, Any]:
        return {"names": list(NAMES)}

    def tables(self) -> list[RenderableType]:
        table = Table("forecast", "change")
        for name in NAMES:
            table.add_row(name, MINUS)
        return [table, MINUS]


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, *, json: bool) -> str:
    """What a reader of the stream's encoding gets to see of a result, a note and an error."""
    written = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(written, encoding=encoding, errors="strict"))
    with standard_streams():
        console.emit(Foreign(), json=json)
        if not json:
            console.note(" ".join(NAMES))
            console.error(MINUS)
    return written.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", NARROW)
def test_tables_and_messages_say_the_same_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    lines = printed(monkeypatch, encoding, json=False).splitlines()
    assert sum("-4.2 %" in line for line in lines) == len(NAMES) + 2
    koln = "Köln" if encoding != "ascii" else r"K\xf6ln"
    assert rf"{koln} \u4e2d \U0001f600 \udcff" in lines
    rows = [line for line in lines if line.startswith(("|", "+"))]
    assert len({cell_len(row) for row in rows}) == 1, rows  # columns stay aligned


def test_a_stream_that_holds_every_character_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, "utf-8", json=False)
    assert text.count(MINUS) == len(NAMES) + 2
    assert "Köln 中 \N{GRINNING FACE} \\udcff\n" in text  # a byte of a file's name that is no text


@pytest.mark.parametrize("encoding", [*NARROW, "utf-8"])
def test_json_is_valid_and_exact_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    text = printed(monkeypatch, encoding, json=True)
    assert text.isascii() or encoding == "utf-8"
    assert json.loads(text) == Foreign().to_json()


def test_only_what_an_encoding_lacks_is_replaced() -> None:
    assert holdable("Köln \N{MINUS SIGN}1…", "cp1252") == "Köln -1…"
    assert holdable("Köln \N{MINUS SIGN}1…", "ascii") == r"K\xf6ln -1..."


@contextmanager
def unread() -> Iterator[IO[str]]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


@contextmanager
def full() -> Iterator[IO[str]]:
    with open("/dev/full", "w") as stream:
        yield stream


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("json", [True, False], ids=["json", "tables"])
def test_what_nobody_reads_is_dropped_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, name: str, json: bool
) -> None:
    with unread() as stream:
        monkeypatch.setattr(sys, name, stream)
        with standard_streams():
            for _ in range(2):
                console.emit(Foreign(), json=json)
                console.note("read on")
        stream.flush()  # as Python does at its end


def test_messages_that_cannot_be_written_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with full() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with standard_streams():
            console.note("read on")
        stream.flush()


@pytest.mark.parametrize("json", [True, False], ids=["json", "tables"])
def test_a_result_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    with full() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with standard_streams(), pytest.raises(OutputError, match=r"standard output: .*No space left on device"):
            console.emit(Foreign(), json=json)
        stream.flush()


@pytest.mark.parametrize("words", [["report", "none", "--json"], ["--help"]], ids=["error as JSON", "help"])
def test_a_full_disk_behind_standard_output_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with full() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(words) == 2
    assert capsys.readouterr().err.count("error: ") == 1


def test_a_file_never_gets_the_descriptor_of_a_closed_stream() -> None:
    program = (
        "import os\n"
        "for descriptor in range(3): os.close(descriptor)\n"
        "from qat_tft.cli.streams import standard_streams\n"
        "with standard_streams():\n"
        "    own = os.open('/dev/null', os.O_RDONLY)\n"
        "os._exit(own)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode > 2
