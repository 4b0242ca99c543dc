"""An order that is computed place by place is a permutation, follows from its seed, and is well shuffled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.data.shuffle import Permutation

FOUR_DEVIATIONS = 4  # a sound shuffle stays below it in all but one of 16,000 seeds


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1))
def test_every_number_stands_at_exactly_one_place(count: int, seed: int) -> None:
    order = Permutation(count, seed)
    assert sorted(order[torch.arange(count)].tolist()) == list(range(count))


def test_the_same_seed_gives_the_same_order_and_parts_of_it_agree_with_the_whole() -> None:
    whole = Permutation(1000, 7)[torch.arange(1000)]
    assert torch.equal(Permutation(1000, 7)[torch.arange(300, 500)], whole[300:500])
    assert not torch.equal(Permutation(1000, 8)[torch.arange(1000)], whole)


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_are_not_near_each_other_afterwards(seed: int) -> None:
    count = 20_000
    order = Permutation(count, seed)[torch.arange(count)].double().numpy()
    correlation = np.corrcoef(order[1:], order[:-1])[0, 1]
    assert abs(correlation) < FOUR_DEVIATIONS / np.sqrt(count)
    by_place = np.corrcoef(order, np.arange(count))[0, 1]
    assert abs(by_place) < FOUR_DEVIATIONS / np.sqrt(count)
