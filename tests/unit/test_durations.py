"""Lengths of time read as people say them."""

import pytest

from qat_tft.durations import about, ago, exactly


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (41.24, "41.2 s"),
        (59.97, "1 min"),
        (60, "1 min"),
        (130, "2 min 10 s"),
        (3600, "1 h"),
        (11_111, "3 h 5 min"),
        (86_400 * 2 + 3600 * 4 + 120, "2 d 4 h"),
    ],
)
def test_a_time_is_said_in_two_units(seconds, text):
    assert exactly(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 second"), (20.4, "20 seconds"), (61, "1 minute"), (170, "3 minutes"), (5400, "2 hours"), (90_000, "1 day")],
)
def test_a_rough_time_is_said_in_one(seconds, text):
    assert about(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(-3, "just now"), (59, "just now"), (300, "5 minutes ago")])
def test_how_long_ago_something_was(seconds, text):
    assert ago(seconds) == text
