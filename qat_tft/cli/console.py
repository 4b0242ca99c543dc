"""All printing of the command line: results to standard output, everything else to standard error.

What is printed holds names out of the user's data, which may be anything: none of their characters reaches the terminal
as a command, and none of their lines looks like a message of ours.
"""

import json as json_text
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from qat_tft.cli.display.narrow import fitting
from qat_tft.cli.streams import holdable, is_unicode
from qat_tft.texts import COMMANDS, shown


class _Readable(Console):
    """A console that lays out what its stream can hold, so that columns stay aligned where characters are replaced.

    Colour is for terminals, unless NO_COLOR is set; FORCE_COLOR asks for it elsewhere too. That makes no terminal of a
    pipe, as rich would have it: what is wide or moves is for terminals whatever the colour.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(color_system="standard" if os.environ.get("FORCE_COLOR") else "auto", **how)

    @property
    def is_terminal(self) -> bool:
        """Whether a terminal shows what is printed."""
        asked = getattr(self.file, "isatty", None)
        return bool(asked and asked())

    def render_str(self, text: str, **how: Any) -> Text:
        """Return the text that is shown for a string."""
        return super().render_str(holdable(text, self.encoding), **how)


# "[/x]" and ":x:" in names are text, not markup or emoji.
_output = _Readable(soft_wrap=False, markup=False, emoji=False)
_unlimited = _Readable(width=10_000, soft_wrap=False, markup=False, emoji=False)
_messages = _Readable(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


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
    console = _output if _is_limited() else _unlimited
    for part in result.tables():
        if isinstance(part, Table):
            console.print(_Shown(fitting(part, console)), crop=False)
        else:
            (console if isinstance(part, str | Text) else _output).print(_Shown(part), crop=False)


@dataclass(frozen=True)
class _Shown:
    """A renderable without the commands to a terminal that its names may hold."""

    part: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.part, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


def _is_limited() -> bool:
    """A pipe or a file has no width at which a table or a line would have to be broken, unless COLUMNS sets one."""
    return _output.is_terminal or "COLUMNS" in os.environ


def emit_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output, not wrapped and not coloured; in ASCII where that is not Unicode."""
    text = json_text.dumps(value, indent=2, allow_nan=False, ensure_ascii=not is_unicode(_output.encoding))
    print(COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), file=_output.file, flush=True)


def note(text: str) -> None:
    """Print a line of progress or advice on standard error; never part of a result."""
    _messages.print(shown(text, one_line=True))


def error(text: str) -> None:
    """Print the message of an error on standard error."""
    _messages.print("error: ", end="", style="bold red")
    _messages.print(shown(text, one_line=True))


def messages() -> Console:
    """Return the console of standard error, for live displays such as a progress bar."""
    return _messages
