"""What the console prints is what it was given, whatever the names in the user's data look like."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.cli import console

LIKE_MARKUP = ("a[/b]", "[red]c", ":smile:")


@dataclass(frozen=True)
class Names:
    def to_json(self) -> dict[str, Any]:
        return {"names": list(LIKE_MARKUP)}

    def tables(self) -> list[RenderableType]:
        table = Table(*LIKE_MARKUP, title=" ".join(LIKE_MARKUP))
        table.add_row(*LIKE_MARKUP)
        return [table, " ".join(LIKE_MARKUP)]


def test_names_that_look_like_markup_are_printed_in_tables_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit(Names(), json=False)
    printed = capsys.readouterr().out
    assert [printed.count(name) for name in LIKE_MARKUP] == [4, 4, 4]  # title, heading, cell, sentence


@pytest.mark.parametrize("say", [console.note, console.error], ids=["note", "error"])
def test_names_that_look_like_markup_are_printed_in_messages(say: Any, capsys: pytest.CaptureFixture[str]) -> None:
    say(" ".join(LIKE_MARKUP))
    printed = capsys.readouterr()
    assert printed.err.removeprefix("error: ") == " ".join(LIKE_MARKUP) + "\n"
    assert printed.out == ""


@dataclass(frozen=True)
class Wide:
    def to_json(self) -> dict[str, Any]:
        return {}

    def tables(self) -> list[RenderableType]:
        table = Table("name", "reason")
        table.add_row("n" * 60, "because of this and " * 5)
        return [table, Text("and so it goes on " * 6)]


def test_a_pipe_has_no_width_that_breaks_a_table_or_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console.emit(Wide(), json=False)
    shown = capsys.readouterr().out
    assert "because of this and " * 5 in shown
    assert "and so it goes on " * 6 in shown
    monkeypatch.setenv("COLUMNS", "80")
    console.emit(Wide(), json=False)
    assert "because of this and " * 5 not in capsys.readouterr().out


HOSTILE = "a\x1b[31m\x07\nerror: forged\u202e"


@dataclass(frozen=True)
class Hostile:
    def to_json(self) -> dict[str, Any]:
        return {"name": f"{HOSTILE}\x9b"}

    def tables(self) -> list[RenderableType]:
        table = Table(HOSTILE, title=HOSTILE)
        table.add_row(HOSTILE)
        return [table, HOSTILE]


def test_no_name_is_a_command_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit(Hostile(), json=False)
    printed = capsys.readouterr().out
    assert printed.count("\\x1b[31m") == 4
    assert not set("\x1b\x07\u202e") & set(printed)
    console.emit(Hostile(), json=True)
    printed = capsys.readouterr().out
    assert not set("\x1b\x07\u202e\x9b") & set(printed)
    assert json.loads(printed) == Hostile().to_json()


def test_no_name_makes_a_second_message(capsys: pytest.CaptureFixture[str]) -> None:
    console.error(f"no column {HOSTILE}")
    assert capsys.readouterr().err == "error: no column a\\x1b[31m\\x07\\nerror: forged\\u202e\n"


COLOUR = "\x1b["
FAILING = "from qat_tft.cli.app import main; main(['runs', 'rm', 'unconfirmed']); main(['runs', '--runs-dir', 'runs'])"


def printed(tmp_path: Path, *, terminal: bool, **environment: str) -> tuple[str, str]:
    """Standard output and error of an error's message and a table, both printed to a terminal or both to pipes."""
    folder = tmp_path / "runs" / "one.unfinished"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    how = {
        "cwd": tmp_path,
        "env": {**kept, "TERM": "xterm", **environment},
        "check": False,
        "stdin": subprocess.DEVNULL,
    }
    words = [sys.executable, "-c", FAILING]
    if not terminal:
        done = subprocess.run(words, capture_output=True, text=True, **how)
        return done.stdout, done.stderr
    ours, theirs = os.openpty()
    subprocess.run(words, stdout=theirs, stderr=theirs, **how)
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text, text


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        pytest.param(True, {}, True, id="terminal"),
        pytest.param(True, {"TERM": "dumb"}, False, id="terminal without colour"),
        pytest.param(False, {}, False, id="pipe"),
        pytest.param(False, {"FORCE_COLOR": "1"}, True, id="pipe, asked for"),
    ],
)
def test_colour_is_for_terminals_and_for_those_who_ask(tmp_path, terminal, environment, coloured):
    output, messages = printed(tmp_path, terminal=terminal, **environment)
    assert "one" in output
    assert (COLOUR in output, COLOUR in messages) == (coloured, coloured)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_no_color_wins(tmp_path, terminal):
    _, messages = printed(tmp_path, terminal=terminal, NO_COLOR="1", FORCE_COLOR="1")
    assert "error" in messages
    assert f"{COLOUR}1;31m" not in messages


def test_a_pipe_stays_a_pipe_where_colour_is_asked_for(tmp_path):
    plain, _ = printed(tmp_path, terminal=False)
    coloured, _ = printed(tmp_path, terminal=False, FORCE_COLOR="1")
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain, "of the same width"
