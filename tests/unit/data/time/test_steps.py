"""The time step is found whatever it is counted in, and what follows a time by some steps lies exactly there."""

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.steps import DAY, Step, Unit, find_step

HOUR = 3_600_000_000_000
STARTS = st.integers(0, 20_000).map(lambda days: np.datetime64(days, "D").astype("datetime64[ns]"))


def instants(times: Any) -> np.ndarray:
    return np.asarray(times).astype("datetime64[ns]").astype(np.int64)


def days(first: str, last: str) -> np.ndarray:
    return np.arange(first, last, dtype="datetime64[D]")


MONTHS = np.arange("2019-01", "2021-01", dtype="datetime64[M]")
WORKED = days("2020-01-01", "2020-06-01")[np.is_busday(days("2020-01-01", "2020-06-01"))]


@pytest.mark.parametrize(
    ("times", "text", "left_out"),
    [
        pytest.param(days("2020-01-01", "2020-03-01"), "1 day", 0, id="days"),
        pytest.param(days("2020-01-06", "2020-01-11"), "1 day", 0, id="days of one working week"),
        pytest.param(WORKED, "1 business day", 0, id="business days"),
        pytest.param(np.delete(WORKED, [20, 57]), "1 business day", 2, id="business days with holidays"),
        pytest.param(np.sort(np.append(WORKED, np.datetime64("2020-02-08"))), "1 business day", None, id="a Saturday"),
        pytest.param(days("2020-01-01", "2020-06-01")[::7], "7 days", 0, id="weeks"),
        pytest.param(MONTHS.astype("datetime64[D]"), "1 month", 0, id="first days of months"),
        pytest.param(MONTHS.astype("datetime64[D]") + 14, "1 month", 0, id="fifteenths"),
        pytest.param((MONTHS + 1).astype("datetime64[D]") - 1, "1 month", 0, id="last days of months"),
        pytest.param(MONTHS[::3].astype("datetime64[D]"), "3 months", 0, id="quarters"),
        pytest.param(MONTHS[::12].astype("datetime64[D]"), "12 months", 0, id="years"),
        pytest.param(np.arange("2020-01-01T00", "2020-01-05T00", dtype="datetime64[h]"), "1 hour", 0, id="hours"),
        pytest.param(np.arange(0, 9000, 900).astype("datetime64[s]"), "15 minutes", 0, id="quarters of an hour"),
    ],
)
def test_the_step_of_a_series_is_found_with_the_steps_left_out(times: np.ndarray, text: str, left_out: int) -> None:
    step = find_step([instants(times)], TimeKind.TIMESTAMP)
    assert step is not None
    assert step.text == text
    count, exact = step.between(instants(times))
    assert exact.all() or left_out is None
    assert left_out is None or (count - 1).sum() == left_out


def test_times_further_apart_than_64_bits_count_are_a_gap_and_no_step() -> None:
    hours = instants(np.arange("2020-01-01T00", "2020-01-05T00", dtype="datetime64[h]"))
    times = np.concatenate([instants(["1707-01-01T00:00:00.000001"]), hours])
    step = find_step([times], TimeKind.TIMESTAMP)
    assert step is not None
    assert step.text == "1 hour"
    count, exact = step.between(times)
    assert (count[0] > 292 * 365 * 24, exact[0]) == (True, False)
    assert exact[1:].all()
    assert find_step([times[:2]], TimeKind.TIMESTAMP) is None
    far = Step(Unit.DURATION, 1, TimeKind.STEP)
    assert find_step([np.array([-(2**62) - 1, 2**62])], TimeKind.STEP) is None
    assert far.between(np.array([-(2**62), 2**62 - 2]))[1].all()
    assert not far.between(np.array([-(2**62) - 1, 2**62]))[1].any()


def test_midnights_of_a_zone_are_days_apart_over_a_change_of_the_hour() -> None:
    berlin = [datetime(2020, 3, day, 23 if day < 29 else 22) for day in range(20, 32)]  # midnights, in UTC
    step = find_step([instants(berlin)], TimeKind.TIMESTAMP, "Europe/Berlin")
    assert step == Step(Unit.CLOCK, DAY, TimeKind.TIMESTAMP, "Europe/Berlin")
    count, exact = step.between(instants(berlin))
    assert exact.all()
    assert set(count.tolist()) == {1}
    assert step.after(instants(berlin)[:-1], np.ones(11, np.int64)).tolist() == instants(berlin)[1:].tolist()


WEEKS = {
    "Sunday to Thursday": ("1111001", ""),
    "Monday to Saturday": ("1111110", ""),
    "midnights of Tokyo in UTC": ("1111001", "T15"),
    "Monday to Friday": ("1111100", ""),
}


@pytest.mark.parametrize(("week", "clock"), WEEKS.values(), ids=WEEKS)
def test_a_week_has_the_days_on_which_rows_fall(week: str, clock: str) -> None:
    every = days("2023-01-01", "2023-12-31")
    worked = every[np.is_busday(every, weekmask=week)]
    worked = np.delete(worked, np.random.default_rng(0).choice(len(worked), 8, replace=False))  # holidays
    times = instants([f"{day}{clock}" for day in worked] if clock else worked)
    step = find_step([times], TimeKind.TIMESTAMP, "UTC")
    assert step == Step(Unit.BUSINESS_DAY, 1, TimeKind.TIMESTAMP, "UTC", week)
    coming = step.after(times[-1:].repeat(12), np.arange(1, 13)).astype("datetime64[ns]")
    assert np.is_busday(coming.astype("datetime64[D]"), weekmask=week).all()
    assert step.between(coming.astype(np.int64))[0].tolist() == [1] * 11


@pytest.mark.parametrize("gone", [0, 1, 4])
def test_a_day_that_is_missing_now_and_then_is_worked_on(gone: int) -> None:
    every = days("2023-01-02", "2023-03-06")
    wednesdays = np.flatnonzero(np.is_busday(every, weekmask="0010000"))[:gone]
    step = find_step([instants(np.delete(every, wednesdays))], TimeKind.DATE)
    assert step == Step(Unit.DURATION, DAY, TimeKind.DATE)


def test_steps_go_on_from_a_session_on_a_day_off() -> None:
    saturday = instants(["2024-03-02T09"])
    step = Step(Unit.BUSINESS_DAY, 1, TimeKind.TIMESTAMP)
    coming = step.after(saturday.repeat(2), np.array([1, 2])).astype("datetime64[ns]").astype("datetime64[h]")
    assert coming.tolist() == [datetime(2024, 3, 4, 9), datetime(2024, 3, 5, 9)]


def test_steps_of_whole_numbers_are_counted_as_they_are() -> None:
    step = find_step([np.array([0, 5, 10, 20, 25])], TimeKind.STEP)
    assert step is not None
    assert (step.size, step.text) == (5, "5")
    assert step.between(np.array([0, 5, 15, 16]))[0].tolist() == [1, 2, 0]
    assert step.between(np.array([0, 5, 15, 16]))[1].tolist() == [True, True, False]


def test_single_rows_have_no_step() -> None:
    assert find_step([np.array([3]), np.array([7])], TimeKind.STEP) is None


@settings(max_examples=60, deadline=None)
@given(start=STARTS, unit=st.sampled_from(list(Unit)), size=st.integers(1, 14), steps=st.integers(1, 40))
def test_what_lies_some_steps_later_is_that_many_steps_apart(
    start: np.datetime64, unit: Unit, size: int, steps: int
) -> None:
    if unit is Unit.MONTH_END:
        start = start.astype("datetime64[M]").astype("datetime64[D]") - 1
    elif unit is Unit.MONTH:
        start = start.astype("datetime64[M]").astype("datetime64[D]") + 27
    elif unit is Unit.BUSINESS_DAY:
        start = np.busday_offset(start.astype("datetime64[D]"), 0, roll="forward")
    scale = HOUR if unit in (Unit.DURATION, Unit.CLOCK) else 1
    step = Step(unit, size * scale, TimeKind.TIMESTAMP)
    first = instants([start])
    later = step.after(first, np.array([steps]))
    count, exact = step.between(np.concatenate([first, later]))
    assert count.tolist() == [steps]
    assert exact.all()
