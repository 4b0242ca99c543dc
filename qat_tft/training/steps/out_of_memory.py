"""What a run does when a training step does not fit into memory: roll it back, and retry with less.

There are levels. Each next one recomputes more of the activations, or cuts batches into smaller micro-batches whose
gradients are added up. The first gives bitwise identical results. The second keeps the effective batch, and the loss
and gradient to rounding; dropout draws different masks, and ranges are averaged over micro-batches instead of batches.
Where several ranks train, one of them that runs out of memory calls all of them back to the start of the step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from qat_tft import ranks
from qat_tft.checkpointing.guard import require_replayable
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import EVERY_SEGMENT, TABLE_SEGMENTS, Mode, choice_name, segments_of
from qat_tft.data.windows import Batch
from qat_tft.device import ONEDNN_FAILURES, is_out_of_memory, release_cached_memory
from qat_tft.errors import LostRankError, OutOfMemoryError, SpentProcessError, TornUpdateError
from qat_tft.profiling.heap import give_back_free_blocks
from qat_tft.ranks import RanksCalled
from qat_tft.training.steps.snapshot import StepSnapshot
from qat_tft.training.steps.step import StepUnderWay, TrainingStep

_PROBED = 8
"""Windows that the check of the segments looks at."""


@dataclass(frozen=True)
class FallbackLevel:
    """How much memory a step takes: the segments that are recomputed, and the windows of one backward pass."""

    segments: frozenset[str]
    micro_batch: int

    @property
    def name(self) -> str:
        """The mode, or the segments where they are nobody's mode."""
        return choice_name(self.segments)

    def next(self) -> FallbackLevel | None:
        """Return the level that takes less memory: the next mode, then half the micro-batch; None at the top.

        Tables are recomputed on every level where they are on this one: they take the same for any micro-batch.
        """
        tables = self.segments.intersection(TABLE_SEGMENTS)
        for mode in Mode:
            if self.segments - tables < segments_of(mode):
                return replace(self, segments=segments_of(mode) | tables)
        return replace(self, micro_batch=-(-self.micro_batch // 2)) if self.micro_batch > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the level again."""
        return {"segments": sorted(self.segments, key=EVERY_SEGMENT.index), "micro_batch": self.micro_batch}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the level that `to_json` wrote."""
        return cls(frozenset(value["segments"]), value["micro_batch"])


@dataclass(frozen=True)
class FallbackEvent:
    """A step ran out of memory and was rolled back: where, what the allocator said, and the levels before and after."""

    place: str
    said: str
    left: FallbackLevel
    reached: FallbackLevel

    def sentence(self) -> str:
        """Return what the user reads."""
        if self.reached.segments != self.left.segments:
            done = f"checkpointing changes from {self.left.name} to {self.reached.name}; results are bitwise identical"
        else:
            done = (
                f"the micro-batch shrinks from {self.left.micro_batch} to {self.reached.micro_batch} windows; "
                "the effective batch size stays the same, gradients differ by rounding, dropout draws different masks"
            )
        return f"{self.place}: out of memory ({self.said}). The step was rolled back and is retried: {done}"

    def to_json(self) -> dict[str, Any]:
        """Return the line that metrics.jsonl gets, without place in the run."""
        return {
            "event": "out_of_memory",
            "said": self.said,
            "left": self.left.to_json(),
            "reached": self.reached.to_json(),
        }


class OutOfMemoryFallback:
    """Makes training steps; when one runs out of memory, it is rolled back and retried on the next level.

    Args:
        step: the step, whatever its runner and micro-batch are.
        level: where to start.
        fell_back: called with every event, between the rollback and the retry.

    Attributes:
        level: where it stands; it never goes back, since the largest step is yet to come for all one knows.
    """

    def __init__(self, step: TrainingStep, level: FallbackLevel, fell_back: Callable[[FallbackEvent], None]) -> None:
        self.level = level
        self._step = _at_level(step, level)
        self._fell_back = fell_back
        self._checked: set[frozenset[str]] = {frozenset()}

    def __call__(self, batches: Sequence[Batch], *, place: str) -> StepUnderWay:
        """Make one step on raw batches, whose gradients are added.

        Raises:
            OutOfMemoryError: not even the last level fits; no weight, range or random number has changed.
            TornUpdateError: memory ran out while weights were written.
            SpentProcessError: oneDNN got no memory; the step is rolled back, and the next level is for another process.
            HiddenStateError: a module's state would change when a segment is recomputed.
            LostRankError: another rank is gone; the step is rolled back.
        """
        while True:
            with StepSnapshot.of(self._step.model, self._step.optimizer, self._step.accelerator.scaler) as before:
                made, said = self._attempt(batches, before, place)
            if made is not None:
                return made
            self._fall_back(before, place, said)

    def _attempt(self, batches: Sequence[Batch], before: StepSnapshot, place: str) -> tuple[StepUnderWay | None, str]:
        # The failure must be gone when this returns: its traceback holds the activations of the broken step.
        try:
            self._check_segments(batches[0])
            return self._step(batches, place=place), ""
        except LostRankError:
            before.restore()  # ranks are needed only before the weights are reached
            raise
        except RanksCalled as call:
            return None, call.said
        except (MemoryError, RuntimeError) as failure:
            if not is_out_of_memory(failure):
                raise
            said = _first_sentences(failure)
            if before.reached_the_weights:
                raise _torn(place, said) from None
        return None, ranks.call_together(said)

    def _check_segments(self, batch: Batch) -> None:
        if self.level.segments in self._checked:
            return
        few = batch.windows(slice(min(_PROBED, self.level.micro_batch)))
        inputs, _ = self._step.scaled(few)
        self._step.model.train()
        require_replayable(self._step.model, self.level.segments, partial(self._step.forecast, inputs))
        self._checked.add(self.level.segments)

    def _fall_back(self, before: StepSnapshot, place: str, said: str) -> None:
        before.restore()
        release_memory()
        left, reached = self.level, self.level.next()
        if reached is None:
            raise _too_large(place, said)
        self.level, self._step = reached, _at_level(self._step, reached)
        self._fell_back(FallbackEvent(place, said, left, reached))
        if said in ONEDNN_FAILURES:
            raise _spent(place, said, reached)


def release_memory() -> None:
    """Free what only reference cycles hold, and give free memory back to the system."""
    gc.collect()
    give_back_free_blocks()
    release_cached_memory()


def _at_level(step: TrainingStep, level: FallbackLevel) -> TrainingStep:
    return replace(step, run_segment=runner_for(level.segments), micro_batch=level.micro_batch)


def _first_sentences(failure: BaseException) -> str:
    """Return what failed and how much was asked for, without the place in torch's source that comes first."""
    line = (str(failure).strip() or type(failure).__name__).splitlines()[0]
    return ". ".join(line[max(0, line.find("DefaultCPUAllocator")) :].split(". ")[:2]).rstrip(".")


def _too_large(place: str, said: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"one window at a time, with every segment recomputed, does not fit in memory ({said})",
        where=place,
        next_step="The state before this step is saved. Free memory and resume with `qat-tft train --resume`, or start "
        "a run with a smaller --hidden, --history or --selection-chunk",
    )


def _spent(place: str, said: str, reached: FallbackLevel) -> SpentProcessError:
    return SpentProcessError(
        f"oneDNN could not allocate memory ({said}) and cannot compute anything more in this process",
        where=place,
        next_step=f"`qat-tft train --resume` resumes from this step with checkpointing {reached.name} and "
        f"{reached.micro_batch} windows per backward pass",
    )


def _torn(place: str, said: str) -> TornUpdateError:
    return TornUpdateError(
        f"memory ran out while the weights were being written ({said})",
        where=place,
        next_step="Free memory and resume from the last saved state with `qat-tft train --resume`",
    )
