"""Distillation: the floating-point model's quantiles of every window that quantization-aware training draws.

They are computed once, in evaluation mode, before the first step: no second model is in memory, and a window has the
same teacher whatever is recomputed. Legend: N drawn windows, B batch, F horizon, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qat_tft.config.training import TrainingConfig
from qat_tft.data.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.evaluation.window_forecasts import batches_at, evaluating

_IN_MEMORY = 2**28
"""Most bytes of the teacher's quantiles that are held in memory; more lie in a mapped file."""


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
    """Return the indices of every window that some epochs of training draw, ascending, int64.

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
    drawn = batches(windows, config.batch_size, shuffle=True, seed=config.seed, epoch=epoch)
    return (indices for indices, _ in drawn.plan())


def _space(shape: tuple[int, ...], scratch: Path) -> Tensor:
    values = int(np.prod(shape))
    if 4 * values <= _IN_MEMORY:
        return torch.empty(shape)
    return torch.from_file(str(scratch), shared=True, size=values).view(shape)
