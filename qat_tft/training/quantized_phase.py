"""What quantization-aware training does beside training: ranges are set anew, codes are counted, a teacher is asked.

The teacher is the floating-point model. Its quantiles of every window that is drawn are computed once, in evaluation
mode, before the first step: no second model is in memory, and a window has the same teacher whatever is recomputed.
Legend: N drawn windows, B batch, F horizon, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.config.training import TrainingConfig
from qat_tft.data.loading.loader import batches
from qat_tft.data.reading.storage import allocate
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.evaluation.window_forecasts import batches_at, evaluating
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.files import cannot_write
from qat_tft.training.plan import EpochFigures
from qat_tft.training.progress import FLIPPED
from qat_tft.training.schedule import first_frozen_step

_IN_MEMORY = 2**28
"""Most bytes of the teacher's quantiles that are held in memory; more lie in a mapped file."""


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


class CodeChanges(EpochFigures):
    """Counts how many of the weights' codes an epoch has changed."""

    def __init__(self, model: QATTemporalFusionTransformer) -> None:
        self._model, self._before = model, model.codes()

    def after_epoch(self) -> Mapping[str, float]:
        """Return the share of the codes that differ from those at the end of the epoch before."""
        before, self._before = self._before, self._model.codes()
        return {FLIPPED: _share_changed(before, self._before)}

    def memory(self) -> dict[str, Tensor]:
        """Return the codes at the end of the epoch before."""
        return self._before

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Take over the codes at the end of the epoch before."""
        self._before = {name: memory[name].to(codes.device) for name, codes in self._before.items()}


def _share_changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    changed = sum(int((codes != now[name]).sum()) for name, codes in before.items())
    return changed / sum(codes.numel() for codes in before.values())


@dataclass(frozen=True)
class Teacher:
    """What the floating-point model forecasts.

    Attributes:
        windows: the indices of drawn windows, ascending, int64 [N].
        quantiles: scaled, float32 [N, F, Q].
    """

    windows: Tensor
    quantiles: Tensor

    @classmethod
    def of(
        cls,
        model: nn.Module,
        scaling: Scaling,
        training: Windows,
        drawn: Tensor,
        *,
        batch_size: int,
        device: torch.device,
        scratch: Path,
    ) -> Teacher:
        """Forecast the drawn windows.

        Args:
            model: the floating-point model; it is left in the mode it was in.
            scaling: of the run, on the device.
            training: what windows are drawn from.
            drawn: their indices, ascending, int64 [N].
            batch_size: windows at a time.
            device: of the model.
            scratch: a file for quantiles that are too many for memory.

        Raises:
            RunFolderError: the disk has no room for that file.
        """
        quantiles, done = None, 0
        with evaluating(model):
            for batch in batches_at(training, drawn, batch_size, device):
                inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
                found = model(*inputs).quantiles.float().cpu()
                if quantiles is None:
                    quantiles = _space((len(drawn), *found.shape[1:]), scratch)
                quantiles[done : done + len(found)] = found
                done += len(found)
        assert quantiles is not None, "training draws at least one window"
        return cls(drawn, quantiles)

    def __call__(self, batch: Batch, indices: Tensor) -> Batch:
        """Return the batch of the windows at int64 indices [B], all of them drawn, with what the teacher says."""
        return batch._replace(teacher=self.quantiles[torch.searchsorted(self.windows, indices)])


def drawn_windows(windows: Windows, config: TrainingConfig, epochs: range, per_epoch: int) -> Tensor:
    """Return the indices of every window that some epochs of training draw on this rank, ascending, int64.

    Args:
        windows: what is drawn from.
        config: of the training.
        epochs: numbers of the epochs in the order of the data.
        per_epoch: batches of each.
    """
    found = torch.zeros(len(windows), dtype=torch.bool)
    for epoch in epochs:
        for indices in islice(_plan(windows, config, epoch), per_epoch):
            found[indices] = True
    return found.nonzero().squeeze(1)


def _plan(windows: Windows, config: TrainingConfig, epoch: int) -> Iterator[Tensor]:
    size, place = config.batch_size, (ranks.rank(), ranks.world())
    drawn = batches(windows, size, shuffle=True, seed=config.seed, epoch=epoch, rank=place[0], world=place[1])
    return (draw.indices for draw in drawn.plan())


def _space(shape: tuple[int, ...], scratch: Path) -> Tensor:
    values = int(np.prod(shape))
    if 4 * values <= _IN_MEMORY:
        return torch.empty(shape)
    try:
        allocate(scratch, 4 * values)
    except OSError as failure:
        raise cannot_write(scratch, failure) from None
    return torch.from_file(str(scratch), shared=True, size=values).view(shape)
