"""One optimizer step: forward, loss on the scaled target, backward, clip, step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.errors import NonFiniteLossError
from qat_tft.evaluation.nonfinite import explain_batch
from qat_tft.model.loss import Loss, distance, present_windows
from qat_tft.model.tft import Forecast
from qat_tft.schema import Schema


@dataclass(frozen=True)
class StepOutcome:
    """What a step did.

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

    def __call__(self, batches: Sequence[Batch], *, place: str) -> StepOutcome:
        """Make the step; the weights have changed when it returns.

        The gradient is that of one batch of all these windows: each batch counts by its targets that are there,
        whatever its size and however many batches the step has.

        Args:
            batches: raw windows, one forward and backward pass for each or for each of its micro-batches.
            place: epoch and batch for an error's message.

        Raises:
            NonFiniteLossError: the loss or the gradient is not finite; no weight has changed.
        """
        self.model.train()
        loss_sum, weight = 0.0, sum(present_windows(batch.target) for batch in batches)
        for batch in batches:
            for part in micro_batches(batch, self.micro_batch):
                targets = present_windows(part.target)
                loss_sum += self._accumulate(part, targets / weight if weight else 0.0, place) * targets
        norm = self._clip(place)
        self.optimizer.step()
        self.optimizer.zero_grad()
        windows = sum(len(batch.target) for batch in batches)
        return StepOutcome(loss_sum / weight if weight else 0.0, windows, norm, weight)

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

    def _accumulate(self, raw: Batch, share: float, place: str) -> float:
        """Add the gradient of a batch's share to the others; return the mean loss of these windows."""
        inputs, target = self.scaled(raw)
        forecast = self.forecast(inputs, self.run_segment)
        loss = self._loss(forecast, target, raw.teacher)
        value = float(loss.detach())
        if not math.isfinite(value):
            self.optimizer.zero_grad()
            raise NonFiniteLossError(
                f"the loss is {value}; {explain_batch(self.schema, inputs, target)}",
                where=place,
                next_step="Fix those values, or lower training.learning_rate",
            )
        self.accelerator.backward(loss if share == 1.0 else loss * share)
        return value

    def _loss(self, forecast: Forecast, target: Tensor, teacher: Tensor | None) -> Tensor:
        loss = self.loss(forecast, target)
        if teacher is None or not self.distill:
            return loss
        apart = distance(forecast.quantiles.float(), teacher.to(target.device), target)
        return (1 - self.distill) * loss + self.distill * apart

    def _clip(self, place: str) -> float:
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        value = float(norm) if norm is not None else math.nan
        # With scaled fp16 losses an overflow is routine: the scaler skips that step by itself.
        if not math.isfinite(value) and self.accelerator.scaler is None:
            self.optimizer.zero_grad()
            raise NonFiniteLossError(
                f"the gradient norm is {value} although the loss is finite",
                where=place,
                next_step="Lower training.learning_rate, or train with --precision fp32",
            )
        return value


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into runs of at most `size` windows, in order; None: one run."""
    windows = len(batch.target)
    for start in range(0, windows, size or windows):
        yield batch.windows(slice(start, start + (size or windows)))
