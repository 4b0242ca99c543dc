"""What quantization-aware training does beside training: it sets phases, recalibrates ranges, counts changed codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.training.progress import FLIPPED
from qat_tft.training.schedule import first_frozen_step


@dataclass(frozen=True)
class RangeSchedule:
    """Called before each step: the last share of the steps runs with frozen ranges.

    Behind dropout, activations that are kept are scaled up, so ranges observed in training mode are too wide for the
    model that ships. When ranges freeze, they are set anew in evaluation mode (docs/decisions/043).

    Attributes:
        model: the quantization-aware model.
        frozen: share of the steps at the end.
        recalibrate: sets all ranges anew; it must not touch torch's random state.
    """

    model: QATTemporalFusionTransformer
    frozen: float
    recalibrate: Callable[[], object]

    def __call__(self, step: int, steps: int) -> None:
        """Set the phase for step 0 <= `step` < `steps`; `steps` itself stands for the end."""
        first = first_frozen_step(steps, frozen=self.frozen)
        if step == first and 0 < first < steps:
            self.recalibrate()
        wanted = Phase.FROZEN if step >= first else Phase.QAT
        if self.model.phase is not wanted:
            self.model.set_phase(wanted)


class CodeChanges:
    """Counts how many of the weights' codes an epoch has changed."""

    def __init__(self, model: QATTemporalFusionTransformer) -> None:
        self._model, self._before = model, model.codes()

    def __call__(self, whole: bool) -> Mapping[str, float]:
        """Return the share of the codes that differ from those at the end of the epoch before.

        Nothing is returned for an epoch of which a part ran in another process, before an interruption.
        """
        before, now = self._before, self._model.codes()
        self._before = now
        return {FLIPPED: _share_changed(before, now)} if whole else {}


def _share_changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    changed = sum(int((codes != now[name]).sum()) for name, codes in before.items())
    return changed / sum(codes.numel() for codes in before.values())
