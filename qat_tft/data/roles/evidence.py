"""Evidence that a column is known beforehand: it follows from the calendar, its name says so, or it marks events."""

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qat_tft.data.reading.times import Times
from qat_tft.data.time.calendar import Calendar
from qat_tft.data.time.kind import TimeKind

Values = npt.NDArray[np.float64] | npt.NDArray[np.int32]

_CALENDAR_WORDS = {
    *("second", "seconds", "minute", "minutes", "hour", "hours", "day", "days", "weekday", "weekend", "week"),
    *("weeks", "month", "months", "quarter", "year", "years", "dow", "doy", "holiday", "holidays", "easter"),
    *("christmas", "expiry", "dayofweek", "dayofyear", "weekofyear"),
}
_FILLER_WORDS = {
    *("of", "in", "from", "since", "to", "until", "start", "end", "the", "is", "half", "number", "sin", "cos"),
}
_COUNTING_WORDS = {"from", "since", "to", "until"}
_PLANNED_WORDS = {
    *("price", "prices", "promo", "promotion", "promotions", "discount", "discounts", "campaign", "plan", "planned"),
    *("schedule", "scheduled", "budget", "event", "events", "forecast"),
}
_DAY_MINUTES = 24 * 60
_VISITS = 2
_MOST = 0.5
_RARE = 0.2  # share of the times; events are the exception


def words(name: str) -> set[str]:
    """The words of a column name: ``dayOfWeek_2`` holds day, of and week."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in re.split(r"[^a-z]+", spaced.casefold()) if word}


def has_calendar_name(name: str, *, flag: bool) -> bool:
    """Whether a name speaks of the calendar and of nothing else; of a flag, among other things."""
    found = words(name)
    return bool(found & _CALENDAR_WORDS) and (flag or found <= _CALENDAR_WORDS | _FILLER_WORDS)


def counts_time(name: str) -> bool:
    """Whether a name says that the column counts from or to some time, so that its values are an amount."""
    return bool(words(name) & _COUNTING_WORDS)


def sounds_planned(name: str) -> bool:
    """Whether a name speaks of what is often decided beforehand, such as a price."""
    return bool(words(name) & _PLANNED_WORDS)


def follows_from(values: Values, times: Times) -> str:
    """The part of the calendar from which a column follows, such as "time of day"; "" where there is none."""
    moments = np.unique(times.instants, return_index=True)[1]
    return next((name for name, place in _calendar_places(times) if _follows(values, place, moments)), "")


def marks_events(values: Values, times: Times) -> bool:
    """Whether a column has one value for all series at each time, and seldom another than the usual one."""
    _, first, moment = np.unique(times.instants, return_index=True, return_inverse=True)
    if len(first) == len(values) or not bool((values == values[first][moment]).all()):
        return False
    _, counts = np.unique(values[first], return_counts=True)
    return bool(len(counts) > 1 and 1 - counts.max() / counts.sum() <= _RARE)


def _calendar_places(times: Times) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    if times.kind is TimeKind.STEP:
        return
    names = ("hour", "minute", "day_of_week", "day_of_month", "month")
    calendar = Calendar.of([f"{name}:category" for name in names], TimeKind.TIMESTAMP, times.zone)
    places = calendar.values(times.instants).values()
    hour, minute, weekday, day, month = (place.astype(np.int64) for place in places)
    time_of_day = 60 * hour + minute
    yield "time of day", time_of_day
    yield "day of the week", weekday
    yield "day of the month", day
    yield "month", month
    yield "day of the year", month * 31 + day
    yield "time of the week", weekday * _DAY_MINUTES + time_of_day


def _follows(values: Values, place: npt.NDArray[np.int64], moments: npt.NDArray[np.int64]) -> bool:
    """Whether a place always has the same value, and most places come back often enough to tell.

    ``moments`` are the rows of the distinct times in their order. A place comes back when other places lie
    between: a year of monthly figures does not show that they follow from the month.
    """
    places, group = np.unique(place, return_inverse=True)
    visited = group[moments]
    arrivals = visited[np.flatnonzero(np.diff(visited, prepend=-1))]
    visits = np.bincount(arrivals, minlength=len(places))
    if len(places) < 2 or np.mean(visits >= _VISITS) < _MOST:
        return False
    first = np.empty(len(places), dtype=values.dtype)
    first[group[::-1]] = values[::-1]
    return bool((values == first[group]).all())
