"""From rows of the files to sorted rows of float32: each block goes to where its rows belong.

R rows, V columns of the history, S series, n rows of a block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qat_tft.data.panel import name_series
from qat_tft.data.reading.columns import CategoryColumn, RealColumn
from qat_tft.data.reading.keys import Advance, Keys, grouped
from qat_tft.data.reading.source import Rows, Source
from qat_tft.data.reading.storage import Storage
from qat_tft.errors import DataError
from qat_tft.schema import Group, Schema

_BLOCK_VALUES = 2**22

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SortedRows:
    """The rows of the files, sorted by series and then by time; rows of the same time stand as in the files.

    Attributes:
        values: float32 [R, V]; columns that the files do not hold are not filled in yet.
        time: int64 [R].
        static: float32 [S, Vs], likewise.
        starts: int64 [S + 1], first row of each series, and the number of rows.
        dictionaries: values of each category column in the order of their codes.
        missing: rows of the files in which a real column is null or NaN.
        largest: largest magnitude of each real column of the history.
        notes: what a user should know, one sentence each.
    """

    values: _Floats
    time: npt.NDArray[np.int64]
    static: _Floats
    starts: npt.NDArray[np.int64]
    dictionaries: dict[str, tuple[str, ...]]
    missing: dict[str, Rows]
    largest: dict[str, float]
    notes: tuple[str, ...]


def read_rows(
    source: Source,
    declared: Schema,
    effective: Schema,
    keys: Keys,
    storage: Storage,
    advance: Advance,
    *,
    checked: bool = True,
) -> SortedRows:
    """Read the declared columns into the places that they have in the effective schema.

    Raises:
        DataError: a type that a column's role does not take, a static column that changes within a series and, where
            values are checked, one that float32 cannot hold.
    """
    history = _Columns(source, declared.group("historical"), effective.group("historical"))
    static = _Static(_Columns(source, declared.group("static"), effective.group("static")), keys)
    width = len(effective.group("historical").columns)
    values = storage.array("values", (source.rows, width), np.float32)
    time = storage.array("time", (source.rows,), np.int64)
    following = keys.starts[:-1].copy()  # where the next row of each series goes
    for first, arrays in source.blocks(tuple(dict.fromkeys((*history.names, *static.columns.names)))):
        series = keys.series[first : first + len(next(iter(arrays.values())))]
        instants = keys.instants[first : first + len(series)]
        block = history.take(arrays, first, width)
        static.take(arrays, first, series)
        _place(values, time, block, instants, series, following)
        advance(len(series))
    notes = (*history.finish(checked=checked), *static.columns.finish(checked=checked))
    static.check(source, declared)
    for number in np.flatnonzero(~keys.rising).tolist():
        _sort(values, time, int(keys.starts[number]), int(keys.starts[number + 1]), storage)
    return SortedRows(
        values,
        time,
        static.values,
        keys.starts,
        history.dictionaries() | static.columns.dictionaries(),
        history.missing() | static.columns.missing(),
        {column.name: column.largest for column in history.real},
        notes,
    )


class _Columns:
    """The columns of a group that are in the files, and their places in the group of the effective schema."""

    def __init__(self, source: Source, declared: Group, effective: Group) -> None:
        self.real = [RealColumn(source, name) for name in declared.real]
        self.category = [CategoryColumn(source, name) for name in declared.category]
        self.all: tuple[RealColumn | CategoryColumn, ...] = (*self.real, *self.category)
        self.places = [effective.columns.index(name) for name in declared.columns]
        self.width = len(effective.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.all)

    def take(self, arrays: dict[str, pa.Array], first: int, width: int) -> _Floats:
        """A block, float32 [n, width]."""
        rows = len(next(iter(arrays.values())))
        block = np.zeros((rows, width), np.float32)
        for place, column in zip(self.places, self.all, strict=True):
            block[:, place] = column.take(arrays[column.name], first)
        return block

    def finish(self, *, checked: bool) -> list[str]:
        """The notes on the columns; raises for what was wrong with them. Numbers only where they are checked."""
        for column in self.category:
            column.check()
        if not checked:
            return []
        return [note for note in (column.note() for column in self.real) if note]

    def dictionaries(self) -> dict[str, tuple[str, ...]]:
        return {column.name: column.values for column in self.category}

    def missing(self) -> dict[str, Rows]:
        return {column.name: column.missing for column in self.real}


class _Static:
    """The static columns: the first value of each series, NaN for none, and the rows that have another one."""

    def __init__(self, columns: _Columns, keys: Keys) -> None:
        self.columns, self.keys = columns, keys
        self.values = np.full((len(keys.series_ids), columns.width), np.nan, np.float32)
        self._changed = [Rows() for _ in columns.names]
        self._null: dict[int, np.float32] = {}  # place of a category column that a file lacks to the code of a null

    def take(self, arrays: dict[str, pa.Array], first: int, series: npt.NDArray[np.int32]) -> None:
        """Note a block."""
        if not self.columns.names:
            return
        block = self.columns.take(arrays, first, self.columns.width)
        for place, column in zip(self.columns.places[len(self.columns.real) :], self.columns.category, strict=True):
            if pa.types.is_null(arrays[column.name].type):  # another file may tell the value
                self._null[place] = block[0, place]
                block[:, place] = np.nan
        for place, changed in zip(self.columns.places, self._changed, strict=True):
            there = np.flatnonzero(~np.isnan(block[:, place]))
            value, owner, known = block[there, place], series[there], self.values[:, place]
            new, at = np.unique(owner, return_index=True)  # at: the first row of each
            known[new] = np.where(np.isnan(known[new]), value[at], known[new])
            changed.add(there[value != known[owner]] + first)

    def check(self, source: Source, schema: Schema) -> None:
        """Refuse a column that changes within a series; a category that no file tells is a null."""
        for place, code in self._null.items():
            column = self.values[:, place]
            column[np.isnan(column)] = code
        for name, rows in zip(self.columns.names, self._changed, strict=True):
            if rows.count:
                series = self.keys.series_ids[int(self.keys.series[rows.first[0]])]
                raise DataError(
                    f"static column '{name}' changes within {name_series(schema.id, series)}, in {source.locate(rows)}",
                    where=source.label,
                    allowed="one value per series",
                    next_step="List the column under observed or known, or add the column that distinguishes "
                    "the series to id.",
                )


def _place(
    values: _Floats,
    time: npt.NDArray[np.int64],
    block: _Floats,
    instants: npt.NDArray[np.int64],
    series: npt.NDArray[np.int32],
    following: npt.NDArray[np.int64],
) -> None:
    # Rows of a series go one after the other, in the order of the files; ``following`` moves on.
    order = grouped(series)
    block, instants, series = block[order], instants[order], series[order]
    begins = np.flatnonzero(np.diff(series, prepend=-1))
    lengths = np.diff(begins, append=len(series))
    places = np.arange(len(series)) - np.repeat(begins - following[series[begins]], lengths)
    following[series[begins]] += lengths
    in_order = bool((np.diff(places) == 1).all())
    target = slice(int(places[0]), int(places[-1]) + 1) if in_order else places
    values[target] = block
    time[target] = instants


def _sort(values: _Floats, time: npt.NDArray[np.int64], begin: int, end: int, storage: Storage) -> None:
    # By time within one series; a long one is sorted aside.
    order = np.argsort(time[begin:end], kind="stable")
    time[begin:end] = time[begin:end][order]
    if (end - begin) * values.shape[1] <= _BLOCK_VALUES:
        values[begin:end] = values[begin:end][order]
        return
    aside = storage.scratch("aside", (end - begin, values.shape[1]), np.float32)
    size = max(1, _BLOCK_VALUES // max(1, values.shape[1]))
    for at in range(0, len(order), size):
        aside[at : at + size] = values[begin + order[at : at + size]]
    for at in range(0, len(order), size):
        values[begin + at : min(begin + at + size, end)] = aside[at : at + size]
