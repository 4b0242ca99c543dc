"""Raw quantiles stand in order, whatever the network puts out, and score no worse for it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.data.scaling import Affine, Scaling
from qat_tft.model.loss import quantile_loss

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
ROUNDING = 1e-5  # float32 sums in another order; losses are about 1


def scaling() -> Scaling:
    """Two series and the one of all, with a target of deviation 2 to 4."""
    empty = Affine(torch.zeros(1, 0), torch.ones(1, 0))
    historical = Affine(torch.tensor([[5.0], [1.0], [-3.0]]), torch.tensor([[3.0], [2.0], [4.0]]))
    return Scaling(empty, historical, Affine(torch.zeros(3, 0), torch.ones(3, 0)), per_series=True)


@given(st.integers(0, 2**31 - 1))
def test_quantiles_are_the_same_numbers_in_order_and_lose_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    crossing = torch.randn(4, 3, len(LEVELS), generator=generator)
    series = torch.tensor([0, 1, 2, 1])
    raw = scaling().unscale_target(crossing, series)
    center, scale = torch.tensor([5.0, 1.0, -3.0, 1.0]), torch.tensor([3.0, 2.0, 4.0, 2.0])
    unsorted = crossing * scale[:, None, None] + center[:, None, None]
    assert (raw.diff(dim=-1) >= 0).all()
    assert sorted(raw.flatten().tolist()) == sorted(unsorted.flatten().tolist())
    target = torch.randn(4, 3, generator=generator) * 3
    assert quantile_loss(raw, target, LEVELS) <= quantile_loss(unsorted, target, LEVELS) + ROUNDING


def test_one_quantile_needs_no_order() -> None:
    alone = torch.tensor([[[0.5], [-0.5]]])
    assert scaling().unscale_target(alone, torch.tensor([0])).tolist() == [[[6.5], [3.5]]]
