"""Live tensor memory is counted to the byte, and checkpointing lowers it."""

from __future__ import annotations

import torch

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.profiling.live_tensors import LiveTensors, peak_bytes
from qat_tft.schema import GroupSize

CPU = torch.device("cpu")
FLOAT = 4  # bytes


def test_peak_counts_what_lives_at_once_and_not_what_was_freed():
    def function() -> None:
        first = torch.ones(100)
        second = first + 1
        del first
        third = second + 1
        del second, third

    assert peak_bytes(function, CPU) == 200 * FLOAT


def test_views_and_in_place_results_are_not_counted_twice():
    def function() -> None:
        x = torch.ones(100)
        x.view(10, 10).t().add_(1)

    assert peak_bytes(function, CPU) == 100 * FLOAT


def test_everything_is_freed_at_the_end():
    with LiveTensors() as live:
        (torch.ones(100, requires_grad=True) * 2).sum().backward()
    assert live.live == 0
    assert live.peak > 0


def test_full_checkpointing_of_many_columns_needs_less_than_a_third_of_the_memory(make_model, sizes):
    wide = type(sizes)(historical=GroupSize(60), history=20)
    inputs = wide.inputs(16, torch.Generator().manual_seed(0))
    model = make_model(wide, hidden=16, selection="exact")

    def peak(mode: str) -> int:
        model.zero_grad()
        return peak_bytes(lambda: model(*inputs, runner_for(mode)).quantiles.sum().backward(), CPU)

    assert peak("full") < peak("off") / 3
    assert peak("aggressive") <= peak("off")
