"""The optimizer of every training step, real, measured or simulated: learning rates by group, and averaged weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from qat_tft.model.selection import VariableSelection
from qat_tft.quantization.learned import LOG_SCALE

SCALES = 1.0
"""What multiplies the learning rate of the logarithms of trained scales."""

_MULTIPLE = "multiple"
_AVERAGE = "average"
_UPDATES = "updates"


def make_optimizer(
    model: nn.Module, *, learning_rate: float = 1e-3, weight_decay: float = 1e-2, averaging: float = 0.0
) -> torch.optim.Optimizer:
    """Return AdamW over all parameters of a model, in its fused form (Loshchilov and Hutter, 2019).

    A step of AdamW moves every number by about the learning rate, so that it moves a product of two maps by a multiple
    of that. Parameters of selection networks that are such products (`VariableSelection.products`) have that multiple
    of the learning rate; in a step they decay as much as all others (docs/decisions/042). Scales of quantizers, which
    are logarithms, have `SCALES` times the learning rate and no decay, which would draw every scale to one
    (docs/decisions/043).

    Before its first step writes a weight, all of its memory is in place, so that a step which runs out of memory there
    can be taken back. A state that is saved and loaded has the averages too.

    Args:
        model: whose parameters are trained.
        learning_rate: of all parameters that are no products, until `set_learning_rate` sets another one.
        weight_decay: decoupled from the gradient.
        averaging: weight of the past in the moving average of the weights (see `averaged_weights`); 0: none is kept.
    """
    groups = [
        {"params": parameters, "weight_decay": decay * weight_decay / multiple, _MULTIPLE: multiple}
        for (multiple, decay), parameters in _groups(model).items()
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    set_learning_rate(optimizer, learning_rate)
    optimizer.register_step_pre_hook(partial(_make_memory, averaged=averaging > 0))
    if averaging:
        optimizer.param_groups[0][_UPDATES] = 0  # among what is saved
        optimizer.register_step_post_hook(partial(_move_averages, decay=averaging))
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer | AcceleratedOptimizer, rate: float) -> None:
    """Set the learning rate of an optimizer from `make_optimizer`; products get their multiple of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[_MULTIPLE]


def leave_out(optimizer: torch.optim.Optimizer | AcceleratedOptimizer, this: Tensor) -> None:
    """Let the device decide whether a fused optimizer changes weights: where `this` holds, not in any step from now on.

    The host does not learn of it here.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)
    before = getattr(inner, "found_inf", None)  # what torch's fused optimizers ask
    this = this.float()
    inner.found_inf = this if before is None else torch.maximum(before, this)


@contextmanager
def averaged_weights(optimizer: torch.optim.Optimizer | AcceleratedOptimizer) -> Iterator[None]:
    """While entered, the parameters have their moving averages as values; afterwards, their own to the bit.

    Where no average is kept, or no step has been made, they have their own all along.
    """
    exchanged: list[tuple[Tensor, Tensor]] = []
    try:
        for parameter, state in optimizer.state.items():
            if _AVERAGE in state:
                _exchange(parameter, state[_AVERAGE])
                exchanged.append((parameter, state[_AVERAGE]))
        yield
    finally:
        for parameter, average in exchanged:
            _exchange(parameter, average)


def _groups(model: nn.Module) -> dict[tuple[float, bool], list[nn.Parameter]]:
    """Return the trained parameters by what multiplies their learning rate and whether they decay; usual ones first."""
    kinds = {
        parameter: (max(1.0, multiple), True)
        for module in model.modules()
        if isinstance(module, VariableSelection)
        for parameter, multiple in module.products().items()
    }
    usual = (1.0, True)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {usual: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = (SCALES, False) if name.rpartition(".")[2] == LOG_SCALE else kinds.get(parameter, usual)
            groups.setdefault(kind, []).append(parameter)
    return groups


def _make_memory(optimizer: torch.optim.Optimizer, *_: Any, averaged: bool) -> None:
    """Give each parameter that has a gradient and no state the one that AdamW would give it, and its average."""
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.grad is None or parameter in optimizer.state:
            continue
        state = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        optimizer.state[parameter] = {**state, _AVERAGE: parameter.detach().clone()} if averaged else state


@torch.no_grad()
def _move_averages(optimizer: torch.optim.Optimizer, *_: Any, decay: float) -> None:
    updates = optimizer.param_groups[0]
    decay = min(decay, (1 + updates[_UPDATES]) / (10 + updates[_UPDATES]))  # so that the start is soon forgotten
    kept = {parameter: state[_AVERAGE] for parameter, state in optimizer.state.items()}
    torch._foreach_lerp_(list(kept.values()), list(kept), 1 - decay)
    updates[_UPDATES] += 1


@torch.no_grad()
def _exchange(one: Tensor, other: Tensor) -> None:
    """Exchange the values of two tensors in place: torch's LSTM keeps its weights in one piece of memory."""
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)
