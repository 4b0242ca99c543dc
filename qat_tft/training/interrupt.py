"""Ctrl-C as a request: the step that runs is finished and saved before the run stops."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from qat_tft import ranks

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run stopped where it can be resumed; `name` is what to resume."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"run {name} was interrupted; resume with `qat-tft train --resume {name}`")


class InterruptRequest:
    """While entered, Ctrl-C or SIGTERM sets `requested`; a second Ctrl-C stops at once, but not one of several ranks.

    A launcher passes on to its processes what the terminal has sent them too, and kills those that take too long.

    Outside the main thread, where Python allows no signal handler, nothing is installed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and ranks.world() == 1:
            raise KeyboardInterrupt
        self.requested = True
