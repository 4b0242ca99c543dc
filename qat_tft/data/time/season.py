"""The season that a time step suggests, in rows.

R rows, S series.
"""

import numpy as np
import numpy.typing as npt

from qat_tft.data.time.calendar import local_times
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.steps import DAY, Step, Unit

LAST_VALUE = 1
"""The season whose naive forecast is the last value, also called a random walk."""

_MOST_ROWS = 2**22
_MONTHS = 12
_YEAR = 365.25  # days
_PARTS_OF_A_YEAR = ((6, 8), (29.5, 31), (89, 93))  # days
_SHORT = 4  # days: a step shorter than this goes with the week, a longer one with the year
_HOURS = 24

_Ints = npt.NDArray[np.int64]


def season_rows(time: _Ints, starts: _Ints, step: Step | None) -> int:
    """Rows of one season.

    Hours and parts of them: the rows of a day, which are fewer where every day has the same hours without rows (an
    hour's where series are shorter than two days). Days: a week, which is as many rows as it has business days.
    Weeks, four weeks, months, quarters: a year. Whole-number steps and everything else: 1, which makes the seasonal
    naive forecast the last value. Of many rows, the first decide.

    Args:
        time: int64 [R], as ``Panel.time``.
        starts: int64 [S + 1], first row of each series, and the number of rows.
        step: the time step; None where it is not known.
    """
    if step is None or step.kind is TimeKind.STEP or step.size < 1:
        return LAST_VALUE
    if step.unit in (Unit.MONTH, Unit.MONTH_END):
        return _MONTHS // step.size if _MONTHS % step.size == 0 else LAST_VALUE
    if step.unit is Unit.BUSINESS_DAY:
        return step.week.count("1")
    time = np.asarray(time[:_MOST_ROWS])
    if step.size < DAY:
        return _day(time, starts, step)
    if step.size < _SHORT * DAY:
        return 7
    return _year(_usual_days(time, starts, step))


def _year(days: float) -> int:
    """Steps of a year, if weeks, months or quarters make it up."""
    if days % 7 == 0 or any(low <= days <= high for low, high in _PARTS_OF_A_YEAR):
        return max(LAST_VALUE, round(_YEAR / days))
    return LAST_VALUE


def _day(time: _Ints, starts: _Ints, step: Step) -> int:
    """Rows of a day, or of an hour where no series has two days."""
    whole = max(1, round(DAY / step.size))
    day = _usual_rows_of_a_day(time, starts, step) or whole
    longest = int(np.diff(starts).max())
    return day if longest >= 2 * day or day < _HOURS else max(1, round(whole / _HOURS))


def _usual_rows_of_a_day(time: _Ints, starts: _Ints, step: Step) -> int:
    """How many rows most days have; 0 if they have various numbers. A series' first and last day may be cut."""
    days = local_times(time, step.zone).astype("datetime64[D]").astype(np.int64)
    borders = starts[(starts > 0) & (starts < len(days))]
    new = np.union1d(np.flatnonzero(np.diff(days)) + 1, borders)
    ends = np.union1d(borders, [0, len(days)])
    begins = np.concatenate([[0], new, [len(days)]])
    inner = ~(np.isin(begins[:-1], ends) | np.isin(begins[1:], ends))
    counts, often = np.unique(np.diff(begins)[inner], return_counts=True)
    return int(counts[often.argmax()]) if 2 * often.max(initial=0) > often.sum() else 0


def _usual_days(time: _Ints, starts: _Ints, step: Step) -> float:
    """Mean length of the steps in days, without those that leave rows out."""
    apart = np.diff(time)
    apart = np.delete(apart, starts[(starts > 0) & (starts < len(time))] - 1)
    near = (apart > 0) & (apart < 1.5 * step.size)  # 292 years and more are negative: 64 bits do not count so far
    return float(apart[near].mean()) / DAY
