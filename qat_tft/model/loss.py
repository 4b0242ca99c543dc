"""Quantile loss and q-risk over the targets that are there; a missing one is NaN and counts nowhere.

Legend: B batch, F horizon, Q quantiles. Source: Lim et al. (2021), equations 24 to 26.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class HasQuantiles(Protocol):
    """What a loss is taken of: a forecast."""

    @property
    def quantiles(self) -> Tensor:
        """Quantiles [B, F, Q]."""
        ...


Loss = Callable[[HasQuantiles, Tensor], Tensor]
"""The scalar that training lowers, of a forecast and a scaled target [B, F] whose missing values are NaN."""


def loss_of(levels: Sequence[float]) -> Loss:
    """Return the loss that models of these quantiles are trained and validated with, in single precision."""

    def loss(forecast: HasQuantiles, target: Tensor) -> Tensor:
        return quantile_loss(forecast.quantiles.float(), target, levels)

    return loss


def quantile_loss(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return the pinball loss of prediction [B, F, Q] for target [B, F], a scalar.

    It is summed over the quantiles and averaged over the targets of batch and horizon that are not NaN, as in
    equation 24. Without any such target it is 0, with gradients of 0.
    """
    losses = pinball(prediction, target, quantiles).sum(-1)  # [B, F]
    return losses.sum() / targets_in(target).clamp(min=1)


def distance(prediction: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
    """Return how far quantiles [B, F, Q] are from a teacher's, a scalar in the units of `quantile_loss`.

    That is half of the absolute difference, summed over the quantiles and averaged over the targets [B, F] that are not
    NaN: the quantile loss at level 0.5 with the teacher's quantile in place of the target.
    """
    apart = (prediction - teacher).abs().sum(-1) / 2  # [B, F]
    return torch.where(target.isnan(), 0, apart).sum() / targets_in(target).clamp(min=1)


def targets_in(target: Tensor) -> Tensor:
    """Return how many targets are not NaN, an int64 scalar."""
    return target.isnan().logical_not().sum()


def present_windows(target: Tensor) -> float:
    """Return the windows of a target [B, F], each counted by the share of its targets that are not NaN.

    Means over targets are weighted by it, so that they add up to the mean over all targets.
    """
    return int(targets_in(target)) / target.shape[-1]


def q_risk(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return `2 * sum of the pinball loss / sum of |target|` per quantile [Q] (equation 26), in raw units.

    Sums run over all rows and steps whose target is not NaN, in double precision.
    """
    loss = pinball(prediction.double(), target.double(), quantiles)
    return 2 * loss.sum((0, 1)) / target.double().abs().nansum()


def pinball(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return `q * max(y - p, 0) + (1 - q) * max(p - y, 0)` [B, F, Q] (equation 25); 0 where the target is NaN."""
    levels = torch.as_tensor(quantiles, dtype=prediction.dtype, device=prediction.device)
    target = target.unsqueeze(-1)
    # A zero error, and not a zero weight: NaN times zero would be NaN, in the gradient too.
    error = torch.where(target.isnan(), 0, target - prediction)
    return torch.maximum(levels * error, (levels - 1) * error)
