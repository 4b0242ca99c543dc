"""Serves one side in its process: each request is a line of JSON on standard input, each answer one on standard output.

It runs in every side's environment and needs torch alone. Nothing is computed between two requests.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from sides.workloads import WORKLOADS, Workload

Options = Mapping[str, Any]
"""What a side is asked for beyond the workload, such as the checkpointing mode."""


@dataclass(frozen=True)
class Side:
    """A library's model of a workload, ready to train.

    Attributes:
        version: of the library.
        model: in training mode.
        optimizer: over its parameters.
        loss: the library's loss of the model on one batch, the same at every call.
        forecaster: takes what `inputs` returns to the forecast, as a tensor; None where it is not exported from here.
        inputs: random inputs of so many windows.
    """

    version: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    forecaster: nn.Module | None
    inputs: Callable[[int], tuple[Tensor, ...]]


def run(build: Callable[[Workload, Options], Side]) -> None:
    """Build the side that the command line asks for and serve it until standard input ends."""
    answers = _own_standard_output()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # a way of exporting that fails tells a long story
    torch.manual_seed(0)
    side = build(WORKLOADS[sys.argv[1]], json.loads(sys.argv[2]))
    for line in sys.stdin:
        request = json.loads(line)
        answer = REQUESTS[request.pop("ask")](side, **request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _own_standard_output() -> TextIO:
    """Return standard output, which from here on is standard error to everybody else: libraries print."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def describe(side: Side) -> dict[str, Any]:
    """Return the library's version and how many weights are trained."""
    trained = sum(weight.numel() for weight in side.model.parameters() if weight.requires_grad)
    return {"version": side.version, "parameters": trained}


def timed_step(side: Side) -> dict[str, Any]:
    """Make a training step and return the CPU seconds that it took."""
    start = time.process_time()
    step(side)
    return {"seconds": time.process_time() - start}


def step(side: Side) -> None:
    """Make a training step: forward and backward pass, optimizer, gradients set to none."""
    side.loss().backward()
    side.optimizer.step()
    side.optimizer.zero_grad()


def memory(side: Side, steps: int) -> dict[str, Any]:
    """Return the peak of resident memory over so many steps above that before them, in bytes."""
    start = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak counts from here
    for _ in range(steps):
        step(side)
    return {"bytes": _status("VmHWM") - start}


def _status(name: str) -> int:
    """Return a size in /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def export(side: Side, folder: str, batches: list[int]) -> dict[str, Any]:
    """Write the side's model as ONNX and return how, and the name of the file for each batch."""
    from sides.onnx_export import export_forecaster

    assert side.forecaster is not None
    return export_forecaster(side.forecaster, side.inputs, batches, Path(folder))


REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    "describe": describe,
    "step": timed_step,
    "memory": memory,
    "export": export,
}
