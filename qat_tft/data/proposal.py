"""Propose a role for every column of a file, each with its reason: a draft for people to correct."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from qat_tft.data.columns import NULL_CATEGORY, category_values
from qat_tft.data.panel import TimeKind
from qat_tft.data.profile import Profile, numbers
from qat_tft.data.source import Source
from qat_tft.data.times import Times
from qat_tft.schema import Columns, Kind, Role, Schema

_TIME_WORDS = {"time", "date", "datetime", "timestamp", "step", "index", "t", "ds", "period"}
_ID_WORDS = {"id", "key", "symbol", "series", "entity", "item", "store", "sku", "contract", "ticker", "name"}
_TARGET_WORDS = ("target", "y", "close", "demand", "load", "sales", "volume", "consumption", "value", "ot")
_CALENDAR_WORDS = {
    *("second", "seconds", "minute", "minutes", "hour", "hours", "day", "days", "weekday", "weekend", "week"),
    *("weeks", "month", "months", "quarter", "year", "years", "dow", "doy", "holiday", "holidays", "easter"),
    *("christmas", "expiry", "dayofweek", "dayofyear", "weekofyear"),
}
_FILLER_WORDS = {
    "of",
    "in",
    "from",
    "since",
    "to",
    "until",
    "start",
    "end",
    "the",
    "is",
    "half",
    "number",
    "sin",
    "cos",
}
_COUNTING_WORDS = {"from", "since", "to", "until"}
_CALENDAR_CATEGORIES = 60  # a whole-number calendar column with no more values becomes a category
_MOST_CATEGORIES = 1_000
_ID_CANDIDATES = 8
_DAY_MINUTES = 24 * 60
_VISITS = 2
_MOST = 0.5


@dataclass(frozen=True)
class Proposal:
    """A role for one column, or none; ``reason`` says why."""

    roles: tuple[Role, ...]
    kind: Kind | None
    reason: str


@dataclass(frozen=True)
class Layout:
    """Rows in the order of series and time, and the first row of each series (and the number of rows)."""

    ids: tuple[str, ...]
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    duplicates: int


def propose_time(profiles: Sequence[Profile]) -> str | None:
    """The time column: the first timestamp or date, otherwise a whole number with a name such as step."""
    for profile in profiles:
        if profile.shape == "time":
            return profile.name
    for profile in profiles:
        if profile.shape == "whole" and not profile.missing and _words(profile.name) & _TIME_WORDS:
            return profile.name
    return None


def propose_ids(source: Source, profiles: Sequence[Profile], times: Times, given: Sequence[str] | None) -> Layout:
    """The fewest columns that make (series, time) unique; without such columns, none and counted duplicates."""
    if given is not None:
        return _layout(source, tuple(given), times)
    alone = _layout(source, (), times)
    if not alone.duplicates:
        constant = [
            one.name for one in profiles if one.distinct == 1 and _words(one.name) & _ID_WORDS and not one.nulls
        ]
        return Layout(tuple(constant[:1]), alone.order, alone.starts, 0)
    for columns in _id_candidates(profiles):
        layout = _layout(source, columns, times)
        if not layout.duplicates:
            return layout
    return alone


def propose_roles(
    source: Source,
    profiles: Sequence[Profile],
    time: str,
    times: Times,
    layout: Layout,
    target: str | None,
) -> dict[str, Proposal]:
    """Column name to proposed role, in the order of the file."""
    drafts = {
        one.name: _column(source, one, time, times, layout)
        for one in profiles
        if one.name != time and one.name not in layout.ids
    }
    found = {time: Proposal((Role.TIME,), None, "the first of its type")}
    several = len(layout.starts) > 2
    for name in layout.ids:
        roles = (Role.ID, Role.STATIC) if several else (Role.ID,)
        reason = "tells series apart" if several else "names the only series"
        found[name] = Proposal(roles, Kind.CATEGORY if several else None, reason)
    chosen = target or _target(drafts)
    if chosen in drafts:
        reason = "as asked" if target else "a guess; --target chooses"
        drafts[chosen] = Proposal((Role.TARGET,), Kind.REAL, reason)
    found |= drafts
    return {one.name: found[one.name] for one in profiles}


def proposed_schema(proposals: dict[str, Proposal]) -> Schema | None:
    """The schema of these proposals; None where there is no time or no target."""

    def names(role: Role, kind: Kind | None = None) -> tuple[str, ...]:
        return tuple(
            name for name, one in proposals.items() if role in one.roles and (kind is None or one.kind is kind)
        )

    if not names(Role.TIME) or not names(Role.TARGET):
        return None
    static, observed, known = (
        Columns(real=names(role, Kind.REAL), category=names(role, Kind.CATEGORY))
        for role in (Role.STATIC, Role.OBSERVED, Role.KNOWN)
    )
    return Schema(
        time=names(Role.TIME)[0],
        target=names(Role.TARGET)[0],
        id=names(Role.ID),
        static=static,
        observed=observed,
        known=known,
    )


def _id_candidates(profiles: Sequence[Profile]) -> Iterator[tuple[str, ...]]:
    texts = [one for one in profiles if one.shape == "text" and not one.nulls]
    named = [one for one in profiles if one.shape == "whole" and not one.missing and _words(one.name) & _ID_WORDS]
    likely = sorted(texts, key=lambda one: not _words(one.name) & _ID_WORDS)[:_ID_CANDIDATES]
    usable = [one.name for one in (*likely, *named[:_ID_CANDIDATES])]
    for size in (1, 2, 3):
        yield from combinations(usable, size)


def _layout(source: Source, ids: tuple[str, ...], times: Times) -> Layout:
    keys = [category_values(source, column).codes for column in ids]
    order = np.lexsort(np.stack([times.instants, *reversed(keys)]))
    new = np.zeros(source.rows, dtype=bool)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    same_time = np.diff(times.instants[order]) == 0
    duplicates = int((same_time & ~new[1:]).sum())
    return Layout(ids, order, np.append(np.flatnonzero(new), source.rows), duplicates)


def _column(source: Source, profile: Profile, time: str, times: Times, layout: Layout) -> Proposal:
    if profile.shape in ("other", "time"):
        return Proposal((), None, _why_unusable(profile, time, source.rows))
    if profile.distinct == 1 and not profile.missing:
        return Proposal((), None, "the same in all rows")
    is_real = profile.shape in ("number", "whole", "flag") and profile.type != "bool"
    if is_real and profile.missing:
        return Proposal((), None, "has gaps: fill them to use it")
    if profile.shape == "text" and (profile.distinct or 0) > _MOST_CATEGORIES:
        return Proposal((), None, f"{profile.distinct:,} different texts are too many for a category")
    values = numbers(source, profile.name) if is_real else category_values(source, profile.name).codes
    ordered = values[layout.order]
    kind = Kind.REAL if is_real else Kind.CATEGORY
    if len(layout.starts) > 2 and _constant_in_series(ordered, layout):
        if profile.shape == "whole" and _numbers_series(values, len(layout.starts) - 1):
            return Proposal((), None, "only numbers the series")
        return Proposal((Role.STATIC,), kind, "one value per series")
    reason = _known_because(profile, values, times)
    if reason:
        counts = bool(_words(profile.name) & _COUNTING_WORDS)
        few = profile.shape == "whole" and (profile.distinct or 0) <= _CALENDAR_CATEGORIES
        return Proposal((Role.KNOWN,), Kind.CATEGORY if few and not counts else kind, reason)
    nulls = f"; a null is the category {NULL_CATEGORY}" if profile.nulls else ""
    return Proposal((Role.OBSERVED,), kind, f"does not follow from time{nulls}")


def _why_unusable(profile: Profile, time: str, rows: int) -> str:
    if rows and profile.nulls == rows:
        return "null in every row"
    if profile.shape == "time":
        return f"a second time besides '{time}': derive numbers from it to use it"
    return f"values of type {profile.type} cannot be used"


def _constant_in_series(ordered: npt.NDArray[np.float64] | npt.NDArray[np.int32], layout: Layout) -> bool:
    first = np.repeat(ordered[layout.starts[:-1]], np.diff(layout.starts))
    return bool((ordered == first).all())


def _numbers_series(values: npt.NDArray[np.float64] | npt.NDArray[np.int32], count: int) -> bool:
    distinct = np.unique(values)
    return len(distinct) == count and distinct[-1] - distinct[0] == count - 1


def _known_because(profile: Profile, values: npt.NDArray[np.float64] | npt.NDArray[np.int32], times: Times) -> str:
    """Why the column is known beforehand, or ""."""
    moments = np.unique(times.instants, return_index=True)[1]
    for name, position in _calendar_positions(times):
        if _follows(values, position, moments):
            return f"follows from the {name}"
    words = _words(profile.name)
    if not words & _CALENDAR_WORDS or profile.shape == "number":
        return ""
    if profile.shape == "flag" or words <= _CALENDAR_WORDS | _FILLER_WORDS:
        return "a calendar name"
    return ""


def _calendar_positions(times: Times) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    if times.kind is TimeKind.STEP:
        return
    minutes = times.instants // 60_000_000_000
    days = minutes // _DAY_MINUTES
    date = (days.astype("datetime64[D]")).astype("datetime64[M]")
    day_of_month = days - date.astype("datetime64[D]").astype(np.int64)
    weekday = (days + 3) % 7  # 1970-01-01 was a Thursday
    yield "time of day", minutes % _DAY_MINUTES
    yield "day of the week", weekday
    yield "day of the month", day_of_month
    yield "month", date.astype(np.int64) % 12
    yield "day of the year", date.astype(np.int64) % 12 * 31 + day_of_month
    yield "time of the week", weekday * _DAY_MINUTES + minutes % _DAY_MINUTES


def _follows(
    values: npt.NDArray[np.float64] | npt.NDArray[np.int32],
    position: npt.NDArray[np.int64],
    moments: npt.NDArray[np.int64],
) -> bool:
    """Whether a position always has the same value, and most positions come back often enough to tell.

    ``moments`` are the rows of the distinct times in their order. A position comes back when other positions lie
    between: a year of monthly figures does not show that they follow from the month.
    """
    places, group = np.unique(position, return_inverse=True)
    visited = group[moments]
    arrivals = visited[np.flatnonzero(np.diff(visited, prepend=-1))]
    visits = np.bincount(arrivals, minlength=len(places))
    if len(places) < 2 or np.mean(visits >= _VISITS) < _MOST:
        return False
    first = np.empty(len(places), dtype=values.dtype)
    first[group[::-1]] = values[::-1]
    return bool((values == first[group]).all())


def _target(drafts: dict[str, Proposal]) -> str | None:
    usable = [
        name for name, one in drafts.items() if one.kind is Kind.REAL and one.roles and one.roles[0] is Role.OBSERVED
    ]
    for word in _TARGET_WORDS:
        for name in usable:
            if name.casefold() == word:
                return name
    return usable[0] if usable else None


def _words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in re.split(r"[^a-z]+", spaced.casefold()) if word}
