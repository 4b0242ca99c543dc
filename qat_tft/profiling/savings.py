"""What checkpointing saves here and what it costs: memory and time of one training step with it and without."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import choice_name
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.device import free_bytes, seconds_of
from qat_tft.model.loss import loss_of
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.runs.optimizer import make_optimizer

_EIGHTH = 8
_USABLE = 0.7
_ROUNDS, _MOST_SECONDS = 3, 2.0  # a round is a step of each kind; no other one begins after that time
_NONE = frozenset[str]()


@dataclass(frozen=True)
class Savings:
    """Peak and time of one training step on a copy of the model.

    Attributes:
        mode: the checkpointing mode, or the segments where they are nobody's mode.
        windows: windows of the step; fewer than a batch where a step without checkpointing would not fit here.
        without_bytes, with_bytes: the peak of live tensors without checkpointing and with it; weights, gradients and
            the optimizer's memory are in it.
        without_seconds, with_seconds: the shortest time of a step, likewise.
    """

    mode: str
    windows: int
    without_bytes: int
    with_bytes: int
    without_seconds: float
    with_seconds: float

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
            f"{abs(self.saved):.0%} {'less' if self.saved >= 0 else 'more'}, and takes "
            f"{self.with_seconds / self.without_seconds:.2f} times the time (measured here)"
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
    """Make training steps without and with checkpointing, each on a copy, and compare their peaks and times.

    Steps are timed after those whose peaks are counted, and without counting. The model, its ranges and torch's random
    state are as before when this returns. A step on an eighth of the batch tells first whether a whole batch without
    checkpointing fits into the memory that is free.
    """

    def step(recomputed: frozenset[str], windows: int) -> Callable[[], None]:
        part = batch.windows(slice(windows)).to(device)
        return partial(_one_step, copy.deepcopy(model).train(), scaling, part, recomputed, quantiles)

    def peak(recomputed: frozenset[str], windows: int) -> int:
        weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        return int(weights + peak_bytes(step(recomputed, windows), device))

    windows = len(batch.target)
    with torch.random.fork_rng():
        few = max(1, windows // _EIGHTH)
        if peak(_NONE, few) * windows / few > _USABLE * free_bytes(device):
            windows = few
        peaks = peak(_NONE, windows), peak(segments, windows)
        times = _shortest((step(_NONE, windows), step(segments, windows)), device)
        return Savings(choice_name(segments), windows, *peaks, *times)


def _shortest(steps: tuple[Callable[[], None], ...], device: torch.device) -> tuple[float, ...]:
    """Return the shortest time of each step, in turns, so that what disturbs the machine disturbs all of them."""
    start = time.monotonic()
    rounds: list[list[float]] = []
    while len(rounds) < _ROUNDS and (not rounds or time.monotonic() - start < _MOST_SECONDS):
        rounds.append([seconds_of(step, device) for step in steps])
    return tuple(min(taken) for taken in zip(*rounds, strict=True))


def _one_step(
    trained: nn.Module, scaling: Scaling, batch: Batch, segments: frozenset[str], quantiles: tuple[float, ...]
) -> None:
    optimizer = make_optimizer(trained)
    inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
    forecast = trained(*inputs, run_segment=runner_for(segments))
    loss_of(quantiles)(forecast, scaling.scale_target(batch.target, batch.series)).backward()
    optimizer.step()
