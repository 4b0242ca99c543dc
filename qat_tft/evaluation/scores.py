"""How good forecasts are: sums that grow batch by batch, for each of some cells, and the scores that follow from them.

A cell is a horizon step or a series. Legend: C cells, N targets, Q quantiles.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from qat_tft.model.loss import pinball

_COUNT, _INSIDE, _ERROR, _ABSOLUTE, _TARGET, _SCALED, _SCALABLE = range(7)
_FIXED = 7


@dataclass(frozen=True)
class Scores:
    """The scores of a forecast over some targets; None where they are not defined.

    The point forecast is the quantile nearest to the median.

    Attributes:
        targets: how many targets were scored; those that are missing count nowhere.
        q_risk: per quantile, twice the summed quantile loss over the summed absolute target (Lim et al. 2021,
            equation 26).
        coverage: per quantile, the share of targets that do not lie above it; it should be the quantile's level.
        interval: share of targets from the lowest to the highest quantile.
        mae: mean absolute error of the point forecast.
        mase: mean absolute scaled error: each error is divided by the mean absolute error that the seasonal naive
            forecast made on the training rows of its series (Hyndman and Koehler 2006). Series without such rows,
            or that never changed on them, are left out.
        bias: mean of point forecast minus target.
    """

    targets: int
    q_risk: tuple[float | None, ...]
    coverage: tuple[float | None, ...]
    interval: float | None
    mae: float | None
    mase: float | None
    bias: float | None

    def to_json(self, levels: tuple[float, ...]) -> dict[str, Any]:
        """Return plain JSON values; quantiles become keys such as "0.5"."""
        names = [str(level) for level in levels]
        by_level = {key: dict(zip(names, getattr(self, key), strict=True)) for key in ("q_risk", "coverage")}
        return {**asdict(self), **by_level}


class Tally:
    """Sums over targets, for each of a number of cells.

    Args:
        cells: how many there are.
        levels: quantiles, ascending.
    """

    def __init__(self, cells: int, levels: tuple[float, ...]) -> None:
        self.levels = levels
        self._sums = torch.zeros(cells, _FIXED + 2 * len(levels), dtype=torch.float64)

    def add(self, cell: Tensor, quantiles: Tensor, target: Tensor, scale: Tensor) -> None:
        """Count some forecasts in.

        Args:
            cell: int64 [N], the cell of each target.
            quantiles: [N, Q], raw.
            target: [N], raw; NaN where it is missing.
            scale: [N], what the error is divided by for `mase`; NaN or 0 leaves it out there.
        """
        there = ~torch.isnan(target)
        cell, quantiles, target, scale = cell[there], quantiles[there].double(), target[there].double(), scale[there]
        error = quantiles[:, nearest_to_median(self.levels)] - target
        scalable = scale > 0  # false for NaN
        fixed = [torch.zeros_like(target)] * _FIXED
        fixed[_COUNT] = torch.ones_like(target)
        fixed[_INSIDE] = (target >= quantiles[:, 0]) & (target <= quantiles[:, -1])
        fixed[_ERROR], fixed[_ABSOLUTE], fixed[_TARGET] = error, error.abs(), target.abs()
        fixed[_SCALED], fixed[_SCALABLE] = torch.where(scalable, error.abs() / scale, 0.0), scalable
        losses = pinball(quantiles.unsqueeze(1), target.unsqueeze(1), self.levels).squeeze(1)  # [N, Q]
        below = target.unsqueeze(1) <= quantiles
        self._sums.index_add_(0, cell, torch.cat([torch.stack([part.double() for part in fixed], 1), losses, below], 1))

    def scores(self) -> list[Scores]:
        """Return the scores of each cell."""
        return [_scores(row, len(self.levels)) for row in self._sums.tolist()]

    def overall(self) -> Scores:
        """Return the scores over all cells together."""
        return _scores(self._sums.sum(0).tolist(), len(self.levels))


def nearest_to_median(levels: tuple[float, ...]) -> int:
    """Return the position of the quantile nearest to the median: the point forecast."""
    return min(range(len(levels)), key=lambda place: abs(levels[place] - 0.5))


def _scores(sums: list[float], levels: int) -> Scores:
    count = sums[_COUNT]
    losses, below = sums[_FIXED : _FIXED + levels], sums[_FIXED + levels :]
    return Scores(
        targets=round(count),
        q_risk=tuple(_ratio(2 * loss, sums[_TARGET]) for loss in losses),
        coverage=tuple(_ratio(share, count) for share in below),
        interval=_ratio(sums[_INSIDE], count),
        mae=_ratio(sums[_ABSOLUTE], count),
        mase=_ratio(sums[_SCALED], sums[_SCALABLE]),
        bias=_ratio(sums[_ERROR], count),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
