"""Rows of the same series and time: refused, or made one by declared policy.

R rows.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qat_tft.data.panel import name_series
from qat_tft.data.preparation import DuplicatePolicy
from qat_tft.data.reading.keys import Keys
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.reading.source import Rows, Source
from qat_tft.data.time_kind import time_text
from qat_tft.errors import DataError, Way
from qat_tft.schema import Schema

_BLOCK = 2**18
_NAMED = 3

_Ints = npt.NDArray[np.int64]


def without_duplicates(
    rows: SortedRows, policy: DuplicatePolicy, source: Source, schema: Schema, keys: Keys
) -> SortedRows:
    """The rows with one row for each series and time.

    Args:
        rows: sorted; those of the same time in the order of the files.
        policy: what becomes of the others; ``mean`` leaves missing values out.
        source: for messages.
        schema: the effective one.
        keys: tell whether there can be any; for messages otherwise.

    Raises:
        DataError: there are duplicates and the policy is ``error``; the message lists the first ones.
    """
    if keys.rising.all():
        return rows
    twice = _repeating(rows)
    if not len(twice):
        return rows
    if policy == "error":
        raise _refusal(rows, twice, source, schema, keys)
    if policy == "mean":
        _average(rows, twice, len(schema.group("historical").real))
    kept = _compacted(rows, twice)
    what = "the last of each is kept" if policy == "last" else "each is the mean of its rows, with the last categories"
    note = f"{_count(twice)} the series and time of another: {what} (data.duplicates)."
    return replace(kept, notes=(*kept.notes, note))


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
    firsts = twice[~np.isin(twice - 1, twice)] - 1
    lasts = twice[~np.isin(twice + 1, twice)]
    members = np.sort(np.concatenate([firsts, twice]))
    values = rows.values[members, :real].astype(np.float64)
    there = ~np.isnan(values)
    begins = np.searchsorted(members, firsts)
    count = np.add.reduceat(there.astype(np.int64), begins)
    total = np.add.reduceat(np.where(there, values, 0.0), begins)
    rows.values[lasts, :real] = np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _compacted(rows: SortedRows, twice: _Ints) -> SortedRows:
    # In place: a row only ever moves to the front. Of equal times the last row stays.
    dropped = twice - 1
    end = 0
    for begin in range(0, len(rows.time), _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, len(rows.time)))
        inside = dropped[np.searchsorted(dropped, begin) : np.searchsorted(dropped, begin + _BLOCK)]
        kept = np.delete(block, inside - begin)
        rows.values[end : end + len(kept)], rows.time[end : end + len(kept)] = rows.values[kept], rows.time[kept]
        end += len(kept)
    starts = rows.starts - np.searchsorted(dropped, rows.starts)
    return replace(rows, values=rows.values[:end], time=rows.time[:end], starts=starts)
