"""Shows on a terminal how far a command has come; elsewhere, and beside `--json`, it is silent."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from qat_tft.cli.display.live_bar import LiveBar

Item = TypeVar("Item")

LARGE = 2_000_000
"""Rows that take longer than a second to read."""


class WorkDisplay(LiveBar):
    """One bar for the stages, batches or rows of a command; a context manager: it is gone before a result prints.

    Args:
        json: whether the result goes to a machine.
    """

    def __init__(self, *, json: bool) -> None:
        super().__init__(silent=json)
        self._unit, self._begun = "", 0.0

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
