"""The quantization tape refuses a replay that does not fit it."""

from __future__ import annotations

import pytest
import torch

from qat_tft.checkpointing.tape import Tape, recall
from qat_tft.errors import TapeMismatchError


def call(owner: object, like: torch.Tensor, value: float) -> float:
    (result,) = recall(owner, like, lambda: (torch.tensor(value),))
    return result.item()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.zeros(2, 3)


def test_without_a_tape_every_call_computes(x):
    assert [call("a", x, 1.0), call("a", x, 2.0)] == [1.0, 2.0]


def test_a_replay_gives_back_what_each_call_computed_in_its_order(x):
    recording, replaying = Tape("segment").contexts()
    with recording:
        assert [call("a", x, 1.0), call("b", x, 2.0)] == [1.0, 2.0]
    for _ in range(2):  # a second backward pass enters the same context again
        with replaying:
            assert [call("a", x, 9.0), call("b", x, 9.0)] == [1.0, 2.0]


def test_recorded_values_are_copies(x):
    recording, replaying = Tape("segment").contexts()
    scale = torch.tensor(1.0)
    with recording:
        recall("a", x, lambda: (scale,))
    scale.fill_(5.0)
    with replaying:
        assert call("a", x, 9.0) == 1.0


def test_an_outer_replay_wins_over_an_inner_recording(x):
    outer_recording, outer_replaying = Tape("outer").contexts()
    with outer_recording:
        call("a", x, 1.0)
    inner_recording, inner_replaying = Tape("inner").contexts()
    with outer_replaying, inner_recording:
        assert call("a", x, 9.0) == 1.0
    with inner_replaying:
        assert call("a", x, 9.0) == 1.0


def test_a_replay_inside_a_recording_writes_nothing_into_it(x):
    inner_recording, inner_replaying = Tape("inner").contexts()
    with inner_recording:
        call("a", x, 1.0)
    outer = Tape("outer")
    with outer.contexts()[0], inner_replaying:
        call("a", x, 9.0)
    assert outer.entries == []


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        pytest.param(lambda x: [call("b", x, 0.0)], "call 0 was made by str", id="other module"),
        pytest.param(
            lambda x: [call("a", x[:1], 0.0)], r"saw \[2, 3\] float32 on cpu but now sees \[1, 3\]", id="shape"
        ),
        pytest.param(lambda x: [call("a", x.double(), 0.0)], "sees .* float64", id="dtype"),
        pytest.param(lambda x: [call("a", x.to("meta"), 0.0)], "but now sees .* on meta", id="device"),
        pytest.param(
            lambda x: [call("a", x, 0.0), call("c", x, 0.0), call("c", x, 0.0)], "more than the 2", id="more calls"
        ),
        pytest.param(lambda x: [call("a", x, 0.0)], "ended after 1 of 2", id="fewer calls"),
        pytest.param(lambda x: [call("c", x, 0.0), call("a", x, 0.0)], "call 0", id="other order"),
    ],
)
def test_a_replay_that_does_not_fit_is_an_error(x, replay, message):
    recording, replaying = Tape("lstm_encoder").contexts()
    with recording:
        call("a", x, 1.0), call("c", x, 2.0)
    with pytest.raises(TapeMismatchError, match=message) as error, replaying:
        replay(x)
    assert "segment 'lstm_encoder'" in str(error.value)


def test_a_replay_cut_short_by_an_exception_is_no_error_of_the_tape(x):
    recording, replaying = Tape("segment").contexts()
    with recording:
        call("a", x, 1.0)
    with pytest.raises(KeyError), replaying:
        raise KeyError("early stop")
