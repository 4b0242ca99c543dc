"""The optimizer of every training step, real, measured or simulated."""

from __future__ import annotations

import torch
from torch import nn

MOMENTS = 2
"""Numbers that the optimizer keeps for each weight."""


def make_optimizer(
    model: nn.Module, *, learning_rate: float = 1e-3, weight_decay: float = 1e-2
) -> torch.optim.Optimizer:
    """Return AdamW over all parameters of a model, in its fused form (Loshchilov and Hutter, 2019).

    Args:
        model: whose parameters are trained.
        learning_rate: until the schedule sets another one.
        weight_decay: decoupled from the gradient.
    """
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)
