"""Time steps without a row: found, reported, and refused, filled or made the borders of stretches.

R rows, S series, G gaps.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qat_tft.data.category_text import NULL_CATEGORY
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.reading.storage import Storage
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.steps import MONDAY_TO_FRIDAY, Step, Unit, find_step
from qat_tft.schema import Group

_BLOCK = 2**20
_SAMPLED_RUNS, _SAMPLED_ROWS = 64, 2**12

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Gaps:
    """Where the next row of a series does not stand one step later.

    Attributes:
        step: the time step of the data set.
        rows: int64 [G], rows that do not follow the one before them by one step, ascending.
        left_out: int64 [G], steps that are left out before each of them; 0 where it lies off the step.
        regular: bool [G], whether it lies a whole number of steps after the row before it.
    """

    step: Step
    rows: _Ints
    left_out: _Ints
    regular: npt.NDArray[np.bool_]

    @property
    def missing(self) -> int:
        """Steps left out in all."""
        return int(self.left_out.sum())

    @property
    def largest(self) -> int:
        """Place among the gaps of the one that leaves out most."""
        return int(self.left_out.argmax())


def usual_step(time: _Ints, starts: _Ints, kind: TimeKind, zone: str | None) -> Step | None:
    """The most frequent time step, from runs of rows that are spread over all of them; None if no series has two."""
    run = min(_SAMPLED_ROWS, len(time))
    begins = np.unique(np.linspace(0, len(time) - run, _SAMPLED_RUNS).astype(np.int64))
    runs = []
    for begin in begins.tolist():
        borders = starts[(starts > begin) & (starts < begin + run)]
        runs.extend(np.split(np.asarray(time[begin : begin + run]), borders - begin))
    return find_step(runs, kind, zone)


def learned_step(preparation: Preparation, kind: TimeKind, zone: str | None) -> Step | None:
    """The time step that training learned; None where it is still to be found."""
    if preparation.step is None:
        return None
    unit, size = preparation.step
    week = preparation.time.week if preparation.time is not None else ""
    return Step(Unit(unit), size, kind, zone, week or MONDAY_TO_FRIDAY)


def find_gaps(time: _Ints, starts: _Ints, step: Step) -> Gaps:
    """Compare every row with the one before it in its series.

    Args:
        time: int64 [R], rising within each series.
        starts: int64 [S + 1], first row of each series, and the number of rows.
        step: the time step.
    """
    rows, left_out, regular = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for begin in range(1, len(time), _BLOCK):
        end = min(begin + _BLOCK, len(time))
        count, exact = step.between(np.asarray(time[begin - 1 : end]))
        off = ~(exact & (count == 1))
        off[starts[(starts >= begin) & (starts < end)] - begin] = False
        rows.append(np.flatnonzero(off) + begin)
        left_out.append(np.where(exact[off], np.maximum(count[off] - 1, 0), 0))
        regular.append(exact[off] & (count[off] > 0))
    return Gaps(step, np.concatenate(rows), np.concatenate(left_out), np.concatenate(regular))


def filled(rows: SortedRows, gaps: Gaps, history: Group, storage: Storage) -> SortedRows:
    """The rows with a row for every step that was left out: nothing but its time is known in it.

    Args:
        rows: sorted.
        gaps: all regular.
        history: the columns of the rows.
        storage: takes the longer arrays.
    """
    before = np.concatenate([[0], np.cumsum(gaps.left_out)])  # rows inserted before each gap, and in all
    count = len(rows.time) + gaps.missing
    values = storage.array("filled", (count, rows.values.shape[1]), np.float32)
    time = storage.array("filled_time", (count,), np.int64)
    for begin in range(0, len(rows.time), _BLOCK):
        old = np.arange(begin, min(begin + _BLOCK, len(rows.time)))
        places = old + before[np.searchsorted(gaps.rows, old, side="right")]
        values[places], time[places] = rows.values[begin : begin + _BLOCK], rows.time[begin : begin + _BLOCK]
    dictionaries = {column: _with_null(values) for column, values in rows.dictionaries.items()}
    empty = [np.float32(np.nan)] * len(history.real)
    for column in history.category:  # those that are derived are written later
        empty.append(np.float32(dictionaries[column].index(NULL_CATEGORY) if column in dictionaries else 0))
    for gap in range(0, len(gaps.rows), _BLOCK):
        row, left_out = gaps.rows[gap : gap + _BLOCK], gaps.left_out[gap : gap + _BLOCK]
        steps = np.arange(1, left_out.sum() + 1) - np.repeat(np.cumsum(left_out) - left_out, left_out)
        places = np.repeat(row + before[:-1][gap : gap + _BLOCK], left_out) + steps - 1
        values[places] = empty
        time[places] = gaps.step.after(np.repeat(np.asarray(rows.time[row - 1]), left_out), steps)
    starts = rows.starts + before[np.searchsorted(gaps.rows, rows.starts, side="right")]
    return replace(rows, values=values, time=time, starts=starts, dictionaries=dictionaries)


def _with_null(values: tuple[str, ...]) -> tuple[str, ...]:
    return values if NULL_CATEGORY in values else (*values, NULL_CATEGORY)
