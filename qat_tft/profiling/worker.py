"""A process of its own that trains for a few steps in one mode and says what they took.

    python -m qat_tft.profiling.worker TASK

It starts as `qat-tft train` does, with freed blocks merged; nothing at the top of this file imports torch, since the
process may start itself anew first.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.profiling.heap import merge_freed_blocks, restart_without_block_cache
from qat_tft.schema import GroupSize

if TYPE_CHECKING:
    from qat_tft.profiling.measurement import Measurement
    from qat_tft.profiling.synthetic_step import SyntheticStep


@dataclass(frozen=True)
class Task:
    """What a process is to measure.

    Attributes:
        step: the arguments of a `SyntheticStep`, as plain values.
        kind: "fp32" or "qat".
        segments: names of those that are recomputed.
        windows: of each step.
        device: "cpu" or "cuda".
        steps: how many steps are timed.
    """

    step: dict[str, Any]
    kind: str
    segments: tuple[str, ...]
    windows: int
    device: str
    steps: int

    @classmethod
    def of(
        cls, step: SyntheticStep, kind: str, segments: frozenset[str], *, windows: int, device: str, steps: int
    ) -> Self:
        """Return the task of measuring a step."""
        plain = {
            "shape": step.shape.model_dump(mode="json"),
            "groups": [asdict(group) for group in step.groups],
            "quantization": step.quantization.model_dump(mode="json"),
            "precision": step.precision,
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
        """The command that runs it in a worker process."""
        return [sys.executable, "-m", __name__, self.text]


def synthetic_step_of(task: Task) -> SyntheticStep:
    """Return the step that a task was made of."""
    from qat_tft.profiling.synthetic_step import SyntheticStep

    shape, groups = ModelConfig(**task.step["shape"]), task.step["groups"]
    static, historical, future = (
        GroupSize(**{**group, "cardinalities": tuple(group["cardinalities"])}) for group in groups
    )
    quantization = QuantizationConfig(**task.step["quantization"])
    return SyntheticStep(shape, (static, historical, future), quantization, task.step["precision"])


def measured(task: Task) -> Measurement:
    """Train as the task says, in this process."""
    import torch

    from qat_tft.checkpointing.recompute import runner_for
    from qat_tft.profiling.measurement import OptimizerStep, measure

    step, device, runner = synthetic_step_of(task), torch.device(task.device), runner_for(frozenset(task.segments))

    def make_step() -> OptimizerStep:
        model = step.build(task.kind).to(device)
        return OptimizerStep(model, partial(step.loss, model, runner, task.windows, device))

    return measure(make_step, device, steps=task.steps)


def main() -> None:
    """Do the task that the program was given and write the answer to standard output."""
    restart_without_block_cache()
    merge_freed_blocks()
    task = Task.from_text(sys.argv[1])
    from qat_tft.profiling.measurement import answer

    answer(partial(measured, task))


if __name__ == "__main__":
    main()
