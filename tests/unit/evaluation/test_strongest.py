"""The simple forecast that a model has to beat is the best one there is."""

import pytest

from qat_tft.evaluation.strongest import gain_over, strongest_simple


@pytest.mark.parametrize(
    ("risks", "name"),
    [
        ({"fp32": 0.1, "ridge": 0.3, "seasonal_naive": 0.2, "last_value": 0.4}, "seasonal_naive"),
        ({"fp32": 0.1, "ridge": None, "last_value": 0.4}, "last_value"),
        ({"fp32": 0.1, "last_value": None}, None),
        ({"fp32": 0.1}, None),
    ],
    ids=["best", "undefined ones aside", "undefined", "none"],
)
def test_the_strongest_is_a_simple_one(risks, name):
    assert strongest_simple(risks) == name


@pytest.mark.parametrize(
    ("simple", "own", "gain"), [(0.4, 0.3, 0.25), (0.4, 0.5, -0.25), (0.0, 0.1, None), (0.4, None, None)]
)
def test_a_gain_is_a_share_of_the_simple_forecasts_risk(simple, own, gain):
    assert gain_over(simple, own) == (None if gain is None else pytest.approx(gain))
