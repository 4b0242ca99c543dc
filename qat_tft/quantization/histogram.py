"""What calibration can collect of activations beside their average extremes: extremes of all batches, and histograms.

Legend: R ranges (one per tensor, or one per variable), C ranges of one chunk, K bins, n values of one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qat_tft import ranks
from qat_tft.quantization.ranges import scale_and_zero_point
from qat_tft.quantization.scheme import IntegerRange

BINS = 2048
KEPT = 0.9999
"""Share of the values that the percentile range holds; what it leaves out is split evenly over both ends."""
_CANDIDATES = 100


class Extremes:
    """The lowest and highest value of all batches.

    Args:
        ranges: R.
    """

    def __init__(self, ranges: int) -> None:
        self.low, self.high = torch.zeros(ranges), torch.zeros(ranges)

    def add(self, x: Tensor, part: slice) -> None:
        """Take in values [C, n] of the ranges in `part`."""
        self.low, self.high = self.low.to(x.device), self.high.to(x.device)
        low, high = torch.aminmax(x, dim=1)
        ranks.widen(low, high)
        self.low[part] = torch.minimum(self.low[part], low)
        self.high[part] = torch.maximum(self.high[part], high)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest value of each range, widened to hold zero, each [R]."""
        return self.low, self.high


class Histogram:
    """Counts of values per range, on a grid that begins at zero and whose width is a power of two.

    Bin k of a range counts what lies from `(first + k) * width` up to one width more. Where a value falls outside, the
    width is doubled until it fits: pairs of bins become one, so every count stays that of its bin's values. Between
    about half of the bins and all of them lie within the extremes.

    Args:
        ranges: R.
        bins: K.
    """

    def __init__(self, ranges: int, bins: int = BINS) -> None:
        self.extremes = Extremes(ranges)
        self.counts = torch.zeros(ranges, bins, dtype=torch.int64)
        self.exponent = torch.full((ranges,), -126, dtype=torch.int64)  # of the width: that of the smallest number
        self.first = torch.zeros(ranges, dtype=torch.int64)

    def add(self, x: Tensor, part: slice) -> None:
        """Take in finite values [C, n] of the ranges in `part`."""
        for name in ("counts", "exponent", "first"):
            setattr(self, name, getattr(self, name).to(x.device))
        self.extremes.add(x, part)
        self._fit(part)
        bins = self.counts.shape[1]
        places = _grid(x, self.exponent[part].unsqueeze(1)) - self.first[part].unsqueeze(1)  # [C, n]
        rows = torch.arange(len(x), device=x.device).unsqueeze(1) * bins
        self.counts[part] += torch.bincount((places + rows).flatten(), minlength=len(x) * bins).view(len(x), bins)

    def edges(self) -> Tensor:
        """Return where each bin begins and, at the end, the last one ends: [R, K + 1], in double precision."""
        steps = torch.arange(self.counts.shape[1] + 1, device=self.counts.device)
        return torch.ldexp((self.first.unsqueeze(1) + steps).double(), self.exponent.unsqueeze(1))

    def totals(self) -> Tensor:
        """Return the counts [R, K]; under data parallelism those of all ranks, whose grids are the same."""
        counts = self.counts.clone()
        ranks.add(counts)
        return counts

    def _fit(self, part: slice) -> None:
        """Widen the bins of a part until they reach from its lowest to its highest value."""
        bins = self.counts.shape[1]
        low, high = self.extremes.low[part], self.extremes.high[part]
        needed = torch.frexp((high - low) / (bins - 2)).exponent.long()  # a width above the quotient: two bins to spare
        exponent = torch.maximum(self.exponent[part], needed)
        first = _grid(low, exponent)
        places = self.first[part].unsqueeze(1) + torch.arange(bins, device=first.device)  # [C, K]
        places = (places >> (exponent - self.exponent[part]).clamp_max(62).unsqueeze(1)) - first.unsqueeze(1)
        merged = torch.zeros_like(self.counts[part])
        self.counts[part] = merged.scatter_add(1, places.clamp(0, bins - 1), self.counts[part])  # those cut are empty
        self.exponent[part], self.first[part] = exponent, first


class PercentileBounds(Histogram):
    """The range that holds the middle `KEPT` of the values, to the width of a bin."""

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper end of each range, each [R]."""
        sums = self.totals().cumsum(1)
        shares, tail = sums / sums[:, -1:].clamp_min(1), (1 - KEPT) / 2
        lowest = (shares < tail).sum(1, keepdim=True)
        highest = (shares < 1 - tail).sum(1, keepdim=True) + 1
        edges, last = self.edges(), self.counts.shape[1]
        low, high = (edges.gather(1, places.clamp_max(last)).squeeze(1).float() for places in (lowest, highest))
        return torch.maximum(low, self.extremes.low), torch.minimum(high, self.extremes.high)


class SmallestErrorBounds(Histogram):
    """The range whose rounding and saturation together have the smallest mean squared error.

    First both ends are drawn in together, in steps of a hundredth, then the upper one alone, then the lower one. A
    value inside counts with the error of even rounding, a twelfth of the squared scale, and one outside with its
    squared distance.

    Args:
        ranges: R.
        codes: the integers that the range will be spread over.
        bins: K.
    """

    def __init__(self, ranges: int, codes: IntegerRange, bins: int = BINS) -> None:
        super().__init__(ranges, bins)
        self.codes = codes

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper end of each range, each [R]."""
        edges, counts = self.edges(), self.totals().double()
        centers = ((edges[:, :-1] + edges[:, 1:]) / 2).float()
        low, high = self.extremes.low, self.extremes.high
        shares = [step / _CANDIDATES for step in range(_CANDIDATES, 0, -1)]
        low, high = self._best([(low * share, high * share) for share in shares], centers, counts)
        low, high = self._best([(low, high * share) for share in shares], centers, counts)
        return self._best([(low * share, high) for share in shares], centers, counts)

    def _best(self, candidates: list[tuple[Tensor, Tensor]], centers: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        errors = torch.stack([self._error(low, high, centers, counts) for low, high in candidates])  # [candidates, R]
        best = errors.argmin(0, keepdim=True)
        lows, highs = (torch.stack(bounds) for bounds in zip(*candidates, strict=True))
        return lows.gather(0, best).squeeze(0), highs.gather(0, best).squeeze(0)

    def _error(self, low: Tensor, high: Tensor, centers: Tensor, counts: Tensor) -> Tensor:
        scale, zero_point = (values.unsqueeze(1) for values in scale_and_zero_point(low, high, self.codes))
        bottom, top = (self.codes.low - zero_point) * scale, (self.codes.high - zero_point) * scale
        outside = centers - centers.clamp(bottom, top)
        error = torch.where(outside == 0, scale.square() / 12, outside.square())  # [R, K]
        return (error.double() * counts).sum(1)


def _grid(x: Tensor, exponent: Tensor) -> Tensor:
    """Return `floor(x / 2 ** exponent)` as int64; the division is exact."""
    return torch.ldexp(x.double(), -exponent).floor().long()
