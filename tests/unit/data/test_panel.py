"""Times of a panel: as text and back, and where they stand among its rows."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qat_tft.data import panel as panels
from qat_tft.data.panel import Panel
from qat_tft.data.time.kind import TimeKind, parse_time, time_text
from qat_tft.schema import Schema

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


SERIES = st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=8).map(sorted), min_size=1, max_size=5)


def panel_at(series: list[list[int]]) -> Panel:
    time = torch.tensor([instant for times in series for instant in times])
    return Panel(
        schema=Schema(time="t", target="y", id=("s",)),
        values=torch.zeros(len(time), 1),
        static=torch.zeros(len(series), 0),
        time=time,
        series_start=torch.tensor([0, *np.cumsum([len(times) for times in series]).tolist()]),
        series_ids=[(str(place),) for place in range(len(series))],
        series_code=torch.zeros(len(series), dtype=torch.int64),
        time_kind=TimeKind.STEP,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(series=SERIES, block=st.integers(1, 10), instant=st.integers(-1, 16))
def test_times_are_found_among_the_rows_of_all_series(
    monkeypatch: pytest.MonkeyPatch, series: list[list[int]], block: int, instant: int
) -> None:
    monkeypatch.setattr(panels, "_BLOCK_VALUES", block)
    panel = panel_at(series)
    assert panel.distinct_times().tolist() == sorted({time for times in series for time in times})
    first = panel.first_at(panel.series_start, instant)
    before = [sum(time < instant for time in times) for times in series]
    assert (first - panel.series_start[:-1]).tolist() == before
    rows = [row.item() for block_of_rows in panel.blocks_before(first) for row in block_of_rows]
    assert rows == [row for row in range(panel.rows) if panel.time[row] < instant]
