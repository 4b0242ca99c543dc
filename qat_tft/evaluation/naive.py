"""The seasonal naive forecast, what a model has to beat: the value one season ago, with quantiles of its errors.

Legend: N windows, F horizon, Q quantiles, S series, K seasons back (1 for steps within the first season).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from qat_tft.data.panel import Panel, TimeKind

DAY = timedelta(days=1) // timedelta(microseconds=1) * 1000
"""Nanoseconds of a day."""
_FEWEST_ERRORS = 20
_WORKED_WEEKENDS = 0.1
_BY_DAYS = ((6, 8, 52), (28, 31.5, 12), (89, 93, 4), (360, 370, 1))


def season_of(panel: Panel) -> int:
    """Return the season, in rows, that the usual time step suggests.

    Hours and parts of them: a day (an hour where series are shorter than two days). Days: a week, or 5 where
    hardly any row falls on a weekend. Weeks, months, quarters: a year. Whole-number steps and everything else:
    1, which makes the forecast the last value.
    """
    if panel.time_kind is TimeKind.STEP:
        return 1
    gaps = panel.time.diff()
    gaps = gaps[panel.series_of_row[1:] == panel.series_of_row[:-1]]
    if not len(gaps):
        return 1
    step = int(gaps.median())
    if step < DAY:
        a_day = max(1, round(DAY / step))
        longest = int(panel.lengths.max())
        return a_day if longest >= 2 * a_day or a_day < 24 else max(1, round(a_day / 24))
    days = step / DAY
    if days < 4:
        weekday = (panel.time // DAY + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0
        return 7 if float((weekday >= 5).double().mean()) > _WORKED_WEEKENDS else 5
    return next((season for low, high, season in _BY_DAYS if low <= days <= high), 1)


@dataclass(frozen=True)
class SeasonalNaive:
    """A fitted seasonal naive forecast.

    The point forecast of a step is the latest value known that lies a whole number of seasons before it; where a
    series does not reach back that far, its last known value. A quantile adds that quantile of the errors which
    the point forecast made on the series' training rows; the median adds nothing.

    Attributes:
        panel: holds the values to look back at.
        season: rows of one season.
        offsets: what a quantile adds, [S, K, Q].
    """

    panel: Panel
    season: int
    offsets: Tensor

    @classmethod
    def fit(
        cls, panel: Panel, training: Tensor, *, season: int, horizon: int, levels: tuple[float, ...]
    ) -> SeasonalNaive:
        """Collect the errors of the point forecast.

        Args:
            panel: all rows.
            training: bool [rows], true for training rows.
            season: rows of one season.
            horizon: steps to forecast.
            levels: quantiles, ascending.
        """
        back = -(-horizon // season)
        offsets = torch.stack([_offsets(panel, training, k * season, levels) for k in range(1, back + 1)], dim=1)
        return cls(panel, season, offsets)

    def forecast(self, first_rows: Tensor, horizon: int) -> Tensor:
        """Return quantiles [N, F, Q] for windows whose targets begin at `first_rows`, int64 [N]."""
        steps = torch.arange(horizon)
        back = steps // self.season + 1  # [F]
        source = first_rows[:, None] + steps - back * self.season  # [N, F]
        series = self._series(first_rows)
        reachable = source >= self.panel.series_start[series][:, None]
        source = torch.where(reachable, source, first_rows[:, None] - 1)
        point = self.panel.target[source]
        return point[..., None] + self.offsets[series][:, back - 1]  # [N, F, Q]

    def _series(self, rows: Tensor) -> Tensor:
        return torch.searchsorted(self.panel.series_start, rows.contiguous(), right=True) - 1


def _offsets(panel: Panel, training: Tensor, lag: int, levels: tuple[float, ...]) -> Tensor:
    """Return [S, Q]; a series with too few errors of its own takes those of all series."""
    series = panel.series_of_row
    rows = torch.arange(panel.rows)
    usable = training & (rows - lag >= panel.series_start[series])
    rows = rows[usable]
    errors = panel.target[rows] - panel.target[rows - lag]
    owner = series[rows]
    pooled = _signed_quantiles(errors, levels)
    counts = torch.bincount(owner, minlength=len(panel.series_ids))
    own = errors.split(counts.tolist())
    return torch.stack([_signed_quantiles(e, levels) if len(e) >= _FEWEST_ERRORS else pooled for e in own])


def _signed_quantiles(errors: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return [Q]: quantiles of the errors, held to the side of zero that the level is on."""
    if not len(errors):
        return torch.zeros(len(levels))
    # torch.quantile refuses more than 2**24 values
    sample = errors if len(errors) <= 2**24 else errors[:: len(errors) // 2**24 + 1]
    values = torch.quantile(sample.double(), torch.tensor(levels, dtype=torch.float64))
    side = torch.tensor([(level > 0.5) - (level < 0.5) for level in levels], dtype=torch.float64)
    held = torch.where(side > 0, values.clamp(min=0), torch.where(side < 0, values.clamp(max=0), 0.0))
    return held.to(torch.float32)
