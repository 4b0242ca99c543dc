"""Calendar features: known inputs that follow from the time column and need no column of their own.

Days of the week and weeks are those of ISO 8601: Monday is day 1, and week 1 holds the year's first Thursday.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.zones import has_other_clock
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Columns, Kind, Schema

PREFIX = "calendar."

Local = npt.NDArray[np.datetime64]  # wall-clock times
Places = npt.NDArray[np.int64]

_FIRST_YEAR = 2000  # years count from here: counted from year 0, float32 would tell hours apart and nothing finer
_SATURDAY = 5
_DAY = 86_400_000_000_000


@dataclass(frozen=True)
class CalendarColumn:
    """One column of the effective schema.

    Attributes:
        name: such as ``calendar.hour.sin``.
        kind: real or category.
        compute: wall-clock times to float32 of the same length: the number, or the place in ``categories``.
        categories: what a category's codes stand for, in their order; () for a real column.
    """

    name: str
    kind: Kind
    compute: Callable[[Local], npt.NDArray[np.float32]]
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calendar:
    """The calendar columns of one time column; ``zone`` is the one whose clock they read."""

    columns: tuple[CalendarColumn, ...]
    zone: str | None

    @classmethod
    def of(cls, features: Sequence[str], kind: TimeKind, zone: str | None, *, where: str = "") -> Calendar:
        """The columns of these features, such as ``hour`` and ``month:category``.

        Args:
            features: as ``parse_calendar`` takes them.
            kind: what the time column counts.
            zone: its time zone. Features are then those of the wall clock there, daylight saving included;
                without a zone times are taken as they are written.
            where: the file, for messages.

        Raises:
            DataError: steps, which have no calendar; dates, which have no hour.
            ValueError: a feature that ``parse_calendar`` refuses.
        """
        parsed = parse_calendar(features)
        if parsed and kind == "step":
            raise DataError(
                "the time column counts steps, which have no calendar",
                where=where,
                allowed="timestamps and dates",
                next_step="Leave calendar features out, or write the time as a timestamp.",
            )
        within_day = [name for name, _ in parsed if name in _CYCLES and _CYCLES[name].within_day]
        if within_day and kind == "date":
            raise DataError(
                f"the time column holds dates, which have no {' and no '.join(within_day)}",
                where=where,
                next_step="Leave these calendar features out.",
            )
        return cls(calendar_columns(features), zone)

    def values(self, instants: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float32]]:
        """Column name to float32 [rows], for instants as ``Panel.time`` counts them."""
        local = local_times(instants, self.zone)
        return {column.name: column.compute(local) for column in self.columns}


def parse_calendar(features: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Name and form of each feature: ``hour:category`` has the form category, ``hour`` its default.

    Raises:
        ValueError: an unknown feature, a form that it does not have, or a feature named twice in one form.
    """
    parsed = []
    for text in features:
        name, _, form = text.partition(":")
        if name not in CALENDAR_FEATURES:
            close = difflib.get_close_matches(name, CALENDAR_FEATURES, n=1, cutoff=0.5)
            hint = f" (did you mean {close[0]}?)" if close else ""
            names = ", ".join(CALENDAR_FEATURES)
            raise ValueError(f"there is no calendar feature '{name}'{hint}: choose from {names}")
        forms = _forms(name)
        if form and form not in forms:
            raise ValueError(f"calendar feature {name} cannot be '{form}': choose from {', '.join(forms)}")
        feature = name, form or forms[0]
        if feature in parsed:
            raise ValueError(f"calendar feature {name} is named twice")
        parsed.append(feature)
    return tuple(parsed)


def calendar_columns(features: Sequence[str]) -> tuple[CalendarColumn, ...]:
    """The columns of these features in their order; ValueError as ``parse_calendar``."""
    return tuple(column for feature in parse_calendar(features) for column in _columns(*feature))


def with_calendar(schema: Schema, features: Sequence[str]) -> Schema:
    """The schema with the columns of these features appended to the known ones; itself without features.

    Raises:
        SchemaError: it has a column of such a name already.
        ValueError: a feature that ``parse_calendar`` refuses.
    """
    columns = calendar_columns(features)
    taken = [column.name for column in columns if column.name in schema.roles()]
    if taken:
        raise SchemaError(
            f"column '{taken[0]}' is in the schema and a calendar feature as well",
            next_step="Drop one of them.",
        )
    if not columns:
        return schema
    real = tuple(column.name for column in columns if column.kind is Kind.REAL)
    category = tuple(column.name for column in columns if column.kind is Kind.CATEGORY)
    known = Columns(real=schema.known.real + real, category=schema.known.category + category)
    return schema.model_copy(update={"known": known})


def local_times(instants: npt.NDArray[np.int64], zone: str | None) -> Local:
    """Wall-clock times, datetime64[ns], of nanoseconds since 1970; in UTC without a zone."""
    if not has_other_clock(zone):  # needs no time zone data
        return instants.astype("datetime64[ns]")
    local: Local = pc.local_timestamp(pa.array(instants).cast(pa.timestamp("ns", tz=zone))).to_numpy(
        zero_copy_only=False
    )
    return local


@dataclass(frozen=True)
class _Cycle:
    """A place in a cycle, counted from 0; ``first`` is what people call place 0.

    ``length`` is the number of places of the cycle in which each time lies, since months and years differ: the
    last place of every cycle is one step from the first of the next. ``longest`` is its greatest value.
    """

    place: Callable[[Local], Places]
    length: Callable[[Local], Places | int]
    longest: int
    first: int = 1
    within_day: bool = False


def _columns(name: str, form: str) -> tuple[CalendarColumn, ...]:
    full = f"{PREFIX}{name}"
    if name in _NUMBERS:
        return (CalendarColumn(full, Kind.REAL, _NUMBERS[name]),)
    cycle = _CYCLES[name]
    if form == "cyclic":
        return tuple(
            CalendarColumn(f"{full}.{wave.__name__}", Kind.REAL, partial(_on_circle, cycle, wave))
            for wave in (np.sin, np.cos)
        )
    categories = tuple(str(value) for value in range(cycle.first, cycle.first + cycle.longest))
    return (CalendarColumn(full, Kind.CATEGORY, partial(_code, cycle), categories),)


def _on_circle(cycle: _Cycle, wave: np.ufunc, local: Local) -> npt.NDArray[np.float32]:
    return np.asarray(wave(2 * np.pi * cycle.place(local) / cycle.length(local)), dtype=np.float32)


def _code(cycle: _Cycle, local: Local) -> npt.NDArray[np.float32]:
    return cycle.place(local).astype(np.float32)


def _decimal_years(local: Local) -> npt.NDArray[np.float32]:
    days = _day_of_year(local) + _since_1970(local, "ns") % _DAY / _DAY
    year = _since_1970(local, "Y") + 1970 - _FIRST_YEAR
    return np.asarray(year + days / _days_in_year(local), dtype=np.float32)


def _is_weekend(local: Local) -> npt.NDArray[np.float32]:
    return (_weekday(local) >= _SATURDAY).astype(np.float32)


def _within(unit: str, whole: int) -> Callable[[Local], Places]:
    return lambda local: _since_1970(local, unit) % whole


def _always(length: int) -> Callable[[Local], int]:
    return lambda local: length


def _since_1970(local: Local, unit: str) -> Places:
    units: Places = local.astype(f"datetime64[{unit}]").astype(np.int64)
    return units


def _weekday(local: Local) -> Places:
    return (_since_1970(local, "D") + 3) % 7  # 1970-01-01 was a Thursday, place 3


def _days_between(start: Local, end: Local) -> Places:
    return _since_1970(end, "D") - _since_1970(start, "D")


def _day_of_month(local: Local) -> Places:
    return _days_between(local.astype("datetime64[M]"), local)


def _days_in_month(local: Local) -> Places:
    month = local.astype("datetime64[M]")
    return _days_between(month, month + 1)


def _day_of_year(local: Local) -> Places:
    return _days_between(local.astype("datetime64[Y]"), local)


def _days_in_year(local: Local) -> Places:
    year = local.astype("datetime64[Y]")
    return _days_between(year, year + 1)


def _week_of_year(local: Local) -> Places:
    return _day_of_year(_thursday(local)) // 7


def _weeks_in_year(local: Local) -> Places:
    new_year = (_thursday(local).astype("datetime64[Y]") + 1).astype("datetime64[D]")
    return _week_of_year(new_year - 4) + 1  # 28 December is in the last week of every ISO year


def _thursday(local: Local) -> Local:
    """The Thursday of the same week: its calendar year is the ISO year of the week."""
    return np.asarray(local.astype("datetime64[D]") + (3 - _weekday(local)))


def _month(local: Local) -> Places:
    return _since_1970(local, "M") % 12


def _quarter(local: Local) -> Places:
    return _month(local) // 3


_CYCLES = {
    "minute": _Cycle(_within("m", 60), _always(60), 60, first=0, within_day=True),
    "hour": _Cycle(_within("h", 24), _always(24), 24, first=0, within_day=True),
    "day_of_week": _Cycle(_weekday, _always(7), 7),
    "day_of_month": _Cycle(_day_of_month, _days_in_month, 31),
    "day_of_year": _Cycle(_day_of_year, _days_in_year, 366),
    "week_of_year": _Cycle(_week_of_year, _weeks_in_year, 53),
    "month": _Cycle(_month, _always(12), 12),
    "quarter": _Cycle(_quarter, _always(4), 4),
}
_NUMBERS = {"year": _decimal_years, "is_weekend": _is_weekend}
CALENDAR_FEATURES = (*_CYCLES, *_NUMBERS)
"""The names that `parse_calendar` takes."""


def _forms(name: str) -> tuple[str, ...]:
    return ("real",) if name in _NUMBERS else ("cyclic", "category")
