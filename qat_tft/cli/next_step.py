"""What people do after a command: one line on standard error, for those who sit at a terminal."""

import shlex
from collections.abc import Sequence

from qat_tft.cli import console


def say_next(text: str, *, json: bool) -> None:
    """Print the line; not beside JSON, and not where standard error is no terminal: scripts know what comes next."""
    if console.messages().is_terminal and not json:
        console.note(f"Next: {text}")


def command(*words: str, run: str | None = None, runs_dir: str = "runs") -> str:
    """Return a command as it can be typed.

    Args:
        words: its own; what needs quotes gets them.
        run: the run that was named; None: the latest, which needs no name.
        runs_dir: where runs are; the usual place needs no option.
    """
    named: Sequence[str] = [] if run is None else [run]
    where: Sequence[str] = [] if runs_dir == "runs" else ["--runs-dir", runs_dir]
    return f"`{shlex.join(['qat-tft', *words[:1], *named, *words[1:], *where])}`"
