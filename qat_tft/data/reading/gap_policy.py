"""What is done about time steps without a row: refused, reported, filled, or made the borders of stretches."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qat_tft.data.panel import name_series
from qat_tft.data.preparation import Preparation, TimeMeaning
from qat_tft.data.reading.gap_search import Gaps, filled, find_gaps, learned_step, usual_step
from qat_tft.data.reading.keys import Keys
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.reading.source import Source
from qat_tft.data.reading.storage import Storage
from qat_tft.data.time.kind import time_text
from qat_tft.data.time.season import season_rows
from qat_tft.data.time.steps import Step, Unit
from qat_tft.errors import DataError, Way
from qat_tft.schema import Schema

_MOST_INSERTED = 10  # rows for each one that is there

_Ints = npt.NDArray[np.int64]


def prepare_gaps(
    rows: SortedRows,
    preparation: Preparation,
    source: Source,
    schema: Schema,
    keys: Keys,
    storage: Storage,
) -> tuple[SortedRows, _Ints | None, Preparation]:
    """The rows, the starts of stretches where the policy is ``split``, and the preparation with what time means.

    What training learned of that counts, whatever these rows suggest.

    Raises:
        DataError: there are gaps and the policy is ``error``; or it is ``fill`` and rows lie off the step, or far
            more rows would be inserted than there are.
    """
    step = learned_step(preparation, keys.kind, keys.zone)
    if step is None:
        step = usual_step(rows.time, rows.starts, keys.kind, keys.zone)
    preparation = _with_time(preparation, step, rows, keys)
    if step is None:
        return rows, None, preparation
    gaps = find_gaps(rows.time, rows.starts, step)
    policy = preparation.gaps
    if not len(gaps.rows):
        return rows, None, preparation
    found = _described(gaps, rows, schema, keys)
    if policy == "error":
        raise _refusal(found, source, "Add the rows.", "ignore, split or fill")
    if policy == "split":
        stretches = np.union1d(rows.starts, gaps.rows)
        return _noted(rows, f"{found}; no window spans them (data.gaps = split)."), stretches, preparation
    if policy == "ignore":
        note = f"{found}; the next row is taken for the next step (data.gaps = ignore)."
        return _noted(rows, note), None, preparation
    if not gaps.regular.all():
        raise _refusal(found, source, "Gaps cannot be filled where rows are off the time step.", "split")
    if gaps.missing > _MOST_INSERTED * len(rows.time):
        raise _refusal(found, source, f"That is too many rows to insert among {source.rows:,}.", "split")
    rows = filled(rows, gaps, schema.group("historical"), storage)
    return _noted(rows, f"{found}; rows are inserted there (data.gaps = fill)."), None, preparation


def _with_time(preparation: Preparation, step: Step | None, rows: SortedRows, keys: Keys) -> Preparation:
    if preparation.time is not None:
        return preparation
    week = step.week if step is not None and step.unit is Unit.BUSINESS_DAY else ""
    season = season_rows(rows.time, rows.starts, step)
    time = TimeMeaning(keys.kind.value, keys.zone or "", week, season)
    return replace(preparation, step=None if step is None else (str(step.unit), step.size), time=time)


def _noted(rows: SortedRows, note: str) -> SortedRows:
    return replace(rows, notes=(*rows.notes, note))


def _refusal(found: str, source: Source, next_step: str, policies: str) -> DataError:
    accept = Way("--gaps", f"accept the gaps with --gaps {policies}")
    return DataError(found, where=source.label, allowed="a row for every time step", next_step=next_step, ways=[accept])


def _described(gaps: Gaps, rows: SortedRows, schema: Schema, keys: Keys) -> str:
    """Say what the step is, how often it is missed, and where first: the largest gap and the first row off it."""
    parts = []
    skipped = int(np.count_nonzero(gaps.left_out))
    if skipped:
        largest = gaps.largest
        parts.append(
            f"{_counted(skipped, 'gap')} leave{'s' if skipped == 1 else ''} out {_counted(gaps.missing, 'step')}, "
            f"the largest {_counted(int(gaps.left_out[largest]), 'step')} "
            f"until {_place(int(gaps.rows[largest]), rows, schema, keys)}"
        )
    off = np.flatnonzero(~gaps.regular)
    if len(off):
        first = _place(int(gaps.rows[off[0]]), rows, schema, keys)
        parts.append(f"{_counted(len(off), 'row')} lie{'s' if len(off) == 1 else ''} off it, first {first}")
    share = 1 - len(gaps.rows) / max(1, len(rows.time) - len(rows.starts) + 1)
    kind = "time step" if share > 0.5 else "most frequent time step (not a regular one)"
    return f"the {kind} is {gaps.step.text}, and {' and '.join(parts)}"


def _place(row: int, rows: SortedRows, schema: Schema, keys: Keys) -> str:
    series = int(np.searchsorted(rows.starts, row, side="right")) - 1
    return f"{time_text(int(rows.time[row]), keys.kind)} in {name_series(schema.id, keys.series_ids[series])}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
