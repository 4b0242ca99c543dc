"""Mean and deviation of every column over training rows, in one pass and in blocks of bounded size.

S series, V columns, n rows of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qat_tft.data.panel import Panel

BLOCK_VALUES = 2**20
"""Most values that a block of a pass holds: 8 MiB in float64."""

_FEW_RUNS = 32

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of some columns in each series; missing values count nowhere.

    Attributes:
        count: int64 [S, V], values that are there.
        mean: float64 [S, V]; 0 where there is none.
        squares: float64 [S, V], sum of the squared deviations from that mean.
    """

    count: _Ints
    mean: _Floats
    squares: _Floats

    @classmethod
    def zeros(cls, series: int, columns: int) -> "Moments":
        """Those of no rows."""
        shape = (series, columns)
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    @property
    def deviation(self) -> _Floats:
        """Standard deviation, float64 [S, V]; 0 where no value is there."""
        return np.asarray(np.sqrt(self.squares / np.maximum(self.count, 1)))

    def over_all(self) -> "Moments":
        """Those of all series together, [1, V]."""
        count = self.count.sum(axis=0, keepdims=True)
        mean = (self.count * self.mean).sum(axis=0, keepdims=True) / np.maximum(count, 1)
        between = (self.count * (self.mean - mean) ** 2).sum(axis=0, keepdims=True)
        return Moments(count, mean, self.squares.sum(axis=0, keepdims=True) + between)

    def add(self, series: _Ints, values: _Floats) -> None:
        """Take in a block in place.

        Args:
            series: int64 [n], ascending.
            values: float64 [n, V], NaN where a value is missing.
        """
        if not len(series):
            return
        begins = np.flatnonzero(np.diff(series, prepend=-1))
        lengths = np.diff(begins, append=len(series))
        there = ~np.isnan(values)
        count = np.repeat(lengths[:, None], values.shape[1], axis=1)
        if not there.all():
            values = np.where(there, values, 0.0)
            count = _sums(there.astype(np.int64), begins)
        mean = _sums(values, begins) / np.maximum(count, 1)
        apart = values - (mean if len(begins) == 1 else np.repeat(mean, lengths, axis=0))
        apart *= apart
        apart[~there] = 0.0
        self._merge(series[begins], count, mean, _sums(apart, begins))

    def _merge(self, series: _Ints, count: _Ints, mean: _Floats, squares: _Floats) -> None:
        # Chan, Golub and LeVeque (1983): moments of two samples from those of each, without cancellation.
        before = self.count[series]
        both = np.maximum(before + count, 1)
        shift = mean - self.mean[series]
        self.count[series] += count
        self.mean[series] += shift * count / both
        self.squares[series] += squares + shift**2 * before * count / both


def _sums(values: npt.NDArray[Any], begins: _Ints) -> npt.NDArray[Any]:
    """Sums over runs of rows, [runs, V]."""
    if len(begins) > _FEW_RUNS:
        return np.asarray(np.add.reduceat(values, begins))
    return np.stack([run.sum(axis=0) for run in np.split(values, begins[1:])])  # several times as fast for long runs


def training_blocks(panel: Panel, ends: torch.Tensor) -> Iterator[tuple[_Ints, npt.NDArray[np.float32]]]:
    """The training rows, a block at a time: series, int64 [n], and raw values, float32 [n, Vh].

    Args:
        panel: all rows.
        ends: int64 [S], the row after the last training row of each series.
    """
    for rows in panel.blocks_before(ends):
        yield panel.series_at(rows).numpy(), panel.values[rows].numpy()
