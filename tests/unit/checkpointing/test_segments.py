"""Modes and segment names."""

from __future__ import annotations

import pytest

from qat_tft.checkpointing.recompute import CheckpointRunner, runner_for
from qat_tft.checkpointing.segments import SEGMENTS, choice_name, parse_segments, run_directly, segments_of
from qat_tft.errors import ConfigError


def test_modes_grow_from_nothing_over_the_six_later_segments_to_all_nine():
    assert segments_of("off") == frozenset()
    assert segments_of("aggressive") == frozenset(SEGMENTS[3:])
    assert segments_of("full") == frozenset(SEGMENTS)


def test_an_unknown_mode_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown checkpoint mode 'some'.*off, aggressive, full"):
        segments_of("some")


def test_segments_are_parsed_from_a_list_of_names():
    assert parse_segments("lstm_encoder, lstm_decoder,") == {"lstm_encoder", "lstm_decoder"}


@pytest.mark.parametrize("text", ["lstm_encoder,lstm", "", " , "])
def test_an_unknown_or_missing_segment_lists_the_known_ones(text):
    with pytest.raises(ConfigError, match="static_selection"):
        parse_segments(text)


@pytest.mark.parametrize("mode", ["off", "aggressive", "full"])
def test_the_segments_of_a_mode_go_by_its_name(mode):
    assert choice_name(segments_of(mode)) == mode


def test_other_segments_go_by_their_own_names_in_the_order_of_the_forward_pass():
    assert choice_name(frozenset({"lstm_decoder", "static_selection"})) == "static_selection,lstm_decoder"


def test_mode_off_runs_directly_and_others_recompute_their_segments():
    assert runner_for("off") is run_directly
    runner = runner_for("full")
    assert isinstance(runner, CheckpointRunner)
    assert runner.segments == frozenset(SEGMENTS)
