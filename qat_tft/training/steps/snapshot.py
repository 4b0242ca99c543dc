"""Takes back a training step that broke off: ranges, gradients, the optimizer's beginnings, random numbers.

With several ranks a step is broken off by all of them: just before the first weight is written they meet, and from
there on a step needs no more memory and no other rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.device import random_state, restore_random_state


@dataclass
class StepSnapshot:
    """What a step may change before it reaches the weights, as it was before the step; a context manager.

    The weights are not kept: a step writes them at its very end, when it needs no more memory.

    Attributes:
        reached_the_weights: whether the optimizer has begun to change them: then the step cannot be taken back.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | AcceleratedOptimizer
    scaler: torch.amp.GradScaler | None
    ranges: list[tuple[list[Tensor], Tensor]]
    remembered: frozenset[Tensor]
    random: dict[str, Tensor]
    loss_scale: dict[str, float]
    reached_the_weights: bool = False

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | AcceleratedOptimizer,
        scaler: torch.amp.GradScaler | None = None,
    ) -> StepSnapshot:
        """Keep the state of a model, its optimizer and its loss scaling; the cost is that of copying the buffers."""
        return cls(
            model=model,
            optimizer=optimizer,
            scaler=scaler,
            ranges=_ranges(model),
            remembered=frozenset(optimizer.state),
            random=random_state(),
            loss_scale=dict(scaler.state_dict()) if scaler is not None else {},
        )

    def __enter__(self) -> Self:
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        # the last one: those before it give the optimizer its memory
        self._hook = inner.register_step_pre_hook(self._about_to_write)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hook.remove()

    def _about_to_write(self, *_: Any) -> None:
        ranks.meet()
        self.reached_the_weights = True

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; gradients are dropped."""
        for buffers, values in self.ranges:
            for buffer, value in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(value.view(buffer.shape))
        self.model.zero_grad(set_to_none=True)
        # A state that was only half made would count as whole in the next step.
        for parameter in set(self.optimizer.state) - self.remembered:
            del self.optimizer.state[parameter]
        if self.scaler is not None:
            _forget_unscaling(self.scaler)
            self.scaler.load_state_dict(self.loss_scale)
        restore_random_state(self.random)


def _ranges(model: nn.Module) -> list[tuple[list[Tensor], Tensor]]:
    """Return the model's buffers by dtype and device, and their values as one tensor each: few copies, not many."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in model.buffers():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return [(buffers, torch.cat([buffer.flatten() for buffer in buffers])) for buffers in kinds.values()]


def _forget_unscaling(scaler: torch.amp.GradScaler) -> None:
    """Let the scaler take the next gradients as not yet unscaled: an update does, once it has scaled something."""
    if scaler.is_enabled():
        scaler.scale(torch.zeros((), device=scaler._device))
        scaler.update(scaler.get_scale())
