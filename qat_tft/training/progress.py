"""What a run reports while it works; whoever shows it implements `Progress`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

FLIPPED = "codes_changed"
"""The figure of a quantization-aware epoch that says which share of the weights' codes it changed."""


@dataclass(frozen=True)
class PhaseStart:
    """A phase begins, or goes on at `done` of its steps."""

    phase: str
    epochs: int
    steps: int
    done: int


@dataclass(frozen=True)
class StepReport:
    """One optimizer step: mean loss of its batches, rate in windows per second, memory of the process in MiB."""

    phase: str
    epoch: int
    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    samples_per_second: float
    peak_mib: float


@dataclass(frozen=True)
class EpochReport:
    """One epoch: losses on the scaled target, seconds with validation, whether it is the best so far, more figures."""

    phase: str
    epoch: int
    step: int
    train_loss: float
    validation_loss: float
    learning_rate: float
    samples_per_second: float
    peak_mib: float
    seconds: float
    best: bool
    more: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the line that metrics.jsonl gets."""
        line = {"event": "epoch", **asdict(self)}
        return {**line, **line.pop("more")}


class Progress(Protocol):
    """Receives the reports of a run, in order."""

    def note(self, text: str) -> None:
        """Take a sentence for the user."""
        ...

    def reading(self, done: int, total: int) -> None:
        """Take how far reading the data has come: `done` of `total` rows, each counted for every pass over it."""
        ...

    def phase(self, start: PhaseStart) -> None:
        """Take the start of a phase."""
        ...

    def step(self, report: StepReport) -> None:
        """Take one optimizer step."""
        ...

    def epoch(self, report: EpochReport) -> None:
        """Take one finished epoch."""
        ...


class Silent:
    """Reports nothing."""

    def note(self, text: str) -> None:
        """Drop the sentence."""

    def reading(self, done: int, total: int) -> None:
        """Drop the figures."""

    def phase(self, start: PhaseStart) -> None:
        """Drop the start."""

    def step(self, report: StepReport) -> None:
        """Drop the step."""

    def epoch(self, report: EpochReport) -> None:
        """Drop the epoch."""
