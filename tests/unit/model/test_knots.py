import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.model.knots import FARTHEST, WIDTH, knot_values, place

COUNT = 17
ROUNDING = 1e-4  # of a distance between knots, in single precision


def test_knots_ascend_evenly_in_the_squashed_number_and_hold_zero_and_both_ends():
    knots = knot_values(COUNT).double()
    squashed = knots / (WIDTH + knots.abs())
    steps = squashed.diff()
    assert torch.allclose(steps, steps.mean().expand(COUNT - 1), rtol=1e-5)
    assert knots[COUNT // 2] == 0
    assert knots[-1] == -knots[0] == pytest.approx(FARTHEST, rel=1e-6)


@pytest.mark.parametrize("count", [3, 17, 64])
def test_a_knot_lies_at_its_own_number(count):
    left, part = place(knot_values(count), count)
    assert torch.allclose(left + part, torch.arange(count).float(), rtol=0, atol=ROUNDING * count)


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(3, 200))
def test_any_finite_number_lies_between_two_knots(x, count):
    left, part = (float(value) for value in place(torch.tensor(x), count))
    assert left in range(count - 1)
    assert 0 <= part <= 1
    around = knot_values(count)[int(left) : int(left) + 2]
    inside = min(max(x, -FARTHEST), FARTHEST)
    assert around[0] - abs(around[0]) * 1e-4 - 1e-5 <= inside <= around[1] + abs(around[1]) * 1e-4 + 1e-5


def test_a_missing_number_stays_missing_and_its_knot_can_be_looked_up():
    left, part = place(torch.tensor([float("nan"), 0.0]), COUNT)
    assert part.isnan().tolist() == [True, False]
    assert not left[1].isnan()


@pytest.mark.parametrize("count", [0, 2, -5])
def test_fewer_than_three_knots_are_refused(count):
    with pytest.raises(ValueError, match=f"knots is {count}"):
        knot_values(count)
