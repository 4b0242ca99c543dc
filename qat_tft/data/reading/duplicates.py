"""Rows of the same series and time: refused, or made one by declared policy.

What was measured is never lost to what was planned: the last row is the last one that has a target, if any has.

R rows.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qat_tft.data.category_text import NULL_CATEGORY
from qat_tft.data.panel import name_series
from qat_tft.data.preparation import DuplicatePolicy
from qat_tft.data.reading.keys import Keys
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.reading.source import Rows, Source
from qat_tft.data.time.kind import time_text
from qat_tft.errors import DataError, Way
from qat_tft.schema import Schema

_BLOCK = 2**18
_NAMED = 3

_Ints = npt.NDArray[np.int64]


def without_duplicates(
    rows: SortedRows, policy: DuplicatePolicy, source: Source, schema: Schema, keys: Keys
) -> SortedRows:
    """The rows with one row for each series and time.

    Of planned rows (those of the source's planned files) the last one counts where the other files have no row of its
    series and time, or one without a target, whose values it takes where it has none itself.

    Args:
        rows: sorted; those of the same time in the order of the files.
        policy: what becomes of the others; ``mean`` leaves missing values out.
        source: tells which rows are planned; for messages.
        schema: the effective one.
        keys: tell whether there can be any; for messages otherwise.

    Raises:
        DataError: there are duplicates and the policy is ``error``; the message lists the first ones.
    """
    if keys.rising.all():
        return rows
    if source.planned:
        rows = _without_planned(rows, source, schema, keys)
    twice = _repeating(rows)
    if not len(twice):
        return rows
    if policy == "error":
        raise _refusal(rows, twice, source, schema, keys)
    if policy == "mean":
        _average(rows, twice, len(schema.group("historical").real))
        what = "each is the mean of its rows, with the last categories"
    else:
        rows = _without(rows, _unmeasured(rows, twice))
        what = "the last of each that has a target is kept"
    kept = _without(rows, _repeating(rows) - 1)  # of equal times the last row stays
    note = f"{_count(twice)} the series and time of another: {what} (data.duplicates)."
    return replace(kept, notes=(*kept.notes, note))


def _without_planned(rows: SortedRows, source: Source, schema: Schema, keys: Keys) -> SortedRows:
    """The rows without planned ones that were measured, and without those in whose place a planned one stands."""
    twice = _repeating(rows)
    firsts, lasts = _runs(twice)
    dropped, measured = [np.empty(0, np.int64)], 0
    for first, last, planned in zip(firsts.tolist(), lasts.tolist(), _planned(rows, firsts, source, keys), strict=True):
        if not planned:
            continue
        others = np.arange(first, last + 1 - planned)  # they stand before the planned ones
        if len(others) and not np.isnan(rows.values[others, 0]).all():
            dropped.append(np.arange(last + 1 - planned, last + 1))
            measured += planned
            continue
        if len(others):
            _complete(rows, int(others[-1]), last, schema, rows.dictionaries)
        dropped.append(np.arange(first, last))
    kept = _without(rows, np.concatenate(dropped))
    if not measured:
        return kept
    note = f"{measured:,} planned row{'s' if measured > 1 else ''} gave way to what was measured at the same time."
    return replace(kept, notes=(*kept.notes, note))


def _planned(rows: SortedRows, firsts: _Ints, source: Source, keys: Keys) -> list[int]:
    """How many of the rows with the series and time of each of these rows are planned."""
    begin = source.measured_rows
    pairs = zip(keys.series[begin:].tolist(), keys.instants[begin:].tolist(), strict=True)
    count = Counter(pairs)
    series = np.searchsorted(rows.starts, firsts, side="right") - 1
    return [count[pair] for pair in zip(series.tolist(), rows.time[firsts].tolist(), strict=True)]


def _complete(
    rows: SortedRows, row: int, planned: int, schema: Schema, dictionaries: dict[str, tuple[str, ...]]
) -> None:
    """Give a planned row what another row of its series and time knows and it does not."""
    history = schema.group("historical")
    missing = np.isnan(rows.values[planned])
    for place, column in enumerate(history.category, start=len(history.real)):
        values = dictionaries.get(column, ())
        if NULL_CATEGORY in values:
            missing[place] = rows.values[planned, place] == values.index(NULL_CATEGORY)
    rows.values[planned, missing] = rows.values[row, missing]


def _unmeasured(rows: SortedRows, twice: _Ints) -> _Ints:
    """Rows without a target where another of the same series and time has one, ascending."""
    firsts, lasts = _runs(twice)
    members = np.sort(np.concatenate([firsts, twice]))
    absent = np.isnan(rows.values[members, 0])
    begins = np.searchsorted(members, firsts)
    measured = np.add.reduceat((~absent).astype(np.int64), begins) > 0
    given_way: _Ints = members[absent & np.repeat(measured, lasts - firsts + 1)]
    return given_way


def _runs(twice: _Ints) -> tuple[_Ints, _Ints]:
    """First and last row of each run of rows of the same series and time."""
    return twice[~np.isin(twice - 1, twice)] - 1, twice[~np.isin(twice + 1, twice)]


def _repeating(rows: SortedRows) -> _Ints:
    """Rows that have the series and time of the row before them, ascending."""
    found = []
    for begin in range(1, len(rows.time), _BLOCK):
        end = min(begin + _BLOCK, len(rows.time))
        same = np.diff(rows.time[begin - 1 : end]) == 0
        same[rows.starts[(rows.starts >= begin) & (rows.starts < end)] - begin] = False
        found.append(np.flatnonzero(same) + begin)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _refusal(rows: SortedRows, twice: _Ints, source: Source, schema: Schema, keys: Keys) -> DataError:
    named = []
    for row in twice[:_NAMED].tolist():
        series = int(np.searchsorted(rows.starts, row, side="right")) - 1
        instant = int(rows.time[row])
        places = source.locate(Rows.of(keys.find(series, instant))).removesuffix(" (counted from 0)")
        who = name_series(schema.id, keys.series_ids[series])
        named.append(f"{who} at {time_text(instant, keys.kind)} in {places}")
    named = list(dict.fromkeys(named))  # three rows of the same time are named once
    further = "another column that distinguishes them" if schema.id else "their column"
    return DataError(
        f"{_count(twice)} the series and time of another: {'; '.join(named)} (counted from 0)",
        where=source.label,
        allowed="one row for each series and time",
        next_step=f"If they belong to several series, name {further} as id; otherwise drop them.",
        ways=[Way("--duplicates", "merge them with --duplicates last or mean")],
    )


def _count(twice: _Ints) -> str:
    return f"{len(twice):,} rows repeat" if len(twice) > 1 else "1 row repeats"


def _average(rows: SortedRows, twice: _Ints, real: int) -> None:
    # The mean of the real columns goes to the last row of each run of equal times, which is the one that stays.
    firsts, lasts = _runs(twice)
    members = np.sort(np.concatenate([firsts, twice]))
    values = rows.values[members, :real].astype(np.float64)
    there = ~np.isnan(values)
    begins = np.searchsorted(members, firsts)
    count = np.add.reduceat(there.astype(np.int64), begins)
    total = np.add.reduceat(np.where(there, values, 0.0), begins)
    rows.values[lasts, :real] = np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _without(rows: SortedRows, dropped: _Ints) -> SortedRows:
    """The rows without these, which are ascending; in place, since a row only ever moves to the front."""
    if not len(dropped):
        return rows
    end = 0
    for begin in range(0, len(rows.time), _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, len(rows.time)))
        inside = dropped[np.searchsorted(dropped, begin) : np.searchsorted(dropped, begin + _BLOCK)]
        kept = np.delete(block, inside - begin)
        rows.values[end : end + len(kept)], rows.time[end : end + len(kept)] = rows.values[kept], rows.time[kept]
        end += len(kept)
    starts = rows.starts - np.searchsorted(dropped, rows.starts)
    return replace(rows, values=rows.values[:end], time=rows.time[:end], starts=starts)
