"""Hands what metrics.jsonl gets, the configuration and the results of a run to the trackers that it names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.runs import files, layout
from qat_tft.tracking.flat import figures_of, numbers_of, settings_of
from qat_tft.tracking.trackers import OpenTracker, Place, missing_package, open_tracker

_RESULTS = ("q_risk", "coverage", "gain_over_strongest_simple", "validation_loss", "parameters", "seconds", "windows")
_LONGEST_REASON = 200


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose packages are not installed, before anything trains.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        package = missing_package(name)
        if package is not None:
            raise ConfigError(
                f"training.track names {name}, for which the package {package} is not installed",
                where="the configuration",
                next_step=f"Install it with `pip install 'qat-tft[{name}]'`, or leave {name} out",
            )


class Tracking:
    """The trackers of a run; a context manager, so that they are closed on errors.

    A tracker that raises an error ends its own tracking and nothing else: that is told once, and metrics.jsonl has all
    figures in any case. What trackers print goes to standard error.

    Args:
        names: of the trackers.
        folder: the run folder.
        run: name of the run.
        config: nested plain values, which each tracker gets once.
        told: takes a sentence for the user.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        run: str,
        config: Mapping[str, Any],
        told: Callable[[str], None],
    ) -> None:
        self._names, self._folder, self._told = names, folder.resolve(), told
        self._place = Place(run, self._folder, self._folder.parent / layout.TRACKERS)
        self._settings = settings_of(config)
        self._open: dict[str, OpenTracker] = {}
        self._failed: set[str] = set()

    def __enter__(self) -> Self:
        earlier = self._earlier_runs() if self._names else {}
        for name in self._names:
            self._attempt(name, partial(self._start, name, earlier.get(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, one in self._open.items():
            if name in self._failed:
                with suppress(Exception), redirect_stdout(sys.stderr):  # it is told already that this one fails
                    one.tracker.finish()
            else:
                self._attempt(name, one.tracker.finish)
            one.closed()

    def line(self, line: Mapping[str, Any]) -> None:
        """Take a line of metrics.jsonl."""
        if "phase" in line:
            self._log(figures_of(line), line.get("step"))

    def results(self, results: Mapping[str, Any]) -> None:
        """Take the object that results.json gets."""
        self._log(numbers_of({name: results.get(name) for name in _RESULTS}, "results"), None)

    def _log(self, figures: dict[str, float], step: int | None) -> None:
        for name, one in self._open.items():
            if name not in self._failed:
                at = step if one.takes_steps else None
                self._attempt(name, partial(one.tracker.log, figures, step=at))

    def _start(self, name: str, earlier: str | None) -> None:
        opened, found = self._opened(name, earlier)
        self._open[name] = opened
        if opened.run != earlier:
            self._remember(name, opened.run)
        if not (found and opened.keeps_settings):
            opened.tracker.store_init_configuration(self._settings)

    def _opened(self, name: str, earlier: str | None) -> tuple[OpenTracker, bool]:
        """Return the tracker, and whether it goes on with an earlier run."""
        if earlier is None:
            return open_tracker(name, self._place, None), False
        try:
            return open_tracker(name, self._place, earlier), True
        except Exception as failure:
            opened = open_tracker(name, self._place, None)
            self._told(f"{name} cannot go on with the run {earlier}, a new one begins there: {_reason(failure)}")
            return opened, False

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            with redirect_stdout(sys.stderr):
                action()
        except Exception as failure:  # of somebody else's program: whatever it is, the training goes on
            self._failed.add(name)
            self._told(f"{name} gets no more figures, {layout.METRICS} has them all: {_reason(failure)}")

    def _earlier_runs(self) -> dict[str, str]:
        path = self._folder / layout.TRACKING
        if not path.is_file():
            return {}
        try:
            return TypeAdapter(dict[str, str]).validate_python(files.read_json(path), strict=True)
        except ValidationError:
            raise RunFolderError(
                "not names of runs by tracker", where=str(path), next_step="Remove it: new runs begin there"
            ) from None

    def _remember(self, name: str, run: str) -> None:
        files.write_json(self._folder / layout.TRACKING, {**self._earlier_runs(), name: run})


def _reason(failure: Exception) -> str:
    said = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {said[0]}"[:_LONGEST_REASON] if said else type(failure).__name__
