"""Propose a role for every column of a file, with its reason and how sure it is: a draft for people to correct."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
import numpy.typing as npt

from qat_tft.data.category_text import NULL_CATEGORY
from qat_tft.data.reading.columns import category_values
from qat_tft.data.reading.source import Source
from qat_tft.data.reading.times import Times
from qat_tft.data.roles.column_profile import Profile, numbers
from qat_tft.data.roles.evidence import (
    Values,
    counts_time,
    follows_from,
    has_calendar_name,
    marks_events,
    sounds_planned,
    words,
)
from qat_tft.data.roles.field_metadata import DeclaredRole
from qat_tft.schema import Columns, Kind, Role, Schema

_TIME_WORDS = {"time", "date", "datetime", "timestamp", "step", "index", "t", "ds", "period"}
_ID_WORDS = {"id", "key", "symbol", "series", "entity", "item", "store", "sku", "contract", "ticker", "name"}
_TARGET_WORDS = ("target", "y", "close", "demand", "load", "sales", "volume", "consumption", "value", "ot")
_DECLARED = "its field metadata"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CALENDAR_CATEGORIES = 60  # a whole-number calendar column with no more values becomes a category
_MOST_CATEGORIES = 1_000
_ID_CANDIDATES = 8


class Confidence(StrEnum):
    """How sure a proposal is."""

    SURE = "sure"  # the data or the user leave no other reading
    LIKELY = "likely"  # usual for such a column
    GUESS = "guess"  # to be read before training


@dataclass(frozen=True)
class Proposal:
    """A role for one column, or none; ``reason`` says why, ``confidence`` how sure that is."""

    roles: tuple[Role, ...]
    kind: Kind | None
    reason: str
    confidence: Confidence


@dataclass(frozen=True)
class Layout:
    """Rows in the order of series and time, and the first row of each series (and the number of rows)."""

    ids: tuple[str, ...]
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    duplicates: int

    @property
    def several(self) -> bool:
        """Whether there is more than one series."""
        return len(self.starts) > 2


@dataclass(frozen=True)
class Given:
    """What is not to be guessed: columns that the user named, and the roles that the file's fields declare."""

    time: str | None = None
    target: str | None = None
    ids: tuple[str, ...] | None = None
    declared: Mapping[str, DeclaredRole] | None = None

    def declared_as(self, role: Role) -> tuple[str, ...]:
        """The columns that declare a role."""
        return tuple(name for name, one in (self.declared or {}).items() if role in one.roles)


def propose_time(profiles: Sequence[Profile], given: Given) -> tuple[str, Proposal] | None:
    """The time column: the first timestamp or date, otherwise a whole number with a name such as step."""
    role = (Role.TIME,)
    if given.time is not None:
        return given.time, Proposal(role, None, "as asked", Confidence.SURE)
    declared = given.declared_as(Role.TIME)
    if declared:
        return declared[0], Proposal(role, None, _DECLARED, Confidence.SURE)
    times = [one.name for one in profiles if one.shape == "time"]
    if len(times) == 1:
        return times[0], Proposal(role, None, "the only time", Confidence.SURE)
    if times:
        return times[0], Proposal(role, None, f"the first of {len(times)} times", Confidence.LIKELY)
    named = [one for one in profiles if not one.missing and words(one.name) & _TIME_WORDS]
    for profile in named:
        if profile.shape == "text" and _DATE.match(profile.minimum) and _DATE.match(profile.maximum):
            return profile.name, Proposal(role, None, "texts that look like times", Confidence.LIKELY)
    for profile in named:
        if profile.shape == "whole":
            return profile.name, Proposal(role, None, "whole numbers named like a time", Confidence.GUESS)
    return None


def propose_ids(source: Source, profiles: Sequence[Profile], times: Times, given: Given) -> Layout:
    """The fewest columns that make (series, time) unique; without such columns, none and counted duplicates."""
    named = given.ids if given.ids is not None else given.declared_as(Role.ID) or None
    if named is not None:
        return _layout(source, named, times)
    alone = _layout(source, (), times)
    if not alone.duplicates:
        constant = [one.name for one in profiles if one.distinct == 1 and words(one.name) & _ID_WORDS and not one.nulls]
        return Layout(tuple(constant[:1]), alone.order, alone.starts, 0)
    for columns in _id_candidates(profiles):
        layout = _layout(source, columns, times)
        if not layout.duplicates:
            return layout
    return alone


def propose_roles(
    source: Source,
    profiles: Sequence[Profile],
    time: tuple[str, Proposal],
    times: Times,
    layout: Layout,
    given: Given,
) -> dict[str, Proposal]:
    """Column name to proposed role, in the order of the file."""
    found = {time[0]: time[1]} | {name: _id(name, layout, given) for name in layout.ids}
    drafts = {
        one.name: _declared(given, one.name) or _column(source, one, time[0], times, layout)
        for one in profiles
        if one.name not in found
    }
    declared = given.declared_as(Role.TARGET)
    target = given.target or (declared[0] if declared else None)
    if target in drafts:
        reason = "as asked" if given.target else _DECLARED
        drafts[target] = Proposal((Role.TARGET,), Kind.REAL, reason, Confidence.SURE)
    elif target is None:
        drafts |= _target(drafts)
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
    named = [one for one in profiles if one.shape == "whole" and not one.missing and words(one.name) & _ID_WORDS]
    likely = sorted(texts, key=lambda one: not words(one.name) & _ID_WORDS)[:_ID_CANDIDATES]
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


def _id(name: str, layout: Layout, given: Given) -> Proposal:
    declared = (given.declared or {}).get(name)
    if declared is not None and Role.ID in declared.roles:
        return Proposal(declared.roles, declared.kind, _DECLARED, Confidence.SURE)
    roles = (Role.ID, Role.STATIC) if layout.several else (Role.ID,)
    reason = "tells series apart" if layout.several else "names the only series"
    confidence = Confidence.SURE if given.ids is not None or words(name) & _ID_WORDS else Confidence.LIKELY
    return Proposal(roles, Kind.CATEGORY if layout.several else None, reason, confidence)


def _declared(given: Given, name: str) -> Proposal | None:
    declared = (given.declared or {}).get(name)
    if declared is None or declared.kind is None:  # a time or an id besides the ones in use has no other role
        return None
    roles = tuple(role for role in declared.roles if role is not Role.ID)
    return Proposal(roles, declared.kind, _DECLARED, Confidence.SURE)


def _column(source: Source, profile: Profile, time: str, times: Times, layout: Layout) -> Proposal:
    unusable = _unusable(profile, time, source.rows)
    if unusable is not None:
        return Proposal((), None, *unusable)
    kind = Kind.REAL if profile.shape in ("number", "whole") else Kind.CATEGORY
    values: Values = numbers(source, profile.name) if kind is Kind.REAL else category_values(source, profile.name).codes
    if layout.several and _constant_in_series(values[layout.order], layout):
        if profile.shape == "whole" and _numbers_series(values, len(layout.starts) - 1):
            return Proposal((), None, "only numbers the series", Confidence.LIKELY)
        return Proposal((Role.STATIC,), kind, "one value per series", Confidence.SURE)
    known = _known(profile, values, times)
    if known is not None:
        few = profile.shape == "whole" and (profile.distinct or 0) <= _CALENDAR_CATEGORIES
        return Proposal((Role.KNOWN,), Kind.CATEGORY if few and not counts_time(profile.name) else kind, *known)
    return Proposal((Role.OBSERVED,), kind, *_observed(profile, kind))


def _unusable(profile: Profile, time: str, rows: int) -> tuple[str, Confidence] | None:
    if rows and profile.nulls == rows:
        return "null in every row", Confidence.SURE
    if profile.shape == "time":
        return f"a second time besides '{time}': derive numbers from it to use it", Confidence.LIKELY
    if profile.shape == "other":
        return f"values of type {profile.type} cannot be used", Confidence.SURE
    if profile.infinite:
        return f"infinite in {profile.infinite:,} rows: correct them to use it", Confidence.SURE
    if profile.distinct == 1 and not profile.missing:
        return "the same in all rows", Confidence.SURE
    if profile.shape == "text" and (profile.distinct or 0) > _MOST_CATEGORIES:
        return f"{profile.distinct:,} different texts are many for a category", Confidence.GUESS
    return None


def _known(profile: Profile, values: Values, times: Times) -> tuple[str, Confidence] | None:
    part = follows_from(values, times)
    if part:
        return f"follows from the {part}", Confidence.SURE
    flag = profile.shape == "flag"
    if profile.shape != "number" and has_calendar_name(profile.name, flag=flag):
        return "a calendar name", Confidence.LIKELY
    if flag and marks_events(values, times):
        return "a rare flag shared by all series: an event? then announced?", Confidence.GUESS
    return None


def _observed(profile: Profile, kind: Kind) -> tuple[str, Confidence]:
    if sounds_planned(profile.name):
        return "does not follow from time; planned ahead, by its name? then known", Confidence.GUESS
    reason = "does not follow from time"
    if profile.missing and kind is Kind.REAL:
        return f"{reason}; has gaps: --missing", Confidence.LIKELY
    return f"{reason}; a null is the category {NULL_CATEGORY}" if profile.nulls else reason, Confidence.LIKELY


def _constant_in_series(ordered: Values, layout: Layout) -> bool:
    first = np.repeat(ordered[layout.starts[:-1]], np.diff(layout.starts))
    return bool(((ordered == first) | (np.isnan(ordered) & np.isnan(first))).all())


def _numbers_series(values: Values, count: int) -> bool:
    distinct = np.unique(values)
    return len(distinct) == count and distinct[-1] - distinct[0] == count - 1


def _target(drafts: dict[str, Proposal]) -> dict[str, Proposal]:
    usable = [
        name for name, one in drafts.items() if one.kind is Kind.REAL and one.roles and one.roles[0] is Role.OBSERVED
    ]
    for word in _TARGET_WORDS:
        for name in usable:
            if name.casefold() == word:
                reason = "a usual name; --target chooses"
                return {name: Proposal((Role.TARGET,), Kind.REAL, reason, Confidence.LIKELY)}
    reason = "the first of its kind; --target chooses"
    return {name: Proposal((Role.TARGET,), Kind.REAL, reason, Confidence.GUESS) for name in usable[:1]}
