"""The time step of a data set, and where rows leave steps out.

R rows. Times are int64 as ``Panel.time`` counts them.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from qat_tft.data.time.calendar import local_times
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.zones import has_other_clock

DAY = 86_400_000_000_000
"""Nanoseconds of a day."""
_UNITS = ((DAY, "day"), (3_600_000_000_000, "hour"), (60_000_000_000, "minute"), (1_000_000_000, "second"))
_SHORTEST_MONTH = 28  # days
_DAYS_OFF = 0.02  # share of rows on days off: exchanges open on a Saturday now and then
_MOST_DAYS_OFF = 3
_FURTHEST = np.iinfo(np.int64).max
"""Nanoseconds of 292 years, or so many steps: two times further apart are taken to be this far from each other."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONDAY_TO_FRIDAY = "1111100"

_Ints = npt.NDArray[np.int64]
_Days = npt.NDArray[np.datetime64]


class Unit(StrEnum):
    """What a time step is counted in."""

    DURATION = "duration"  # nanoseconds, or the whole numbers of a column of steps
    CLOCK = "clock"  # nanoseconds on the wall clock of the time zone: days, where the hour may change
    MONTH = "month"
    MONTH_END = "month end"  # months, on their last days
    BUSINESS_DAY = "business day"  # the days of the week that are worked on


@dataclass(frozen=True)
class Step:
    """A time step: ``size`` units. Months and business days are those of the wall clock in ``zone``.

    Attributes:
        week: of business days, ``1`` for each day of the week that is one, Monday first.
    """

    unit: Unit
    size: int
    kind: TimeKind
    zone: str | None = None
    week: str = MONDAY_TO_FRIDAY

    @property
    def text(self) -> str:
        """As people write it: ``15 minutes``, ``1 month``, ``1 business day``."""
        if self.unit in (Unit.MONTH, Unit.MONTH_END):
            return _counted(self.size, "month")
        if self.unit is Unit.BUSINESS_DAY:
            days = "" if self.week == MONDAY_TO_FRIDAY else f" ({self._days})"
            return _counted(self.size, "business day") + days
        if self.kind is TimeKind.STEP:
            return str(self.size)
        length, name = next(((n, name) for n, name in _UNITS if self.size % n == 0), (1_000_000_000, "second"))
        return _counted(self.size / length, name)

    @property
    def _days(self) -> str:
        return ", ".join(name for name, worked in zip(_DAYS, self.week, strict=True) if worked == "1")

    def between(self, times: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
        """Whole steps from each time to the next one, int64 [R - 1], and whether it lies exactly there."""
        if self.unit is Unit.DURATION:
            return self._whole(_apart(times))
        local = local_times(times, self.zone)
        if self.unit is Unit.CLOCK:
            return self._whole(_apart(local.astype(np.int64)))
        if self.unit is Unit.BUSINESS_DAY:
            days, clock = _split_days(local)
            worked = np.is_busday(days, weekmask=self.week)
            count = np.busday_count(days[:-1], days[1:], weekmask=self.week).astype(np.int64)
            return count // self.size, worked[1:] & worked[:-1] & (np.diff(clock) == 0) & (count % self.size == 0)
        months, within = _split_months(local, self.unit)
        apart = np.diff(months)
        return apart // self.size, (np.diff(within) == 0) & (apart % self.size == 0)

    def _whole(self, apart: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
        return apart // self.size, (apart % self.size == 0) & (apart != _FURTHEST)

    def after(self, times: _Ints, steps: _Ints) -> _Ints:
        """The times that lie so many steps after these ones, int64 [R]."""
        if self.unit is Unit.DURATION:
            return times + steps * self.size
        local = local_times(times, self.zone)
        if self.unit is Unit.CLOCK:
            return _utc(local + (steps * self.size).astype("timedelta64[ns]"), self.zone)
        if self.unit is Unit.BUSINESS_DAY:
            days, clock = _split_days(local)
            # From a session on a day off, steps go on as from the business day before it.
            coming = np.busday_offset(days, steps * self.size, roll="backward", weekmask=self.week)
            coming = coming.astype("datetime64[ns]")
            return _utc(coming + clock.astype("timedelta64[ns]"), self.zone)
        months, within = _split_months(local, self.unit)
        coming = (months + steps * self.size).astype("datetime64[M]").astype("datetime64[ns]")
        return _utc(coming + within.astype("timedelta64[ns]") - _shift(self.unit), self.zone)


def find_step(runs: list[_Ints], kind: TimeKind, zone: str | None = None) -> Step | None:
    """The most frequent step of some runs of consecutive times, each of one series; None without two times near enough.

    Months, and whole days on the wall clock of the zone, are steps although they differ in length; so are business
    days, where hardly any row falls on certain days of the week and rows go on after them.
    """
    runs = [run for run in runs if len(run) > 1]
    if not runs:
        return None
    lengths = [_apart(run) for run in runs]
    lengths = [apart[apart != _FURTHEST] for apart in lengths]
    if not any(len(apart) for apart in lengths):
        return None
    size = _most_frequent(lengths)
    if kind is TimeKind.STEP:
        return Step(Unit.DURATION, size, kind, zone)
    local = [local_times(run, zone) for run in runs]
    for unit in (Unit.MONTH, Unit.MONTH_END):
        split = [_split_months(run, unit) for run in local]
        within = np.concatenate([places for _, places in split])
        months = _most_frequent([np.diff(numbers) for numbers, _ in split])
        if months > 0 and bool((within == within[0]).all()) and within[0] < _SHORTEST_MONTH * DAY:
            return Step(unit, months, kind, zone)
    on_clock = _most_frequent([_apart(run.astype(np.int64)) for run in local])
    week = _worked_week(local) if on_clock == DAY else None
    if week is not None:
        return Step(Unit.BUSINESS_DAY, 1, kind, zone, week)
    if on_clock % DAY == 0 and has_other_clock(zone):
        return Step(Unit.CLOCK, on_clock, kind, zone)
    return Step(Unit.DURATION, size, kind, zone)


def _apart(times: _Ints) -> _Ints:
    """How far each time is from the next one, int64 [R - 1]; `_FURTHEST` where that is more than 64 bits count."""
    apart: _Ints = np.diff(times)
    apart[(times[1:] > times[:-1]) & (apart < 0)] = _FURTHEST
    return apart


def _most_frequent(differences: list[_Ints]) -> int:
    values, counts = np.unique(np.concatenate(differences), return_counts=True)
    return int(values[counts.argmax()])


def _worked_week(local: list[_Days]) -> str | None:
    """The days of the week on which nearly all rows fall; None if these are all days, or rows never skip the others."""
    days = [_split_days(run)[0] for run in local]
    share = np.bincount(np.concatenate([_weekday(run) for run in days]), minlength=7)
    share = share / share.sum()
    rarest = np.argsort(share, kind="stable")
    off = rarest[np.cumsum(share[rarest]) < _DAYS_OFF]
    if not 0 < len(off) <= _MOST_DAYS_OFF:
        return None
    week = "".join("0" if day in off else "1" for day in range(7))
    skipped = 0
    for run in days:
        over = np.flatnonzero(np.diff(run).astype(np.int64) > 1)
        skipped += int((np.busday_count(run[over], run[over + 1], weekmask=week) == 1).sum())
    return week if skipped >= (1 if week == MONDAY_TO_FRIDAY else 2) else None


def _weekday(days: _Days) -> _Ints:
    return (days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0


def _split_days(local: _Days) -> tuple[_Days, _Ints]:
    days = local.astype("datetime64[D]")
    return days, (local - days).astype("timedelta64[ns]").astype(np.int64)


def _split_months(local: _Days, unit: Unit) -> tuple[_Ints, _Ints]:
    # Month and nanoseconds within it; the last day of a month counts as the first of the next.
    shifted = local + _shift(unit)
    months = shifted.astype("datetime64[M]")
    return months.astype(np.int64), (shifted - months).astype("timedelta64[ns]").astype(np.int64)


def _shift(unit: Unit) -> np.timedelta64:
    return np.timedelta64(DAY if unit is Unit.MONTH_END else 0, "ns")


def _utc(local: _Days, zone: str | None) -> _Ints:
    # An hour that comes twice is its first, a skipped one the next.
    if not has_other_clock(zone):
        return local.astype("datetime64[ns]").astype(np.int64)
    zoned = pc.assume_timezone(pa.array(local), zone, ambiguous="earliest", nonexistent="latest")
    return np.asarray(zoned.cast(pa.int64()).to_numpy())


def _counted(number: float, unit: str) -> str:
    return f"{number:,g} {unit}{'' if number == 1 else 's'}"
