"""Histograms that grow keep exact counts, and their ranges are those that all values would give."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qat_tft.quantization.histogram import (
    BINS,
    KEPT,
    Extremes,
    Histogram,
    PercentileBounds,
    SmallestErrorBounds,
)
from qat_tft.quantization.ranges import scale_and_zero_point
from qat_tft.quantization.scheme import scheme_for

UNSIGNED, SIGNED = scheme_for("x86").activations, scheme_for("tensorrt").activations
NEARLY_BEST = 1.02  # the estimate takes rounding errors as even, and values as lying in the middle of their bins


def activations(batches: int = 5, values: int = 20_000) -> list[Tensor]:
    """Three ranges: normal and growing, one-sided like ELU's output, and two outliers; of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for batch in range(batches):
        x = torch.randn(3, values, generator=generator)
        x[0] *= 1 + batch
        x[1] = 1e-3 * torch.nn.functional.elu(2 * x[1])
        x[2, 0] = -60.0 if batch == 1 else 60.0 if batch == 3 else x[2, 0]
        x[2] *= 1e4
        made.append(x)
    return made


def filled(histogram, batches: list[Tensor]):
    for x in batches:  # as the chunks of a selection come: part by part
        histogram.add(x[:2], slice(0, 2))
        histogram.add(x[2:], slice(2, 3))
    return histogram


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False), min_size=1, max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_counts_are_those_of_all_values_on_the_last_grid(batches):
    histogram = Histogram(1, bins=16)
    for values in batches:
        histogram.add(torch.tensor([values]), slice(0, 1))
    edges = histogram.edges()[0].numpy()
    everything = np.array([value for values in batches for value in values])
    expected = [int(((everything >= low) & (everything < high)).sum()) for low, high in pairwise(edges)]
    assert histogram.totals()[0].tolist() == expected
    assert sum(expected) == len(everything)


def test_at_least_about_half_of_the_bins_lie_within_the_extremes():
    histogram = filled(Histogram(3), activations())
    values = torch.cat(activations(), 1)
    widths = histogram.edges()[:, 1] - histogram.edges()[:, 0]
    assert ((values.amax(1) - values.amin(1)) / widths > BINS / 2 - 2).all()


def test_extremes_are_those_of_all_batches_and_hold_zero():
    low, high = filled(Extremes(3), [x.abs() + 1 for x in activations()]).bounds()
    values = torch.cat([x.abs() + 1 for x in activations()], 1)
    assert torch.equal(high, values.amax(1))
    assert torch.equal(low, torch.zeros(3))


def test_percentiles_are_numpys_to_the_width_of_a_bin():
    histogram = filled(PercentileBounds(3), activations())
    values = torch.cat(activations(), 1).numpy()
    tail = 50 * (1 - KEPT)
    expected = np.percentile(values, [tail, 100 - tail], axis=1, method="inverted_cdf")
    widths = (histogram.edges()[:, 1] - histogram.edges()[:, 0]).numpy()
    for found, wanted in zip(histogram.bounds(), expected, strict=True):
        assert (np.abs(found.numpy() - wanted) <= widths).all()
    assert histogram.bounds()[1][2] < 0.5 * values[2].max(), "outliers are left out"


def squared_error(values: Tensor, low: float, high: float, codes) -> float:
    """Mean squared error of every value, rounded one by one."""
    scale, zero_point = (float(number) for number in scale_and_zero_point(torch.tensor(low), torch.tensor(high), codes))
    code = torch.clamp((values / scale).round() + zero_point, codes.low, codes.high)
    return float(((code - zero_point) * scale - values).double().square().mean())


@pytest.mark.parametrize("codes", [UNSIGNED, SIGNED], ids=["unsigned", "signed"])
def test_the_smallest_error_is_as_small_as_trying_every_range_on_all_values(codes):
    lows, highs = filled(SmallestErrorBounds(3, codes), activations()).bounds()
    for values, low, high in zip(torch.cat(activations(), 1), lows.tolist(), highs.tolist(), strict=True):
        shares = [step / 25 for step in range(1, 26)]
        bottom, top = float(values.min().clamp_max(0)), float(values.max())
        tried = [squared_error(values, bottom * one, top * other, codes) for one in shares for other in shares]
        assert squared_error(values, low, high, codes) <= NEARLY_BEST * min(tried)


@pytest.mark.parametrize("kind", [PercentileBounds, lambda ranges: SmallestErrorBounds(ranges, UNSIGNED)])
def test_values_that_are_all_zero_give_a_range_of_zero_width(kind):
    histogram = kind(1)
    histogram.add(torch.zeros(1, 10), slice(None))
    assert [bound.tolist() for bound in histogram.bounds()] == [[0.0], [0.0]]


def test_the_smallest_numbers_are_counted_too():
    histogram = Histogram(1, bins=8)
    tiny = torch.finfo(torch.float32).tiny
    histogram.add(torch.tensor([[tiny, -tiny, 3 * tiny]]), slice(None))
    assert histogram.totals().sum() == 3
    assert math.isfinite(float(histogram.edges()[0, -1]))
