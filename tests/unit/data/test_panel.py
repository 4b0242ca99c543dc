"""Times of a panel as text and back."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qat_tft.data.panel import TimeKind, parse_time, time_text

LIMIT = int(np.iinfo(np.int64).max)


@given(instant=st.integers(-LIMIT, LIMIT))
@example(instant=1)
@example(instant=-1)
@example(instant=1_577_836_800_123_456_789)
def test_a_time_survives_being_written_to_the_nanosecond(instant: int) -> None:
    assert parse_time(time_text(instant, TimeKind.TIMESTAMP), TimeKind.TIMESTAMP) == instant


@pytest.mark.parametrize("text", ["9999-12-31", "1066-10-14T09:00", "2262-04-12"])
def test_a_time_that_nanoseconds_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="1677-09-22 to 2262-04-11"):
        parse_time(text, TimeKind.TIMESTAMP)


def test_a_fraction_of_a_second_may_stand_before_a_zone() -> None:
    utc = parse_time("2020-01-01T11:00:00.25", TimeKind.TIMESTAMP)
    assert parse_time("2020-01-01T12:00:00,250+01:00", TimeKind.TIMESTAMP) == utc
    assert utc % 1_000_000_000 == 250_000_000
