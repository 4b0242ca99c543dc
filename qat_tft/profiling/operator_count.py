"""Counts the operators that a training step calls. On a GPU each one is a kernel to launch, however small its tensors.

Views of a tensor launch nothing and are not counted. Counting runs on the CPU, in whose place of one fused kernel for
dropout there are six operators, so a GPU launches fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.profiling.measurement import OptimizerStep
from qat_tft.profiling.synthetic_step import SyntheticStep

_LARGEST_NORM = 1.0
"""The norm that gradients are clipped to; how many operators that takes does not depend on it."""


def operators_of_step(step: SyntheticStep, kind: str, mode: str, windows: int) -> Counter[str]:
    """Return how often a training step calls each operator: forward, loss, backward, clipping, optimizer.

    The step is one of a model that has been trained before. How much it computes does not matter: the same columns in
    the same chunks call the same operators at any hidden size, history and batch.

    Args:
        step: of which model, in which number format.
        kind: "fp32" or "qat".
        mode: the checkpointing mode.
        windows: of the step.
    """
    model = step.build(kind)
    train = OptimizerStep(model, partial(step.loss, model, runner_for(mode), windows))
    train.optimizer.register_step_pre_hook(lambda *_: _clip(model))
    train()
    return count_operators(train)


def count_operators(function: Callable[[], object]) -> Counter[str]:
    """Return how often a function calls each of torch's operators, views aside, by the operator's name."""
    with OperatorCount() as count:
        function()
    calls: Counter[str] = count.calls
    return calls


class OperatorCount(TorchDispatchMode):
    """Counts calls of torch's operators while the mode is on.

    Attributes:
        calls: how often each was called, by name; those that return a view of their argument are left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count the operator and run it."""
        if func.namespace == "aten" and not func.is_view:
            self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _clip(model: nn.Module) -> None:
    # Training leaves the choice to torch, which takes one operator for all gradients on a GPU and one each on a CPU.
    torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_NORM, foreach=True)
