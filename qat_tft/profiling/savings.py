"""What checkpointing saves here: the measured peak of one training step with it and without."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import choice_name
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.device import free_bytes
from qat_tft.model.loss import loss_of
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.runs.optimizer import make_optimizer

_EIGHTH = 8
_USABLE = 0.7
_NONE = frozenset[str]()


@dataclass(frozen=True)
class Savings:
    """Peaks of one training step on a copy of the model, weights, gradients and the optimizer's memory included.

    Attributes:
        mode: the checkpointing mode, or the segments where they are nobody's mode.
        windows: windows of the step; fewer than a batch where a step without checkpointing would not fit here.
        without_bytes, with_bytes: the peak of live tensors without checkpointing and with it.
    """

    mode: str
    windows: int
    without_bytes: int
    with_bytes: int

    @property
    def saved(self) -> float:
        """Share of the peak that checkpointing saves; negative where it costs memory."""
        return 1.0 - self.with_bytes / self.without_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {**asdict(self), "saved": self.saved}

    def sentence(self) -> str:
        """Return the figures as one line."""
        return (
            f"Checkpointing ({self.mode}): one training step of {self.windows} windows peaks at "
            f"{self.with_bytes / 2**20:,.0f} MiB instead of {self.without_bytes / 2**20:,.0f} MiB, "
            f"{abs(self.saved):.0%} {'less' if self.saved >= 0 else 'more'} (measured here)"
        )


def measure_savings(
    model: nn.Module,
    scaling: Scaling,
    batch: Batch,
    *,
    segments: frozenset[str],
    quantiles: tuple[float, ...],
    device: torch.device,
) -> Savings:
    """Make one training step without and one with checkpointing, each on a copy, and compare their peaks.

    The model, its ranges and torch's random state are as before when this returns. A step on an eighth of the
    batch tells first whether a whole batch without checkpointing fits into the memory that is free.
    """

    def peak(recomputed: frozenset[str], windows: int) -> int:
        part = batch.windows(slice(windows)).to(device)
        trained = copy.deepcopy(model).train()
        weights = sum(tensor.numel() * tensor.element_size() for tensor in trained.state_dict().values())
        step = partial(_one_step, trained, scaling, part, recomputed, quantiles)
        return int(weights + peak_bytes(step, device))

    windows = len(batch.target)
    with torch.random.fork_rng():
        few = max(1, windows // _EIGHTH)
        if peak(_NONE, few) * windows / few > _USABLE * free_bytes(device):
            windows = few
        return Savings(choice_name(segments), windows, peak(_NONE, windows), peak(segments, windows))


def _one_step(
    trained: nn.Module, scaling: Scaling, batch: Batch, segments: frozenset[str], quantiles: tuple[float, ...]
) -> None:
    optimizer = make_optimizer(trained)
    inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
    forecast = trained(*inputs, run_segment=runner_for(segments))
    loss_of(quantiles)(forecast, scaling.scale_target(batch.target, batch.series)).backward()
    optimizer.step()
