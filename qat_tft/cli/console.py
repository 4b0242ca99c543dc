"""All printing of the command line: results to standard output, everything else to standard error."""

import json as json_text
import os
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.table import Table

# What is printed holds names out of the user's data: "[/x]" and ":x:" in them are text, not markup or emoji.
_output = Console(soft_wrap=False, markup=False, emoji=False)
_unlimited = Console(width=10_000, soft_wrap=False, markup=False, emoji=False)
_messages = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


class Result(Protocol):
    """What a command hands over: readable as JSON by machines and as tables by people."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only."""
        ...

    def tables(self) -> Sequence[RenderableType]:
        """Return rich renderables, printed one after the other."""
        ...


def emit(result: Result, *, json: bool) -> None:
    """Print the result of a command: one JSON object with `json`, its tables without."""
    if json:
        emit_json(result.to_json())
        return
    for table in result.tables():
        _console_for(table).print(table, crop=False)


def _console_for(part: RenderableType) -> Console:
    """A pipe or a file has no width at which a table would have to be broken, unless COLUMNS sets one."""
    limited = _output.is_terminal or "COLUMNS" in os.environ
    return _output if limited or not isinstance(part, Table) else _unlimited


def emit_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output, not wrapped and not coloured."""
    print(json_text.dumps(value, indent=2, allow_nan=False, ensure_ascii=False), file=_output.file)


def note(text: str) -> None:
    """Print a line of progress or advice on standard error; never part of a result."""
    _messages.print(text)


def error(text: str) -> None:
    """Print the message of an error on standard error."""
    _messages.print("error: ", end="", style="bold red")
    _messages.print(text)


def messages() -> Console:
    """Return the console of standard error, for live displays such as a progress bar."""
    return _messages
