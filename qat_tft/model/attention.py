"""Interpretable multi-head attention: one value map shared by all heads, so that the heads' weights can be averaged.

Legend: B batch, T history, F horizon, S = T + F, H hidden, A heads, D head size.
Source: Lim et al. (2021), equations 9 to 16.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qat_tft.model.dropout import Dropout


class InterpretableAttention(nn.Module):
    """Attention of the F future positions over all S positions; position t sees positions up to t.

    The paper's mean over heads of `A_i V W_V` equals `mean(A_i) (V W_V)`, as the values are shared: the heads'
    weights are averaged first, and that average is both what is returned and what acts.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key_value = nn.Linear(hidden, hidden + self.size, bias=False)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(self.size, hidden, bias=False)

    def forward(self, x: Tensor, horizon: int, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return [B, F, H] and the heads' mean weights [B, F, S] for x [B, S, H], whose last F are the future.

        Positions of the history at which `present` [B, T] is false get a weight of exactly 0.
        """
        positions = x.shape[1]
        query = self.query(x[:, positions - horizon :]) / math.sqrt(self.size)  # smaller than the scores
        query = query.unflatten(-1, (self.heads, self.size))  # [B, F, A, D]
        key, value = self.key_value(x).tensor_split([self.heads * self.size], dim=-1)
        key = key.unflatten(-1, (self.heads, self.size))  # [B, S, A, D]
        scores = query.transpose(1, 2) @ key.permute(0, 2, 3, 1)  # [B, A, F, S]
        mask = causal_mask(horizon, positions, x.device)  # [F, S]
        if present is not None:
            absent = nn.functional.pad(~present, (0, horizon))  # [B, S]
            mask = mask.masked_fill(absent[:, None, None], -torch.inf)  # [B, 1, F, S], for all heads at once
        scores = scores + mask
        weights = self.dropout(scores.softmax(-1)).mean(1)  # [B, F, S]
        return self.output(weights @ value), weights


def causal_mask(horizon: int, positions: int, device: torch.device) -> Tensor:
    """Return [F, S]: 0 where a future position may look, at itself and before, and minus infinity elsewhere."""
    blocked = torch.ones(horizon, positions, dtype=torch.bool, device=device).triu(positions - horizon + 1)
    return torch.zeros(horizon, positions, device=device).masked_fill(blocked, -torch.inf)
