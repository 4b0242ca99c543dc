"""What a phase of a run is given: what all phases share, and its own plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from torch import Tensor

from qat_tft.config.training import TrainingConfig
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.training.interrupt import InterruptRequest
from qat_tft.training.metrics import MetricsLog
from qat_tft.training.progress import Progress


@dataclass(frozen=True)
class RunContext:
    """What the phases of a run share.

    Attributes:
        config: the training section.
        accelerator: device, number format, loss scaling.
        scaling: from raw to scaled values, on the device.
        training, validation: windows of those parts.
        state_path: where the resumable state is kept.
        run_name: what to resume after an interruption.
        progress, metrics: where reports go.
        interrupt: asked after every step.
    """

    config: TrainingConfig
    accelerator: Accelerator
    scaling: Scaling
    training: Windows
    validation: Windows
    state_path: Path
    run_name: str
    progress: Progress
    metrics: MetricsLog
    interrupt: InterruptRequest


def _done() -> None:
    """Do nothing more at the start of a phase."""


def _nothing(step: int, steps: int) -> None:
    """Change nothing before a step."""


class EpochFigures:
    """Adds figures to those of each epoch; here none.

    What it remembers from one epoch to the next is part of the resumable state.
    """

    def after_epoch(self) -> Mapping[str, float]:
        """Return more figures of the epoch that has just ended."""
        return {}

    def memory(self) -> dict[str, Tensor]:
        """Return what is remembered."""
        return {}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Take over what `memory` returned."""


@dataclass(frozen=True)
class PhasePlan:
    """One phase: its length and learning rate, and what happens before each of its steps.

    Attributes:
        name: "fp32", "qat" or "continued".
        epochs: the most epochs it makes.
        first_epoch: number of its first epoch in the order of the data, so that phases see other shuffles.
        peak: the largest learning rate.
        patience: epochs without improvement after which it goes over to its tail; None: never.
        started: called once the state holds what was decided before the phase.
        before_step: called with the step and the number of steps; sets the quantization phase.
        score_start: whether the weights at the start are a candidate for the best ones.
        start_loss: their validation loss, where it is known; it makes them a candidate too.
        distill: weight of the distance to a teacher in the loss.
        teach: gives a batch of the windows at some indices what the teacher says about them.
        figures: adds to the figures of each epoch.
    """

    name: str
    epochs: int
    first_epoch: int
    peak: float
    patience: int | None
    started: Callable[[], None] = _done
    before_step: Callable[[int, int], None] = _nothing
    score_start: bool = False
    start_loss: float | None = None
    distill: float = 0.0
    teach: Callable[[Batch, Tensor], Batch] | None = None
    figures: EpochFigures = EpochFigures()  # noqa: RUF009 - it has no state
