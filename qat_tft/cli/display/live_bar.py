"""A bar on standard error while something goes on: what every display of progress begins with."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn

from qat_tft.cli import console
from qat_tft.cli.display.times import Elapsed, TimeLeft


class LiveBar:
    """Shows at most one task; a context manager, so that the bar is gone before anything else prints.

    Args:
        columns: shown between the count and the times.
        silent: show nothing, as where standard error is no terminal.
    """

    def __init__(self, *columns: ProgressColumn, silent: bool = False) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.messages().is_terminal and not silent:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                *columns,
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
