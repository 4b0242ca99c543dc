"""Rows of a set and the windows in them, in numpy. Read in every side's environment: it needs pyarrow beside.

R rows, S series, N windows, F horizon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from sides.forecast_sets import CALENDAR, ForecastSet

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

TRAINING, VALIDATION, TEST, UNUSED = range(4)
MOST_VALIDATED = 640
"""Windows that a model's checkpoints are chosen by, evenly spaced over the validation part."""


@dataclass(frozen=True)
class Rows:
    """The rows of a set in the order of series and time.

    Attributes:
        of: the set.
        starts: first row of each series, and the number of rows, [S + 1].
        part: `TRAINING`, `VALIDATION`, `TEST` or `UNUSED`, [R].
        time: datetime64, without a zone, [R].
        columns: the set's columns by name, [R]; categories are strings, everything else float32, cycles and calendar
            features on a circle, as NAME_sin and NAME_cos.
        known: names of the known real ones, those on a circle among them.
    """

    of: ForecastSet
    starts: Ints
    part: Ints
    time: Column
    columns: dict[str, Column]
    known: tuple[str, ...]

    @property
    def target(self) -> Column:
        """What is forecast, [R]."""
        return self.columns[self.of.target]

    @property
    def series(self) -> Ints:
        """Number of each row's series, [R]."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def step(self) -> Ints:
        """Number of each row in its series, [R]."""
        return np.arange(len(self.time)) - self.starts[self.series]

    def windows(self, part: int) -> Ints:
        """Return the first target row of every window whose targets lie in a part, [N].

        A history may reach back into earlier parts, unless the set asks for test windows that lie wholly inside.
        """
        first = np.arange(len(self.part))
        last = first + self.of.horizon - 1
        series = self.series
        at = np.minimum(last, len(first) - 1)
        whole = (last < len(first)) & (series[at] == series) & (self.part == part) & (self.part[at] == part)
        origin = first - self.of.history
        begin = self.starts[series]
        if part == TEST and self.of.inside:
            begin = begin + np.bincount(series, self.part < TEST).astype(np.int64)[series]
        return first[whole & (origin >= begin)]

    @property
    def scored(self) -> Ints:
        """The first target row of each test window that is scored, [N]."""
        return self.windows(TEST)

    @property
    def validated(self) -> Ints:
        """The first target row of each validation window that checkpoints are chosen by, [N]."""
        return evenly(self.windows(VALIDATION), MOST_VALIDATED)

    def actual(self, windows: Ints) -> npt.NDArray[np.float64]:
        """Return the targets of windows, [N, F]."""
        return self.target[windows[:, None] + np.arange(self.of.horizon)].astype(np.float64)

    def one_hot(self, name: str) -> dict[str, Column]:
        """Return a category as columns of 0 and 1 by name, one for each value in it."""
        values = self.columns[name]
        return {f"{name}_{one}": (values == one).astype(np.float32) for one in np.unique(values)}

    def each_series(self) -> Iterator[slice]:
        """Yield where each series stands."""
        for first, last in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield slice(int(first), int(last))


def evenly(windows: Ints, most: int) -> Ints:
    """Return windows at even distances, no more than so many."""
    return windows[:: max(1, -(-len(windows) // most))]


def read_rows(one: ForecastSet, folder: Path) -> Rows:
    """Read a set from its file in a folder."""
    table = pq.read_table(folder / f"{one.name}.parquet")
    raw: dict[str, Column] = {name: np.asarray(table[name].to_pylist()) for name in _names(one) - {one.time}}
    time = table[one.time].cast("int64").to_numpy().astype("datetime64[us]")
    ids = np.stack([raw[name].astype(str) for name in one.series])
    order = np.lexsort((time, *ids[::-1]))
    time, ids = time[order], ids[:, order]
    new = np.concatenate([[True], (ids[:, 1:] != ids[:, :-1]).any(0)])
    columns = {name: _plain(one, name, values[order]) for name, values in raw.items() if name not in one.known_cycles}
    circles = _circles(one, {name: raw[name][order] for name in one.known_cycles}, time)
    return Rows(
        of=one,
        starts=np.append(np.flatnonzero(new), len(time)),
        part=_part(one, time),
        time=time,
        columns={**columns, **circles},
        known=(*one.known_reals, *circles),
    )


def _names(one: ForecastSet) -> set[str]:
    lists = (one.series, one.static_categories, one.static_reals, one.observed, one.known_reals, one.known_categories)
    return {one.time, one.target, *one.known_cycles, *(name for names in lists for name in names)}


def _plain(one: ForecastSet, name: str, values: Column) -> Column:
    category = name in (*one.series, *one.static_categories, *one.known_categories)
    return values.astype(str) if category else values.astype(np.float32)


def _part(one: ForecastSet, time: Column) -> Ints:
    cuts = [cut for cut in (one.validation_from, one.test_from, one.test_until) if cut is not None]
    return np.searchsorted(np.array(cuts, dtype="datetime64[us]"), time, side="right").astype(np.int64)


def _circles(one: ForecastSet, cycles: dict[str, Column], time: Column) -> dict[str, Column]:
    """Return sine and cosine of every place in a cycle."""
    places = {name: (cycles[name] - first, length) for name, (first, length) in one.known_cycles.items()}
    places |= {f"calendar_{name}": (_calendar(name, time), CALENDAR[name]) for name in one.calendar}
    return {
        f"{name}_{wave.__name__}": wave(2 * np.pi * place / length).astype(np.float32)
        for name, (place, length) in places.items()
        for wave in (np.sin, np.cos)
    }


def _calendar(name: str, time: Column) -> Ints:
    """Return the place of each time in its day, week or year, from 0."""
    units = {"hour": ("h", 24, 0), "day_of_week": ("D", 7, 3), "month": ("M", 12, 0)}  # 1970-01-01 was a Thursday
    unit, length, shift = units[name]
    return (time.astype(f"datetime64[{unit}]").astype(np.int64) + shift) % length
