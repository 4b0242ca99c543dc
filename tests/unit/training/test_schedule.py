"""The learning rate and the frozen part are functions of the step, and of where the tail begins."""

import math

import pytest

from qat_tft.training.schedule import FLOOR, first_frozen_step, learning_rate, tail_epochs

PEAK = 0.01


def rates(steps: int, warmup: float) -> list[float]:
    return [learning_rate(step, steps, peak=PEAK, warmup=warmup) for step in range(steps)]


def test_the_rate_rises_to_its_peak_and_falls_to_the_floor():
    found = rates(100, 0.1)
    assert found[:11] == sorted(found[:11])
    assert found[10] == PEAK == max(found)
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[-1] == pytest.approx(PEAK * FLOOR)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_very_short_phase_has_positive_rates(steps):
    assert all(0 < rate <= PEAK for rate in rates(steps, 0.05))


def test_in_the_tail_the_rate_falls_from_where_it_is_to_the_floor_along_half_a_cosine():
    tail = range(30, 50)
    found = [learning_rate(step, 100, peak=PEAK, warmup=0.1, tail=tail) for step in range(50)]
    assert found[:30] == rates(100, 0.1)[:30]
    start, floor = rates(100, 0.1)[30], PEAK * FLOOR
    falling = [start, *found[30:]]
    expected = [(start + floor) / 2 + (start - floor) / 2 * math.cos(step * math.pi / 20) for step in range(21)]
    assert falling == pytest.approx(expected)
    assert falling == sorted(falling, reverse=True)
    assert found[-1] == pytest.approx(floor)


@pytest.mark.parametrize(("epochs", "tail"), [(1, 1), (7, 1), (8, 2), (10, 2), (100, 20)])
def test_the_tail_has_a_fifth_of_the_epochs_and_at_least_one(epochs, tail):
    assert tail_epochs(epochs) == tail


@pytest.mark.parametrize(
    ("steps", "frozen", "first"),
    [(10, 0.5, 5), (10, 0.0, 10), (3, 0.5, 1), (1, 0.2, 1)],
    ids=["half", "never", "odd", "one-step"],
)
def test_the_last_share_of_the_steps_runs_with_frozen_ranges(steps, frozen, first):
    found = [step >= first_frozen_step(steps, frozen=frozen) for step in range(steps)]
    assert found == [step >= first for step in range(steps)]
