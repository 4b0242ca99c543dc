"""What a run does when a training step does not fit into memory: undo it, climb one rung, make it again.

A rung recomputes more of the activations, or cuts batches into smaller micro-batches whose gradients are added up.
The first changes no bit. The second keeps the effective batch, and the loss and gradient to rounding; dropout draws
other masks, and ranges are averaged over micro-batches instead of batches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch

from qat_tft.checkpointing.guard import require_replayable
from qat_tft.checkpointing.heap import give_back_free_blocks
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import SEGMENTS, Mode, choice_name, segments_of
from qat_tft.data.windows import Batch
from qat_tft.errors import OutOfMemoryError, SpentProcessError, TornUpdateError
from qat_tft.training.step import StepOutcome, TrainingStep
from qat_tft.training.undo import BeforeStep

_PROBED = 8
"""Windows that the check of the segments looks at."""
_PHRASES = ("DefaultCPUAllocator", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""What torch's allocators and CUDA's libraries say in a plain RuntimeError."""
_ONEDNN = ("could not create a primitive", "could not execute a primitive")
"""All that oneDNN, which runs the LSTM on CPUs, says when it gets no memory; then it fails for ever in a process."""


@dataclass(frozen=True)
class Rung:
    """How much memory a step takes: the segments that are recomputed, and the windows of one backward pass."""

    segments: frozenset[str]
    micro_batch: int

    @property
    def name(self) -> str:
        """The mode, or the segments where they are nobody's mode."""
        return choice_name(self.segments)

    def next(self) -> Rung | None:
        """Return the rung that takes less memory: the next mode, then half the micro-batch; None at the top."""
        for mode in Mode:
            if self.segments < segments_of(mode):
                return replace(self, segments=segments_of(mode))
        return replace(self, micro_batch=-(-self.micro_batch // 2)) if self.micro_batch > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the rung again."""
        return {"segments": sorted(self.segments, key=SEGMENTS.index), "micro_batch": self.micro_batch}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the rung that `to_json` wrote."""
        return cls(frozenset(value["segments"]), value["micro_batch"])


@dataclass(frozen=True)
class Climb:
    """A step ran out of memory and was undone: where that was, what the allocator said, and the rungs around it."""

    place: str
    said: str
    left: Rung
    reached: Rung

    def sentence(self) -> str:
        """Return what the user reads."""
        if self.reached.segments != self.left.segments:
            done = f"checkpointing goes from {self.left.name} to {self.reached.name}; the results stay the same"
        else:
            done = (
                f"micro-batches go from {self.left.micro_batch} to {self.reached.micro_batch} windows; "
                "the effective batch stays, gradients change by rounding, dropout draws other masks"
            )
        return f"{self.place}: out of memory ({self.said}). The step was undone and is made again: {done}"

    def to_json(self) -> dict[str, Any]:
        """Return the line that metrics.jsonl gets, without place in the run."""
        return {
            "event": "out_of_memory",
            "said": self.said,
            "left": self.left.to_json(),
            "reached": self.reached.to_json(),
        }


class MemoryLadder:
    """Makes training steps; when one runs out of memory, it is undone and made again on the next rung.

    Args:
        step: the step, whatever its runner and micro-batch are.
        rung: where to start.
        climbed: told of every climb, between the undone step and the one made again.

    Attributes:
        rung: where it stands; it never goes back, since the largest step is yet to come for all one knows.
    """

    def __init__(self, step: TrainingStep, rung: Rung, climbed: Callable[[Climb], None]) -> None:
        self.rung = rung
        self._step = _on_rung(step, rung)
        self._climbed = climbed
        self._checked: set[frozenset[str]] = {frozenset()}

    def __call__(self, batches: Sequence[Batch], *, place: str) -> StepOutcome:
        """Make one step on raw batches, whose gradients are added.

        Raises:
            OutOfMemoryError: not even the last rung fits; no weight, range or random number has changed.
            TornUpdateError: memory ran out while weights were written.
            SpentProcessError: oneDNN got no memory; the step is undone, and the next rung is for another process.
            HiddenStateError: a module's state would change when a segment is recomputed.
            NonFiniteLossError: the loss or the gradient is not finite; no weight has changed.
        """
        while True:
            before = BeforeStep.of(self._step.model, self._step.optimizer, self._step.accelerator.scaler)
            outcome, said = self._attempt(batches, place)
            if outcome is not None:
                return outcome
            self._climb(before, place, said)

    def _attempt(self, batches: Sequence[Batch], place: str) -> tuple[StepOutcome | None, str]:
        # The failure must be gone when this returns: its traceback holds the activations of the broken step.
        try:
            self._check_segments(batches[0])
            return self._step(batches, place=place), ""
        except (MemoryError, RuntimeError) as failure:
            if not is_out_of_memory(failure):
                raise
            return None, _first_sentences(failure)

    def _check_segments(self, batch: Batch) -> None:
        if self.rung.segments in self._checked:
            return
        few = Batch(*(tensor[: min(_PROBED, self.rung.micro_batch)] for tensor in batch))
        inputs, _ = self._step.scaled(few)
        self._step.model.train()
        require_replayable(self._step.model, self.rung.segments, partial(self._step.forecast, inputs))
        self._checked.add(self.rung.segments)

    def _climb(self, before: BeforeStep, place: str, said: str) -> None:
        if before.reached_the_weights:
            raise _torn(place, said)
        before.restore()
        release_memory()
        left, reached = self.rung, self.rung.next()
        if reached is None:
            raise _too_large(place, said)
        self.rung, self._step = reached, _on_rung(self._step, reached)
        self._climbed(Climb(place, said, left, reached))
        if said in _ONEDNN:
            raise _spent(place, said, reached)


def is_out_of_memory(failure: BaseException) -> bool:
    """Say whether a failure means that memory ran out, on the CPU or on CUDA."""
    if isinstance(failure, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(failure, RuntimeError):
        return False
    said = str(failure).strip()
    return said in _ONEDNN or any(phrase in said for phrase in _PHRASES)


def release_memory() -> None:
    """Free what only reference cycles hold, and give free memory back to the system."""
    gc.collect()
    give_back_free_blocks()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _on_rung(step: TrainingStep, rung: Rung) -> TrainingStep:
    return replace(step, run_segment=runner_for(rung.segments), micro_batch=rung.micro_batch)


def _first_sentences(failure: BaseException) -> str:
    """Return what failed and how much was asked for, without the place in torch's source that comes first."""
    line = (str(failure).strip() or type(failure).__name__).splitlines()[0]
    return ". ".join(line[max(0, line.find("DefaultCPUAllocator")) :].split(". ")[:2]).rstrip(".")


def _too_large(place: str, said: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"one window at a time, with every segment recomputed, is too much for the memory here ({said})",
        where=place,
        next_step="The state before this step is saved. Free memory and go on with `qat-tft train --resume`, or start "
        "a run with a smaller --hidden, --history or --selection-chunk",
    )


def _spent(place: str, said: str, reached: Rung) -> SpentProcessError:
    return SpentProcessError(
        f"oneDNN got no memory ({said}) and computes nothing more in this process",
        where=place,
        next_step=f"`qat-tft train --resume` goes on from this step with checkpointing {reached.name} and "
        f"{reached.micro_batch} windows a backward pass",
    )


def _torn(place: str, said: str) -> TornUpdateError:
    return TornUpdateError(
        f"memory ran out while the weights were written ({said})",
        where=place,
        next_step="Free memory and go on from the last saved state with `qat-tft train --resume`",
    )
