"""How checkpointed segments run: nothing inside is kept, the backward pass recomputes it, bitwise identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from qat_tft.checkpointing.segments import Mode, Result, SegmentRunner, run_directly, segments_of
from qat_tft.checkpointing.tape import Tape


class CheckpointRunner:
    """Runs the named segments under torch's non-reentrant activation checkpointing, with a quantization tape.

    Args:
        segments: names of the segments to recompute; all others are simply called.
        early_stop: stop a recompute as soon as the last tensor that the backward pass needs exists.
    """

    def __init__(self, segments: frozenset[str], *, early_stop: bool = True) -> None:
        self.segments = segments
        self.early_stop = early_stop

    def __call__(self, name: str, function: Callable[..., Result], /, *tensors: Tensor | None) -> Result:
        """Return `function(*tensors)`; where no gradient is wanted, nothing is recorded.

        Raises:
            TapeMismatchError: in the backward pass, if the recompute differs from the forward pass.
        """
        if name not in self.segments or not torch.is_grad_enabled():
            return function(*tensors)
        with set_checkpoint_early_stop(self.early_stop):
            result = checkpoint(function, *tensors, use_reentrant=False, context_fn=Tape(name).contexts)
        return cast(Result, result)


def runner_for(choice: Mode | str | frozenset[str]) -> SegmentRunner:
    """Return the runner for a mode's name or for a set of segment names.

    Raises:
        ConfigError: no mode has that name.
    """
    segments = choice if isinstance(choice, frozenset) else segments_of(choice)
    return CheckpointRunner(segments) if segments else run_directly
