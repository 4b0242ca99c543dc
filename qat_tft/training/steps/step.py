"""One optimizer step: forward, loss on the scaled target, backward, clip, step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, Self

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.device import Later
from qat_tft.errors import NonFiniteLossError
from qat_tft.evaluation.nonfinite import explain_batch
from qat_tft.model.loss import Loss, distance, present_windows
from qat_tft.model.tft import Forecast
from qat_tft.runs.optimizer import leave_out
from qat_tft.schema import Schema


@dataclass(frozen=True)
class StepOutcome:
    """What a step did, over all ranks.

    Attributes:
        loss: mean over the targets of its windows that are there.
        windows: number of windows.
        gradient_norm: before clipping.
        weight: windows, each counted by the share of its targets that are there; by it losses add up over steps.
    """

    loss: float
    windows: int
    gradient_norm: float
    weight: float


@dataclass(frozen=True)
class StepUnderWay:
    """A step that the device may still be computing: what the host knows of it, and what it will.

    Attributes:
        windows, weight: as `StepOutcome` has them.
        loss_and_norm: sum of the losses by weight, and gradient norm.
        explain: says what made a loss of this rank non-finite; empty where none is.
        place: phase, epoch and batch for an error's message.
        scaled: whether losses are scaled, whose overflows are routine: then the norm may be infinite.
    """

    windows: int
    weight: float
    loss_and_norm: Later
    explain: Callable[[], str]
    place: str
    scaled: bool

    def settled(self) -> StepOutcome:
        """Return what it did, once the device has done it.

        Raises:
            NonFiniteLossError: the loss or the gradient was not finite; no weight has changed in this step, and none
                in those after it.
        """
        loss_sum, norm = self.loss_and_norm.read()
        if not math.isfinite(loss_sum):
            said = [text for text in ranks.told_by_all(self.explain()) if text]
            raise NonFiniteLossError(
                said[0] if said else f"the loss is {loss_sum}",
                where=self.place,
                next_step="Fix those values, or lower training.learning_rate",
            )
        if not math.isfinite(norm) and not self.scaled:
            raise NonFiniteLossError(
                f"the gradient norm is {norm} although the loss is finite",
                where=self.place,
                next_step="Lower training.learning_rate, or train with --precision fp32",
            )
        return StepOutcome(loss_sum / self.weight if self.weight else 0.0, self.windows, norm, self.weight)


class _Part(NamedTuple):
    """Windows of one forward and backward pass, and how many they count as."""

    raw: Batch
    weight: float


class _Sizes:
    """How large a step is over all ranks; they are asked at its start and need not have answered before it is read."""

    def __init__(self, answers: Callable[[], list[list[float]]]) -> None:
        self._answers = answers

    @classmethod
    def asked_for(cls, batches: Sequence[Batch], cut: Sequence[Sequence[_Part]]) -> Self:
        """Tell the others of windows, their weight, and the passes of each batch that this rank has; ask for theirs."""
        windows = float(sum(len(batch.target) for batch in batches))
        weight = sum(part.weight for parts in cut for part in parts)
        return cls(ranks.ask_numbers_of_all(windows, weight, *map(len, cut)))

    @cached_property
    def _by_rank(self) -> list[list[float]]:
        return self._answers()

    @property
    def windows(self) -> int:
        """Windows of all ranks."""
        return int(sum(windows for windows, *_ in self._by_rank))

    @property
    def weight(self) -> float:
        """What these windows count as."""
        return sum(weight for _, weight, *_ in self._by_rank)

    def passes(self, batch: int) -> int:
        """Return how many forward and backward passes the rank with the most makes for a batch."""
        return int(max(passes[batch] for _, _, *passes in self._by_rank))


@dataclass(frozen=True)
class TrainingStep:
    """Trains `model` for one step on one or more batches: its loss is the mean over all of their targets.

    Attributes:
        accelerator: device, number format and loss scaling.
        model: takes scaled static, historical, future and a segment runner.
        scaling: from raw to scaled values.
        schema: names the columns in an error's message.
        optimizer: over the parameters of `model`.
        run_segment: decides which activations are recomputed.
        loss: what the step lowers.
        gradient_clip: largest gradient norm.
        micro_batch: most windows of one forward and backward pass; None: a whole batch.
    """

    accelerator: Accelerator
    model: nn.Module
    scaling: Scaling
    schema: Schema
    optimizer: torch.optim.Optimizer
    run_segment: SegmentRunner
    loss: Loss
    gradient_clip: float
    micro_batch: int | None = None
    distill: float = 0.0

    def __call__(self, batches: Sequence[Batch], *, place: str) -> StepUnderWay:
        """Make the step; the weights have changed once the device has done what it was told.

        The gradient is that of one batch of all these windows, and of those that the other ranks have: each counts by
        its targets that are there, whatever the size of its batch and however many batches the step has. Nothing waits
        for the device: where loss or gradient is not finite, the device leaves the weights alone, in this step and in
        all later ones, and `StepUnderWay.settled` says so.

        Args:
            batches: raw windows, one forward and backward pass for each or for each of its micro-batches.
            place: epoch and batch for an error's message.
        """
        self.model.train()
        cut = [[_Part(raw, present_windows(raw.target)) for raw in self._cut(batch)] for batch in batches]
        told = _Sizes.asked_for(batches, cut)
        losses: list[tuple[_Part, Tensor]] = []
        for number, parts in enumerate(cut):
            for part in _as_many(parts, partial(told.passes, number)):
                losses.append((part, self._accumulate(part, told)))
        figures = self._update(_weighted(losses))
        explain = partial(self._explain, losses)
        scaled = self.accelerator.scaler is not None
        return StepUnderWay(told.windows, told.weight, Later(figures), explain, place, scaled)

    def scaled(self, raw: Batch) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Return the scaled inputs and the scaled target of raw windows, on the device."""
        batch = raw.to(self.accelerator.device)
        inputs = self.scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
        return inputs, self.scaling.scale_target(batch.target, batch.series)

    def forecast(self, inputs: tuple[Tensor, Tensor, Tensor], run_segment: SegmentRunner) -> Forecast:
        """Return the model's forecast of scaled inputs in the number format of the training."""
        with self.accelerator.autocast():
            forecast: Forecast = self.model(*inputs, run_segment=run_segment)
        return forecast

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        return micro_batches(batch, self.micro_batch)

    def _accumulate(self, part: _Part, told: _Sizes) -> Tensor:
        """Add the gradient of a part's share to the others; return the mean loss of its windows."""
        inputs, target = self.scaled(part.raw)
        forecast = self.forecast(inputs, self.run_segment)
        loss = self._loss(forecast, target, part.raw.teacher)
        share = part.weight / told.weight if told.weight else 0.0
        self.accelerator.backward(loss if share == 1.0 else loss * share)
        return loss.detach()

    def _update(self, loss_sum: Tensor) -> Tensor:
        """Move the weights where everything is finite; return the sum of the losses and the gradient norm, [2]."""
        ranks.add_gradients(self.model.parameters(), loss_sum)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        assert isinstance(norm, Tensor), "a model has parameters"
        figures = torch.stack([loss_sum, norm.to(loss_sum)])
        if self.accelerator.scaler is None:  # with scaled losses the scaler leaves out such a step
            leave_out(self.optimizer, figures.isfinite().all().logical_not())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return figures

    def _explain(self, losses: Sequence[tuple[_Part, Tensor]]) -> str:
        """Say which columns made a loss of this rank non-finite; empty where none is."""
        for part, loss in losses:
            if not math.isfinite(value := float(loss)):
                return f"the loss is {value}; {explain_batch(self.schema, *self.scaled(part.raw))}"
        return ""

    def _loss(self, forecast: Forecast, target: Tensor, teacher: Tensor | None) -> Tensor:
        loss = self.loss(forecast, target)
        if teacher is None or not self.distill:
            return loss
        apart = distance(forecast.quantiles.float(), teacher.to(target.device), target)
        return (1 - self.distill) * loss + self.distill * apart


def _as_many(parts: Sequence[_Part], count: Callable[[], int]) -> Iterator[_Part]:
    """Yield the parts, and the last one without targets until there are `count`: ranks make equally many passes."""
    yield from parts
    last = parts[-1].raw
    for _ in range(count() - len(parts)):
        yield _Part(last._replace(target=torch.full_like(last.target, torch.nan)), 0.0)


def _weighted(losses: Sequence[tuple[_Part, Tensor]]) -> Tensor:
    """Return the sum of losses times weights, in double precision, on the device."""
    whole = torch.zeros((), dtype=torch.float64, device=losses[0][1].device)
    for part, loss in losses:
        whole += loss.double() * part.weight
    return whole


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into runs of at most `size` windows, in order; None: one run."""
    windows = len(batch.target)
    for start in range(0, windows, size or windows):
        yield batch.windows(slice(start, start + (size or windows)))
