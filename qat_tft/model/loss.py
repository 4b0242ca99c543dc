"""Quantile loss and q-risk. Legend: B batch, F horizon, Q quantiles. Source: Lim et al. (2021), equations 24 to 26."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def quantile_loss(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return the pinball loss of prediction [B, F, Q] for target [B, F], a scalar.

    It is summed over the quantiles and averaged over batch and horizon, as in equation 24.
    """
    return pinball(prediction, target, quantiles).sum(-1).mean()


def q_risk(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return `2 * sum of the pinball loss / sum of |target|` per quantile [Q] (equation 26), in raw units.

    Sums run over all rows and steps, in double precision.
    """
    loss = pinball(prediction.double(), target.double(), quantiles)
    return 2 * loss.sum((0, 1)) / target.double().abs().sum()


def pinball(prediction: Tensor, target: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return `q * max(y - p, 0) + (1 - q) * max(p - y, 0)` [B, F, Q] (equation 25)."""
    levels = torch.as_tensor(quantiles, dtype=prediction.dtype, device=prediction.device)
    error = target.unsqueeze(-1) - prediction
    return torch.maximum(levels * error, (levels - 1) * error)
