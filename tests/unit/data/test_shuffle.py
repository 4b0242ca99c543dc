"""An order that is computed place by place is a permutation, follows from its seed, and is well shuffled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.data.loading import loader
from qat_tft.data.loading.loader import batches
from qat_tft.data.loading.shuffle import Permutation
from qat_tft.data.panel import Panel
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.windows import Windows
from qat_tft.schema import Schema

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


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_many_windows_hold_each_once_over_all_processes_and_resume_anywhere(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(loader, "_HELD", 10)
    windows = Windows(single_series(48), history=5, horizon=2)
    seen: list[float] = []
    for rank in range(2):
        whole = list(batches(windows, 4, shuffle=True, seed=1, epoch=2, rank=rank, world=2, workers=workers))
        rest = list(batches(windows, 4, shuffle=True, seed=1, epoch=2, rank=rank, world=2, skip=3))
        assert [batch.target.tolist() for batch in rest] == [batch.target.tolist() for batch in whole[3:]]
        seen += [float(target) for batch in whole for target in batch.target[:, 0]]
    assert sorted(seen) == list(range(5, 47))
    assert seen != sorted(seen)


def single_series(rows: int) -> Panel:
    return Panel(
        schema=Schema(time="t", target="y"),
        values=torch.arange(float(rows)).unsqueeze(1),
        static=torch.zeros(1, 0),
        time=torch.arange(rows),
        series_start=torch.tensor([0, rows]),
        series_ids=[()],
        series_code=torch.zeros(1, dtype=torch.int64),
        time_kind=TimeKind.STEP,
    )
