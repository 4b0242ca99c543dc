"""The loop over epochs and steps of one phase, resumable after every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from qat_tft.config.training import TrainingConfig
from qat_tft.data.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.device import is_out_of_memory, peak_process_mib, restore_random_state
from qat_tft.errors import OutOfMemoryError, RunFolderError
from qat_tft.evaluation.window_forecasts import even_indices, validation_loss
from qat_tft.runs import files
from qat_tft.runs.optimizer import averaged_weights, set_learning_rate
from qat_tft.training.interrupt import Interrupted, InterruptRequest
from qat_tft.training.metrics import MetricsLog
from qat_tft.training.out_of_memory import FallbackEvent, FallbackLevel, OutOfMemoryFallback
from qat_tft.training.progress import EpochReport, PhaseStart, Progress, StepReport
from qat_tft.training.schedule import learning_rate, tail_epochs
from qat_tft.training.state import (
    Position,
    SavedState,
    restore_optimizer,
    save_state,
)
from qat_tft.training.step import StepOutcome, TrainingStep


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


class Phase:
    """Trains a model through one phase and leaves its best weights in it."""

    def __init__(self, context: RunContext, plan: PhasePlan, step: TrainingStep, position: Position) -> None:
        self.context = context
        self.plan = plan
        self.step = step
        self.position = position
        self.best: dict[str, Tensor] = {}
        config = context.config
        level = FallbackLevel(config.recomputed_segments, config.batch_size)
        level = level if position.level is None else FallbackLevel.from_json(position.level)
        self.fallback = OutOfMemoryFallback(step, level, self._fell_back)
        in_all = batches_in_all(context.training, config)
        self.batches_per_epoch = min(config.batches_per_epoch or in_all, in_all)
        self.steps_per_epoch = -(-self.batches_per_epoch // config.accumulation)
        self.steps = self.steps_per_epoch * plan.epochs

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.step.model

    def run(self, saved: SavedState | None = None) -> None:
        """Train to the end of the phase, from its start or from a saved state; keep the best weights.

        Raises:
            Interrupted: the user asked to stop; the state is on disk.
            NonFiniteLossError: the loss or gradient became non-finite; the state before that epoch is on disk.
            OutOfMemoryError: a step fits on no level of the fallback; the state before that step is on disk.
            SpentProcessError: as before, with the next level to go on with in another process.
            TornUpdateError: memory ran out while weights were written; an earlier state is on disk.
            RunFolderError: the state cannot be written.
        """
        if saved is None:
            self._start()
        else:
            self._resume(saved)
        position = self.position
        self.context.progress.phase(PhaseStart(self.plan.name, self.plan.epochs, self.steps, position.step))
        while position.epoch < self._last_epoch:
            self._epoch()
            self._stop_if_asked()
        self.model.load_state_dict(self.best)

    def _start(self) -> None:
        torch.manual_seed(self.context.config.seed + self.plan.first_epoch)
        self.best = copy_weights(self.model)
        self.position.best_loss = self.plan.start_loss
        if self.plan.score_start:
            self.plan.before_step(self.steps, self.steps)
            self.position.best_loss = self._validate()
        self._save()
        self.plan.started()

    def _resume(self, saved: SavedState) -> None:
        try:
            self._restore(saved)
        except (RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError) as misfit:
            reason = str(misfit).splitlines()[-1].strip() if str(misfit) else type(misfit).__name__
            raise RunFolderError(
                f"the saved state does not fit the run: {reason}",
                where=str(self.context.state_path),
                next_step=files.RESTORE,
            ) from None

    def _restore(self, saved: SavedState) -> None:
        saved.require_like(self.model)
        done = self.position.step_in_epoch
        if done > self.steps_per_epoch:
            raise ValueError(f"{done} steps of an epoch that has {self.steps_per_epoch}")
        self.model.load_state_dict(saved.model)
        self.best = saved.best
        self.plan.figures.remember(saved.figures)
        restore_optimizer(self.step.optimizer, saved)
        if self.context.accelerator.scaler is not None:
            self.context.accelerator.scaler.load_state_dict(saved.scaler)
        restore_random_state(saved.random)

    def _epoch(self) -> None:
        position, started = self.position, time.perf_counter()
        done_before = position.windows
        rate = 0.0
        for group in self._groups():
            rate = self._set_learning_rate()
            self.plan.before_step(position.step, self.steps)
            place = f"{self.plan.name} epoch {position.epoch + 1}, batch {position.step_in_epoch + 1}"
            outcome = self._make_step(group, place)
            self._advance(outcome)
            speed = (position.windows - done_before) / (time.perf_counter() - started)
            self._report_step(outcome, rate, speed)
            if position.step_in_epoch < self.steps_per_epoch and self.context.interrupt.requested:
                position.seconds += time.perf_counter() - started
                self._save()
                self._stop_if_asked()
        trained = time.perf_counter() - started
        speed = (position.windows - done_before) / trained if trained else 0.0
        self._finish_epoch(rate, speed, started)

    def _make_step(self, group: tuple[Batch, ...], place: str) -> StepOutcome:
        working = self.position.level
        try:
            return self.fallback(group, place=place)
        except OutOfMemoryError:
            self.position.level = working  # those above it made no step
            self._save_if_memory_allows()
            raise

    def _fell_back(self, event: FallbackEvent) -> None:
        position = self.position
        position.level = event.reached.to_json()
        where = {"phase": self.plan.name, "epoch": position.epoch + 1, "step": position.step + 1}
        self.context.metrics.write({**event.to_json(), **where})
        self.context.progress.note(event.sentence())
        self._save_if_memory_allows()

    def _save_if_memory_allows(self) -> None:
        try:
            self._save()
        except (MemoryError, RuntimeError) as failure:
            if not is_out_of_memory(failure):
                raise
            self.context.progress.note(
                "There is not enough memory to save the state either: the previously saved one is kept"
            )

    def _groups(self) -> Iterator[tuple[Batch, ...]]:
        config = self.context.config
        skip = self.position.step_in_epoch * config.accumulation
        loaded = batches(
            self.context.training,
            config.batch_size,
            shuffle=True,
            seed=config.seed,
            epoch=self.plan.first_epoch + self.position.epoch,
            skip=skip,
        )
        drawn: Iterator[Batch] = islice(loaded, self.batches_per_epoch - skip)
        if (teach := self.plan.teach) is not None:
            drawn = (teach(batch, indices) for batch, (indices, _) in zip(drawn, loaded.plan(), strict=False))
        return _grouped(drawn, config.accumulation)

    def _advance(self, outcome: StepOutcome) -> None:
        self.position.step += 1
        self.position.step_in_epoch += 1
        self.position.loss_sum += outcome.loss * outcome.weight
        self.position.weight += outcome.weight
        self.position.windows += outcome.windows

    def _finish_epoch(self, rate: float, speed: float, started: float) -> None:
        position = self.position
        more = self.plan.figures.after_epoch()
        before = position.best_loss
        loss = self._keep_if_best()
        if self.context.config.averaging:
            with averaged_weights(self.step.optimizer):
                loss = min(loss, self._keep_if_best())
        better = position.best_loss != before
        position.stale_epochs = 0 if better else position.stale_epochs + 1
        seconds = time.perf_counter() - started
        report = EpochReport(
            phase=self.plan.name,
            epoch=position.epoch + 1,
            step=position.step,
            train_loss=position.loss_sum / position.weight if position.weight else 0.0,
            validation_loss=loss,
            learning_rate=rate,
            samples_per_second=speed,
            peak_mib=peak_process_mib(),
            seconds=seconds,
            best=better,
            more=more,
        )
        self.context.metrics.write(report.to_json())
        self.context.progress.epoch(report)
        position.epoch += 1
        position.step_in_epoch, position.loss_sum, position.weight, position.windows = 0, 0.0, 0.0, 0
        position.seconds += seconds
        self._go_over_to_the_tail()
        self._save()

    def _keep_if_best(self) -> float:
        """Return the validation loss of what the model's weights are now; where it is the least, keep them."""
        position, loss = self.position, self._validate()
        if position.best_loss is None or loss < position.best_loss:
            position.best_loss, position.best_epoch = loss, position.epoch + 1
            self.best = copy_weights(self.model)
        return loss

    def _go_over_to_the_tail(self) -> None:
        """Let the learning rate fall from here where patience is over, unless the phase ends as soon without it."""
        position, patience, length = self.position, self.plan.patience, tail_epochs(self.plan.epochs)
        if patience is None or position.tail is not None or position.stale_epochs < patience:
            return
        if position.epoch + length < self.plan.epochs:
            position.tail = position.epoch
            self.context.progress.note(
                f"No lower validation loss since epoch {position.epoch - position.stale_epochs}: the learning rate "
                f"falls to its floor by the end of epoch {self._last_epoch}, the last one"
            )

    @property
    def _last_epoch(self) -> int:
        tail = self.position.tail
        return self.plan.epochs if tail is None else tail + tail_epochs(self.plan.epochs)

    def _validate(self) -> float:
        return validation_loss(
            self.model,
            self.context.scaling,
            self.context.validation,
            even_indices(len(self.context.validation), self.context.config.validation_windows),
            loss=self.step.loss,
            batch_size=self.fallback.level.micro_batch,
            device=self.context.accelerator.device,
        )

    def _set_learning_rate(self) -> float:
        tail = None
        if self.position.tail is not None:
            tail = range(self.position.tail * self.steps_per_epoch, self._last_epoch * self.steps_per_epoch)
        warmup = self.context.config.warmup
        rate = learning_rate(self.position.step, self.steps, peak=self.plan.peak, warmup=warmup, tail=tail)
        set_learning_rate(self.step.optimizer, rate)
        return rate

    def _report_step(self, outcome: StepOutcome, rate: float, speed: float) -> None:
        self.context.progress.step(
            StepReport(
                phase=self.plan.name,
                epoch=self.position.epoch + 1,
                step=self.position.step,
                loss=outcome.loss,
                gradient_norm=outcome.gradient_norm,
                learning_rate=rate,
                samples_per_second=speed,
                peak_mib=peak_process_mib(),
            )
        )

    def _stop_if_asked(self) -> None:
        if self.context.interrupt.requested:
            raise Interrupted(self.context.run_name)

    def _save(self) -> None:
        self.position.metrics_bytes = self.context.metrics.synced()
        scaler = self.context.accelerator.scaler
        save_state(
            self.context.state_path,
            self.position,
            model=self.model,
            best=self.best,
            optimizer=self.step.optimizer,
            scaler=scaler.state_dict() if scaler is not None else {},
            figures=self.plan.figures.memory(),
        )


def _grouped(loaded: Iterator[Batch], size: int) -> Iterator[tuple[Batch, ...]]:
    while group := tuple(islice(loaded, size)):
        yield group


def batches_in_all(windows: Windows, config: TrainingConfig) -> int:
    """Return how many batches hold every window once."""
    return -(-len(windows) // config.batch_size)


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state on the CPU, independent of the model."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
