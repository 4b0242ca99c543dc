"""The points at which a function of one scaled number is tabulated, and where a number lies among them.

Knots are evenly spaced in `u = x / (WIDTH + |x|)`, which maps all numbers to -1..1: dense where scaled values are, and
ever sparser outside. A GRN ends in a LayerNorm, so for large |x| it tends to a constant like 1 / |x|, which is linear
in u: interpolating in u stays close to it where interpolating in x, or clamping, would not (docs/decisions/040).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qat_tft.model.forms import LEAST_KNOTS

WIDTH = 1.0
"""Half of the knots lie between plus and minus this scaled number."""

FARTHEST = 1000.0
"""Where the first and the last knot lie. What lies beyond counts as one of them: a GRN hardly changes out there."""


def knot_values(count: int) -> Tensor:
    """Return the knots, ascending, [count], with zero among them where the count is odd.

    Raises:
        ValueError: the count is below 3.
    """
    if count < LEAST_KNOTS:
        raise ValueError(f"knots is {count}: it must be at least {LEAST_KNOTS}")
    even = torch.linspace(-1, 1, count, dtype=torch.float64) * (FARTHEST / (WIDTH + FARTHEST))
    return (WIDTH * even / (1 - even.abs())).float()


def place(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the number of the knot to the left of x, and what part of the way to the next one x has gone.

    Both have x's shape. The number is whole, in floating point, from 0 to count - 2. Where x is NaN, both are.
    """
    half = (count - 1) / 2
    stretch = half * (WIDTH + FARTHEST) / FARTHEST
    at = (x / (x.abs() + WIDTH) * stretch + half).clamp(0, count - 1)
    left = at.floor().clamp(0, count - 2)
    return left, at - left
