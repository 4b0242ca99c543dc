"""Shows on a terminal how far a command has come; elsewhere, and beside `--json`, it is silent."""

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from qat_tft.cli import console
from qat_tft.cli.display.times import Elapsed, TimeLeft

Item = TypeVar("Item")

LARGE = 2_000_000
"""Rows that take longer than a second to read."""


class WorkDisplay:
    """One bar for the stages, batches or rows of a command; a context manager: it is gone before a result prints.

    Args:
        json: whether the result goes to a machine.
    """

    def __init__(self, *, json: bool) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._unit, self._begun = "", 0.0
        if console.messages().is_terminal and not json:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                Elapsed(),
                TimeLeft(),
                console=console.messages(),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, what: str, done: int, total: int) -> None:
        """Show which stage is going on, and how many are done; the next one may take far longer."""
        self._show("stages", what, done, total, equal=False)

    def part(self, what: str, done: int, total: int) -> None:
        """Show what is being done, and how many of how many parts are; each takes about as long."""
        self._show("parts", what, done, total)

    def reading(self, done: int, total: int) -> None:
        """Show how many of how many rows are read; nothing for a small file."""
        if total >= LARGE:
            self._show("rows", "reading rows", done, total)

    def batches(self, items: Iterable[Item], count: int) -> Iterator[Item]:
        """Pass batches on, and show how many of them are done."""
        for done, item in enumerate(items):
            self._show("batches", "batches of origins", done, count)
            yield item

    def _show(self, unit: str, what: str, done: int, total: int, *, equal: bool = True) -> None:
        if self._bar is None:
            return
        now = time.monotonic()
        if self._task is None or unit != self._unit:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._unit, self._begun = self._bar.add_task(what, total=total, equal=equal), unit, now
        self._bar.update(self._task, description=what, completed=done, total=total, at=now - self._begun)
