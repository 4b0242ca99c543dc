import math

import numpy as np
import pytest

from qat_tft.export.verify.measures import (
    EXACT_DB,
    crossings,
    interleaved_medians,
    largest_steps,
    spread_order,
    sqnr_db,
)


def test_a_hundredth_of_the_amplitude_as_noise_is_forty_decibels() -> None:
    reference = np.array([3.0, -4.0], np.float32)
    assert sqnr_db(reference, reference * np.float32(1.01)) == pytest.approx(40.0, abs=1e-3)


def test_no_difference_is_the_largest_ratio_and_no_signal_the_smallest() -> None:
    zeros = np.zeros(3, np.float32)
    assert sqnr_db(zeros, zeros) == EXACT_DB
    assert sqnr_db(zeros, zeros + 1) == -EXACT_DB


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_ratio(value: float) -> None:
    finite, other = np.ones(2, np.float32), np.array([1.0, value], np.float32)
    assert sqnr_db(finite, other) is None
    assert sqnr_db(other, finite) is None


def test_errors_are_counted_in_each_quantiles_own_step() -> None:
    difference = np.array([[[0.1, -0.9]], [[0.2, 0.3]]], np.float32)
    assert largest_steps(difference, np.array([0.05, 0.3])) == pytest.approx(4.0)
    assert largest_steps(difference * np.float32(np.nan), np.array([0.05, 0.3])) is None


def test_a_forecast_crosses_once_however_many_of_its_quantiles_do() -> None:
    quantiles = np.array([[[1, 2, 3], [3, 2, 1]], [[1, 1, 1], [1, 3, 2]]], np.float32)
    assert crossings(quantiles) == 2


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_every_beginning_of_the_order_is_spread_over_all_rows(count: int) -> None:
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    half = np.sort(order[: max(1, count // 2)])
    assert np.diff(half, prepend=-1, append=count).max() <= 5  # a random half would leave gaps of about 8


def test_timed_functions_take_turns_after_one_call_to_warm_up() -> None:
    calls: list[str] = []
    medians = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0.0)
    assert calls == ["a", "b"] * 4  # one to warm up and the least number of rounds, three
    assert all(0 <= median < 1000 for median in medians.values())


def test_any_clock_measures_and_at_least_so_many_rounds_are_made():
    ticks, calls = iter(range(1000)), []
    found = interleaved_medians({"one": lambda: calls.append(1)}, 0.0, clock=lambda: float(next(ticks)), least=7)
    assert found == {"one": 1000.0}
    assert len(calls) == 1 + 7
