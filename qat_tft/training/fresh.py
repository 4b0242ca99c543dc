"""A process of its own that trains for a few steps in one mode and says what they took.

    python -m qat_tft.training.fresh TASK

It starts as `qat-tft train` does, with freed blocks merged; nothing at the top of this file imports torch, since the
process may start itself anew first.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from qat_tft.checkpointing.heap import merge_freed_blocks, restart_without_block_cache
from qat_tft.config import ModelConfig, QuantizationConfig
from qat_tft.schema import GroupSize

if TYPE_CHECKING:
    from qat_tft.training.measuring import Measurement
    from qat_tft.training.trial import Trial


@dataclass(frozen=True)
class Task:
    """What a process is to measure.

    Attributes:
        trial: the arguments of a `Trial`, as plain values.
        kind: "fp32" or "qat".
        segments: names of those that are recomputed.
        windows: of each step.
        device: "cpu" or "cuda".
        steps: how many steps are timed.
    """

    trial: dict[str, Any]
    kind: str
    segments: tuple[str, ...]
    windows: int
    device: str
    steps: int

    @classmethod
    def of(cls, trial: Trial, kind: str, segments: frozenset[str], *, windows: int, device: str, steps: int) -> Self:
        """Return the task of measuring a trial's steps."""
        plain = {
            "shape": trial.shape.model_dump(mode="json"),
            "groups": [asdict(group) for group in trial.groups],
            "quantization": trial.quantization.model_dump(mode="json"),
            "precision": trial.precision,
        }
        return cls(plain, kind, tuple(sorted(segments)), windows, device, steps)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the task that `text` wrote."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """The task as the argument of a program."""
        return json.dumps(asdict(self))

    @property
    def command(self) -> list[str]:
        """The command that runs it in a fresh process."""
        return [sys.executable, "-m", __name__, self.text]


def trial_of(task: Task) -> Trial:
    """Return the trial that a task was made of."""
    from qat_tft.training.trial import Trial

    shape, groups = ModelConfig(**task.trial["shape"]), task.trial["groups"]
    static, historical, future = (
        GroupSize(**{**group, "cardinalities": tuple(group["cardinalities"])}) for group in groups
    )
    quantization = QuantizationConfig(**task.trial["quantization"])
    return Trial(shape, (static, historical, future), quantization, task.trial["precision"])


def measured(task: Task) -> Measurement:
    """Train as the task says, in this process."""
    import torch

    from qat_tft.checkpointing.recompute import runner_for
    from qat_tft.training.measuring import OptimizerStep, measure

    trial, device, runner = trial_of(task), torch.device(task.device), runner_for(frozenset(task.segments))

    def make_step() -> OptimizerStep:
        model = trial.build(task.kind).to(device)
        return OptimizerStep(model, partial(trial.loss, model, runner, task.windows, device))

    return measure(make_step, device, steps=task.steps)


def main() -> None:
    """Do the task that the program was given and write the answer to standard output."""
    restart_without_block_cache()
    merge_freed_blocks()
    task = Task.from_text(sys.argv[1])
    from qat_tft.training.measuring import answer

    answer(partial(measured, task))


if __name__ == "__main__":
    main()
