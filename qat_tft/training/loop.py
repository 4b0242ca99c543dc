"""The loop over epochs and steps of one phase, resumable after every step.

What a step did is read when the next one is under way, so that the device never waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.config.training import TrainingConfig
from qat_tft.data.loading.loader import batches, mixed_seed
from qat_tft.data.loading.prefetch import prefetched
from qat_tft.data.windows import Batch, Windows
from qat_tft.device import is_out_of_memory, peak_process_mib, restore_random_state
from qat_tft.errors import LostRankError, NonFiniteLossError, OutOfMemoryError, RunFolderError
from qat_tft.evaluation.window_forecasts import even_indices, validation_loss
from qat_tft.runs import files
from qat_tft.runs.optimizer import averaged_weights, set_learning_rate
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.plan import PhasePlan, RunContext
from qat_tft.training.progress import EpochReport, PhaseStart, StepReport
from qat_tft.training.schedule import learning_rate, tail_epochs
from qat_tft.training.state import Position, SavedState, restore_optimizer, save_state
from qat_tft.training.steps.out_of_memory import FallbackEvent, FallbackLevel, OutOfMemoryFallback
from qat_tft.training.steps.step import StepUnderWay, TrainingStep


class Phase:
    """Trains a model through one phase and leaves its best weights in it."""

    def __init__(self, context: RunContext, plan: PhasePlan, step: TrainingStep, position: Position) -> None:
        self.context = context
        self.plan = plan
        self.step = step
        self.position = position
        self.best: dict[str, Tensor] = {}
        config = context.config
        level = FallbackLevel(config.recomputed_segments, ranks.largest_share(config.batch_size))
        level = level if position.level is None else FallbackLevel.from_json(position.level)
        self.fallback = OutOfMemoryFallback(step, level, self._fell_back)
        in_all = batches_in_all(context.training, config)
        self.batches_per_epoch = min(config.batches_per_epoch or in_all, in_all)
        self.steps_per_epoch = -(-self.batches_per_epoch // config.accumulation)
        self.steps = self.steps_per_epoch * plan.epochs
        self._under_way: Callable[[], None] | None = None
        self._next_save = 0.0
        self._counted = time.perf_counter()

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.step.model

    def run(self, saved: SavedState | None = None) -> None:
        """Train to the end of the phase, from its start or from a saved state; keep the best weights.

        All ranks run it together, and what it decides, all of them decide alike.

        Raises:
            Interrupted: the user asked to stop; the state is on disk.
            NonFiniteLossError: the loss or gradient became non-finite; the state before that epoch is on disk.
            OutOfMemoryError: a step fits on no level of the fallback; the state before that step is on disk.
            SpentProcessError: as before, with the next level to go on with in another process.
            TornUpdateError: memory ran out while weights were written; an earlier state is on disk.
            LostRankError: another rank is gone; the state before the step it left is on disk.
            RunFolderError: the state cannot be written.
        """
        if saved is None:
            self._start()
        else:
            self._resume(saved)
        position = self.position
        self.context.progress.phase(PhaseStart(self.plan.name, self.plan.epochs, self.steps, position.step))
        try:
            while position.epoch < self._last_epoch:
                self._epoch()
                self._stop_if_asked()
        except LostRankError as lost:
            self._save_what_is_left()
            raise LostRankError(lost.said, f"Resume with `qat-tft train --resume {self.context.run_name}`.") from None
        self.model.load_state_dict(self.best)

    def _start(self) -> None:
        torch.manual_seed(self.context.config.seed + self.plan.first_epoch)
        ranks.copy_from_first(self.model.state_dict().values())
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
        for group in self._groups():
            rate = self._set_learning_rate(position.step)
            self.plan.before_step(position.step, self.steps)
            self._draw_own_masks()
            place = f"{self.plan.name} epoch {position.epoch + 1}, batch {position.step_in_epoch + 1}"
            made = self._make_step(group, place)
            self._settle()
            speed = (position.windows - done_before + made.windows) / (time.perf_counter() - started)
            self._advance(made, rate, speed)
            if position.step_in_epoch < self.steps_per_epoch:
                self._between_steps()
        self._settle()
        trained = time.perf_counter() - started
        speed = (position.windows - done_before) / trained if trained else 0.0
        self._finish_epoch(speed, started)

    def _between_steps(self) -> None:
        """Save the state where it is time, and stop where any rank is asked to."""
        asked = ranks.numbers_of_all(self.context.interrupt.requested, time.monotonic() >= self._next_save)
        stopping, due = any(stop for stop, _ in asked), asked[0][1]
        if stopping or due:
            self._save()
        if stopping:
            raise Interrupted(self.context.run_name)

    def _draw_own_masks(self) -> None:
        """Let dropout of several ranks draw different masks; what those of a step are, the step decides alone."""
        if ranks.world() > 1:
            seed, step = self.context.config.seed + self.plan.first_epoch, self.position.step
            torch.manual_seed(mixed_seed(seed, step, ranks.rank()))

    def _make_step(self, group: tuple[Batch, ...], place: str) -> StepUnderWay:
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

    def _save_what_is_left(self) -> None:
        """Save the state without the last step's loss, where that cannot be read any more."""
        with suppress(NonFiniteLossError, LostRankError):
            self._save()

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
            rank=ranks.rank(),
            world=ranks.world(),
        )
        drawn: Iterator[Batch] = islice(loaded, self.batches_per_epoch - skip)
        if (teach := self.plan.teach) is not None:
            drawn = (teach(batch, draw.indices) for batch, draw in zip(drawn, loaded.plan(), strict=False))
        drawn = prefetched(drawn, self.context.accelerator.device)
        return _grouped(drawn, config.accumulation)

    def _advance(self, made: StepUnderWay, rate: float, speed: float) -> None:
        position = self.position
        position.step += 1
        position.step_in_epoch += 1
        position.windows += made.windows
        self._under_way = partial(self._account_for, made, position.step, rate, speed)
        if made.scaled:  # the next step would change weights after a loss that is not finite
            self._settle()

    def _settle(self) -> None:
        """Take what the step before has done into account."""
        if (account := self._under_way) is not None:
            self._under_way = None
            account()

    def _account_for(self, made: StepUnderWay, step: int, rate: float, speed: float) -> None:
        outcome = made.settled()
        self.position.loss_sum += outcome.loss * outcome.weight
        self.position.weight += outcome.weight
        self.context.progress.step(
            StepReport(
                phase=self.plan.name,
                epoch=self.position.epoch + 1,
                step=step,
                loss=outcome.loss,
                gradient_norm=outcome.gradient_norm,
                learning_rate=rate,
                samples_per_second=speed,
                peak_mib=peak_process_mib(),
            )
        )

    def _finish_epoch(self, speed: float, started: float) -> None:
        position = self.position
        loss, better = self._keep_if_best()
        more = self.plan.figures.after_epoch()
        position.stale_epochs = 0 if better else position.stale_epochs + 1
        seconds = time.perf_counter() - started
        report = EpochReport(
            phase=self.plan.name,
            epoch=position.epoch + 1,
            step=position.step,
            train_loss=position.loss_sum / position.weight if position.weight else 0.0,
            validation_loss=loss,
            learning_rate=self._learning_rate(position.step - 1),
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
        self._go_over_to_the_tail()
        self._save()

    def _keep_if_best(self) -> tuple[float, bool]:
        """Return the lower validation loss of the weights and of their average, and whether it is the least so far.

        Where it is, those weights are kept. Nothing is before both are validated, for which all ranks are needed.
        """
        least, best = self._validate(), None
        before = self.position.best_loss
        if before is None or least < before:
            best = copy_weights(self.model)
        if self.context.config.averaging:
            with averaged_weights(self.step.optimizer):
                if (loss := self._validate()) < least:
                    least = loss
                    best = copy_weights(self.model) if before is None or loss < before else None
        if best is not None:
            self.position.best_loss, self.position.best_epoch, self.best = least, self.position.epoch + 1, best
        return least, best is not None

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

    def _set_learning_rate(self, step: int) -> float:
        rate = self._learning_rate(step)
        set_learning_rate(self.step.optimizer, rate)
        return rate

    def _learning_rate(self, step: int) -> float:
        tail = None
        if self.position.tail is not None:
            tail = range(self.position.tail * self.steps_per_epoch, self._last_epoch * self.steps_per_epoch)
        warmup = self.context.config.warmup
        return learning_rate(step, self.steps, peak=self.plan.peak, warmup=warmup, tail=tail)

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.position.seconds += now - self._counted
        self._counted = now

    def _stop_if_asked(self) -> None:
        if ranks.any_of_all(self.context.interrupt.requested):
            raise Interrupted(self.context.run_name)

    def _save(self) -> None:
        """Save the state, where this is the rank that does."""
        self._settle()
        self._count_seconds()
        self._next_save = time.monotonic() + self.context.config.save_every
        if not ranks.is_first():
            return
        self.position.ranks = ranks.world()
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
