"""The learning rate and the frozen part are functions of the step alone."""

import pytest

from qat_tft.training.schedule import FLOOR, learning_rate, ranges_are_frozen

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


@pytest.mark.parametrize(
    ("steps", "frozen", "first"),
    [(10, 0.5, 5), (10, 0.0, 10), (3, 0.5, 1), (1, 0.2, 1)],
    ids=["half", "never", "odd", "one-step"],
)
def test_the_last_share_of_the_steps_runs_with_frozen_ranges(steps, frozen, first):
    found = [ranges_are_frozen(step, steps, frozen=frozen) for step in range(steps)]
    assert found == [step >= first for step in range(steps)]
