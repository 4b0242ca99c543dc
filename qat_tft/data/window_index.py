"""Where windows begin, kept as ranges: what it takes grows with the series and not with the rows.

G ranges, N windows asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 2**20  # windows looked at together


@dataclass(frozen=True)
class WindowIndex:
    """Windows in ranges: range g holds windows whose first rows lie ``stride`` apart, from ``first[g]`` on.

    Attributes:
        first: int64 [G], first row of the first window of each range.
        ends: int64 [G], number of windows up to and with each range; ascending.
        series: int64 [G], the series that each range belongs to.
        stride: rows from one window of a range to the next.
    """

    first: Tensor
    ends: Tensor
    series: Tensor
    stride: int = 1

    @classmethod
    def of(cls, begin: Tensor, end: Tensor, series: Tensor, stride: int = 1) -> "WindowIndex":
        """Windows that begin at ``begin``, ``begin + stride`` and so on before ``end``; both int64 [G].

        A range whose end does not lie after its begin holds none.
        """
        counts = ((end - begin + stride - 1) // stride).clamp(min=0)
        filled = counts > 0
        return cls(begin[filled], counts[filled].cumsum(0), series[filled], stride)

    def __len__(self) -> int:
        """Number of windows."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def where(self, keep: Callable[[Tensor], Tensor]) -> "WindowIndex":
        """Only the windows that ``keep`` names: it takes first rows, int64 [N], to bool [N].

        What it takes grows with the number of times that kept and dropped windows follow each other.
        """
        first, counts, series = [self.first[:0]], [self.ends[:0]], [self.series[:0]]
        for windows in torch.arange(len(self)).split(_BLOCK):
            rows = self.rows(windows)
            kept = keep(rows)
            rows, windows = rows[kept], windows[kept]
            place = self._range(windows)
            apart = (windows.diff() > 1) | (place.diff() > 0)
            begins = torch.cat([torch.zeros(min(1, len(rows)), dtype=torch.int64), torch.nonzero(apart).squeeze(1) + 1])
            first.append(rows[begins])
            counts.append(torch.cat([begins, torch.tensor([len(rows)])]).diff())
            series.append(self.series[place[begins]])
        return WindowIndex(torch.cat(first), torch.cat(counts).cumsum(0), torch.cat(series), self.stride)

    def rows(self, windows: Tensor) -> Tensor:
        """First row of each of these windows, int64 [N]."""
        place = self._range(windows)
        begun = torch.where(place > 0, self.ends[place - 1], 0)
        return self.first[place] + (windows - begun) * self.stride

    def series_of(self, windows: Tensor) -> Tensor:
        """Series of each of these windows, int64 [N]."""
        return self.series[self._range(windows)]

    def _range(self, windows: Tensor) -> Tensor:
        return torch.searchsorted(self.ends, windows.contiguous(), right=True)
