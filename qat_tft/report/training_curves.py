"""The losses of a run by epoch, phase after phase, out of metrics.jsonl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from qat_tft.errors import RunFolderError
from qat_tft.report.missing import Missing
from qat_tft.runs import files, layout
from qat_tft.runs.folder import RunFolder

_KINDS = {"fp32": "fp32", "qat": "int8"}
_NEEDED = ("phase", "epoch", "train_loss", "validation_loss")


@dataclass(frozen=True)
class Epoch:
    """One epoch; a figure that an earlier version did not write is None."""

    number: int
    train_loss: float
    validation_loss: float
    best: bool
    samples_per_second: float | None
    peak_mib: float | None
    seconds: float | None


@dataclass(frozen=True)
class PhaseCurve:
    """The epochs of one phase in order.

    Attributes:
        phase: as in metrics.jsonl, such as "fp32" or "qat".
        kind: how a report colours it.
        epochs: in order.
    """

    phase: str
    kind: str
    epochs: tuple[Epoch, ...]

    @property
    def seconds(self) -> float | None:
        """Time of all epochs; None where one is unknown."""
        times = [epoch.seconds for epoch in self.epochs]
        return None if None in times else sum(time for time in times if time is not None)

    @property
    def peak_mib(self) -> float | None:
        """Highest memory of the process at any epoch; None where none is known."""
        return max((epoch.peak_mib for epoch in self.epochs if epoch.peak_mib is not None), default=None)

    @property
    def kept(self) -> Epoch:
        """The last epoch that was the best so far: its weights were kept."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.best), self.epochs[-1])


def read_curves(run: RunFolder) -> tuple[PhaseCurve, ...] | Missing:
    """Return the phases in the order in which they were trained, or what is wrong with metrics.jsonl.

    The run need not be finished.
    """
    path = run.path / layout.METRICS
    try:
        records = [record for record in map(_record, _whole_lines(files.read_text(path))) if record is not None]
    except RunFolderError as failure:
        return Missing(f"The losses of the epochs are not shown: {failure}")
    except ValueError as broken:
        return Missing(f"The losses of the epochs are not shown: a line of {layout.METRICS} is not JSON: {broken}.")
    phases: dict[str, list[Epoch]] = {}
    for record in records:
        phases.setdefault(str(record["phase"]), []).append(_epoch(record))
    if not phases:
        return Missing(f"{layout.METRICS} holds no epoch: nothing was trained in this run.")
    return tuple(PhaseCurve(name, _KINDS.get(name, "other"), tuple(one)) for name, one in phases.items())


def _whole_lines(text: str) -> list[str]:
    """Return the lines without one that is still being written, or was when a training was killed."""
    *whole, last = text.split("\n")
    return [*whole, last] if last.endswith("}") else whole


def _record(line: str) -> dict[str, Any] | None:
    """Return the object of a line that tells of an epoch; None for any other."""
    value = json.loads(line)
    told = isinstance(value, dict) and value.get("event") == "epoch" and all(name in value for name in _NEEDED)
    return value if told else None


def _epoch(record: dict[str, Any]) -> Epoch:
    return Epoch(
        number=int(record["epoch"]),
        train_loss=float(record["train_loss"]),
        validation_loss=float(record["validation_loss"]),
        best=bool(record.get("best", False)),
        samples_per_second=record.get("samples_per_second"),
        peak_mib=record.get("peak_mib"),
        seconds=record.get("seconds"),
    )
