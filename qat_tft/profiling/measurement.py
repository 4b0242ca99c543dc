"""Measures training steps in the process it runs in: memory above the start, live tensors and seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.device import forget_peak, is_out_of_memory, peak_taken, seconds_of
from qat_tft.plain import Plain
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.runs.optimizer import make_optimizer

_FAILURE = "failure"


@dataclass(frozen=True)
class Measurement(Plain):
    """What training steps took in one process.

    Attributes:
        seconds: of each step after the first, which allocates the optimizer's memory.
        process_bytes: peak above the start, model and optimizer included: resident memory of the process on the CPU,
            what the allocator took from the device on CUDA.
        live_bytes: peak of live tensors of one step, counted in a step of its own.
    """

    seconds: tuple[float, ...]
    process_bytes: int
    live_bytes: int


class OptimizerStep:
    """Makes steps on a model with the optimizer of training.

    Args:
        model: in training mode.
        loss: makes a batch and returns the model's loss on it, with what else lives until the backward pass is over.
    """

    def __init__(self, model: nn.Module, loss: Callable[[], tuple[Tensor, object]]) -> None:
        self.model, self._loss = model, loss
        self.optimizer = make_optimizer(model)

    def __call__(self) -> Tensor:
        """Make one step and return its loss."""
        total, held = self._loss()
        total.backward()
        del held
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.detach()

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay between steps: parameters, buffers and the optimizer's memory."""
        kept = [*self.model.parameters(), *self.model.buffers(), *tree_leaves(self.optimizer.state_dict()["state"])]
        return sum(tensor.nbytes for tensor in kept if isinstance(tensor, Tensor))


def measure(make_step: Callable[[], OptimizerStep], device: torch.device, *, steps: int) -> Measurement:
    """Build a model, train it for `steps` steps after a first one, and return what that took.

    The start is a process that has loaded everything and made a step of a model of a few numbers.

    Args:
        make_step: builds the model on `device`.
        device: where it trains.
        steps: how many steps are timed.
    """
    _load_everything(device)
    forget_peak()
    start = peak_taken(device)
    step = make_step()
    step()
    seconds = tuple(seconds_of(step, device) for _ in range(steps))
    process_bytes = peak_taken(device) - start
    return Measurement(seconds, process_bytes, step.kept_bytes + peak_bytes(step, device))


def answer(measured: Callable[[], Measurement]) -> None:
    """Write a measurement to standard output, or what the allocator said where memory ran out."""
    try:
        result = measured().to_json()
    except (MemoryError, RuntimeError) as failure:
        if not is_out_of_memory(failure):
            raise
        result = {_FAILURE: str(failure).strip() or type(failure).__name__}
    sys.stdout.write(json.dumps(result))


def read_answer(text: str) -> Measurement | str:
    """Return what `answer` wrote: a measurement, or what was said when memory ran out."""
    value = json.loads(text)
    return str(value[_FAILURE]) if _FAILURE in value else Measurement.from_json(value)


def _load_everything(device: torch.device) -> None:
    """Make a recomputed step of a tiny LSTM: torch loads parts of itself, and of its libraries, at the first one."""
    model = nn.LSTM(2, 2).to(device)
    runner = runner_for(frozenset({"tiny"}))
    OptimizerStep(model, lambda: (runner("tiny", model, torch.ones(1, 1, 2, device=device))[0].sum(), None))()
