"""What checkpointing saves here: the measured peak of one training step with it and without."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import nn

from qat_tft.checkpointing.memory import peak_bytes
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import choice_name
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.model.loss import quantile_loss

_TRIAL = 8
_USABLE = 0.7
_NONE = frozenset[str]()


@dataclass(frozen=True)
class Savings:
    """Peaks of one training step on a copy of the model, weights, gradients and AdamW's memory included.

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

    The model, its ranges and torch's random state are as before when this returns. A trial on an eighth of the
    batch tells first whether a whole batch without checkpointing fits into the memory that is free.
    """

    def peak(recomputed: frozenset[str], windows: int) -> int:
        part = Batch(*(tensor[:windows].to(device) for tensor in batch))
        trained = copy.deepcopy(model).train()
        weights = sum(tensor.numel() * tensor.element_size() for tensor in trained.state_dict().values())
        step = partial(_one_step, trained, scaling, part, recomputed, quantiles)
        return int(weights + peak_bytes(step, device))

    windows = len(batch.target)
    with torch.random.fork_rng():
        trial = max(1, windows // _TRIAL)
        if peak(_NONE, trial) * windows / trial > _USABLE * _free_bytes(device):
            windows = trial
        return Savings(choice_name(segments), windows, peak(_NONE, windows), peak(segments, windows))


def _one_step(
    trained: nn.Module, scaling: Scaling, batch: Batch, segments: frozenset[str], quantiles: tuple[float, ...]
) -> None:
    optimizer = torch.optim.AdamW(trained.parameters(), fused=True)  # as training does
    inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
    forecast = trained(*inputs, run_segment=runner_for(segments))
    quantile_loss(forecast.quantiles, scaling.scale_target(batch.target, batch.series), quantiles).backward()
    optimizer.step()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
