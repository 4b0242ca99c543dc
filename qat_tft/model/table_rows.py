"""The last steps of tabulated GRNs, with gradients that keep fewer tensors than torch's own.

A table's activations stay in memory until the backward pass, in every mode. Legend: C variables, K knots or codes
of each, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LAYER_NORM_EPSILON = 1e-5  # torch's default


def normalized_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `LayerNorm(x) * weight + bias` for x [C, K, H], weight and bias [C, H].

    Kept for the backward pass are x, and a mean and a deviation for each row; torch would keep the normalized rows too.
    """
    if not torch.is_grad_enabled():
        return _affine(normalize(x)[0], weight, bias)
    rows: Tensor = _NormalizedRows.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return rows


class _NormalizedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x = x.to(weight.dtype)  # autocast's products may be of half precision
        normalized, mean, deviation = normalize(x)
        ctx.save_for_backward(x, mean, deviation, weight)
        return _affine(normalized, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gradient,) = gradients
        x, mean, deviation, weight = ctx.saved_tensors
        normalized = (x - mean).mul_(deviation)
        to_weight, to_bias = normalized.mul_(gradient).sum(1), gradient.sum(1)
        to_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient * weight.unsqueeze(1), x, x.shape[-1:], mean, deviation, None, None, [True, False, False]
        )
        return to_x, to_weight, to_bias


def normalize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalized along its last dimension, and the mean and the deviation that its gradient needs."""
    return torch.native_layer_norm(x, x.shape[-1:], None, None, LAYER_NORM_EPSILON)


def _affine(normalized: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addcmul(bias.unsqueeze(1), normalized, weight.unsqueeze(1))
