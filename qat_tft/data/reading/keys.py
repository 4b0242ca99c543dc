"""Which series and which time every row of the files has, and where it goes when rows are sorted.

R rows of the files, S series.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qat_tft.data.preparation import TimeMeaning
from qat_tft.data.reading.columns import CategoryColumn
from qat_tft.data.reading.source import Source
from qat_tft.data.reading.storage import Storage
from qat_tft.data.reading.times import TimeColumn
from qat_tft.data.time.kind import TimeKind
from qat_tft.schema import Schema

Advance = Callable[[int], None]
"""Is told how many rows have been read."""

_Ints = npt.NDArray[np.int64]
_BLOCK = 2**20


@dataclass(frozen=True)
class Keys:
    """Series and times of the rows, in the order of the files.

    Attributes:
        series: int32 [R], series of each row in the order of ``series_ids``.
        instants: int64 [R].
        starts: int64 [S + 1], first row of each series once rows are sorted by series.
        rising: bool [S], whether the rows of a series stand in the order of time already, each time once.
        series_ids: the values of the id columns, ascending.
        kind: what ``instants`` counts.
        zone: whose clock the times are read on, if any.
    """

    series: npt.NDArray[np.int32]
    instants: _Ints
    starts: _Ints
    rising: npt.NDArray[np.bool_]
    series_ids: list[tuple[str, ...]]
    kind: TimeKind
    zone: str | None

    def find(self, series: int, instant: int) -> _Ints:
        """Rows of the files that have this series and time: for messages, since all rows are looked through."""
        found = [
            np.flatnonzero(
                (self.series[first : first + _BLOCK] == series) & (self.instants[first : first + _BLOCK] == instant)
            )
            + first
            for first in range(0, len(self.series), _BLOCK)
        ]
        return np.concatenate(found)


def read_keys(
    source: Source, schema: Schema, storage: Storage, advance: Advance, learned: TimeMeaning | None = None
) -> Keys:
    """Read the time and id columns; times by what training learned about them, if there was a training.

    Raises:
        DataError: a type that they cannot have, a null, or a time that is none.
        SchemaError: a file lacks one of them.
    """
    time = TimeColumn(source, schema.time, learned)
    ids = []
    for column in schema.id:
        source.require(column)
        ids.append(CategoryColumn(source, column, null=None))
    numbers = _SeriesNumbers(ids)
    series = storage.scratch("series", (source.rows,), np.int32)
    instants = storage.scratch("instants", (source.rows,), np.int64)
    for first, arrays in source.blocks((schema.time, *schema.id)):
        end = first + len(arrays[schema.time])
        instants[first:end] = time.take(arrays[schema.time], first)
        codes = [column.take(arrays[column.name], first) for column in ids]
        series[first:end] = numbers.take(codes, instants[first:end])
        advance(end - first)
    time.check()
    for one in ids:
        one.check()
    sorted_ids, rank = numbers.sorted()
    for first in range(0, source.rows, _BLOCK):
        series[first : first + _BLOCK] = rank[series[first : first + _BLOCK]]
    counts, rising = np.empty(len(rank), np.int64), np.empty(len(rank), bool)
    counts[rank], rising[rank] = numbers.counts, numbers.rising
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Keys(series, instants, starts, rising, sorted_ids, time.kind, time.zone)


class _SeriesNumbers:
    """Numbers series in the order of their first row, and notes whether their times rise."""

    def __init__(self, ids: list[CategoryColumn]) -> None:
        self._ids = ids
        self._known: list[dict[int, int]] = [{} for _ in ids]  # per column: number so far and code, to new number
        self._last = np.empty(0, np.int64)
        self.counts = np.empty(0, np.int64)
        self.rising = np.empty(0, bool)

    def take(self, codes: list[npt.NDArray[np.int32]], instants: _Ints) -> npt.NDArray[np.int32]:
        """Number of the series of each row of a block, int32 [rows]."""
        numbers = np.zeros(len(instants), np.int64)
        for known, column in zip(self._known, codes, strict=True):
            pairs, places = np.unique(numbers << 32 | column, return_inverse=True)
            numbers = np.array([known.setdefault(pair, len(known)) for pair in pairs.tolist()], np.int64)[places]
        self._note(numbers, instants)
        return numbers.astype(np.int32)

    def sorted(self) -> tuple[list[tuple[str, ...]], npt.NDArray[np.int32]]:
        """The ids of all series, ascending, and the place of each number among them."""
        ids: list[tuple[str, ...]] = [()]
        for known, column in zip(self._known, self._ids, strict=True):
            values = column.values  # made anew at each call
            ids = [(*ids[pair >> 32], values[pair & 0xFFFFFFFF]) for pair in known]
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rank = np.empty(len(ids), np.int32)
        rank[order] = np.arange(len(ids), dtype=np.int32)
        return [ids[number] for number in order], rank

    def _note(self, numbers: _Ints, instants: _Ints) -> None:
        new = max(int(numbers.max()) + 1 - len(self.counts), 0)
        self.counts = np.append(self.counts, np.zeros(new, np.int64))
        self.rising = np.append(self.rising, np.ones(new, bool))
        self._last = np.append(self._last, np.full(new, np.iinfo(np.int64).min))
        order = grouped(numbers)
        numbers, instants = numbers[order], instants[order]
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        before = np.empty_like(instants)
        before[1:] = instants[:-1]
        before[begins] = self._last[numbers[begins]]
        self.rising[numbers[instants <= before]] = False
        ends = np.append(begins[1:], len(numbers)) - 1
        self._last[numbers[ends]] = instants[ends]
        self.counts += np.bincount(numbers, minlength=len(self.counts))


def grouped(numbers: npt.NDArray[np.integer]) -> _Ints | slice:
    """What brings equal numbers of a block together without changing their order otherwise."""
    return slice(None) if bool((numbers[1:] >= numbers[:-1]).all()) else np.argsort(numbers, kind="stable")
