"""Dataclasses survive JSON, and what is not theirs is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.data.preparation import Preparation
from qat_tft.profiling.measurement import Measurement

PREPARATIONS = st.builds(
    Preparation,
    duplicates=st.sampled_from(["error", "last", "mean"]),
    gaps=st.sampled_from(["error", "ignore", "fill", "split"]),
    step=st.none() | st.tuples(st.sampled_from(["clock", "month"]), st.integers(1, 10**15)),
    missing=st.sampled_from([(), ("forward",), ("wind=mean", "rain=zero")]),
    min_history=st.none() | st.integers(1, 100),
    calendar=st.sampled_from([(), ("hour", "month:category")]),
)


@given(preparation=PREPARATIONS)
def test_what_was_written_comes_back(preparation: Preparation):
    assert Preparation.from_json(json.loads(json.dumps(preparation.to_json()))) == preparation


def test_tuples_are_lists_and_come_back_as_tuples():
    measured = Measurement((1.0, 2.5), 3, 4)
    assert measured.to_json() == {"seconds": [1.0, 2.5], "process_bytes": 3, "live_bytes": 4}
    assert Measurement.from_json(measured.to_json()) == measured


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"gaps": "bridge"}, id="a value that is none"),
        pytest.param({"tomorrow": 1}, id="a field of a later version"),
        pytest.param({"calendar": ["moon"]}, id="a feature that nobody knows"),
        pytest.param(["error"], id="no object"),
        pytest.param(None, id="nothing"),
    ],
)
def test_what_is_not_its_own_is_refused(value: object):
    with pytest.raises(ValueError, match=r"Preparation|moon"):
        Preparation.from_json(value)
