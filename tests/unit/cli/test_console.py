"""What the console prints is what it was given, whatever the names in the user's data look like."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import RenderableType
from rich.table import Table

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
        return [table]


def test_a_pipe_has_no_width_that_breaks_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console.emit(Wide(), json=False)
    assert "because of this and " * 5 in capsys.readouterr().out
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
