"""What a model has to beat: the value one season ago, or the last value, with quantiles of its errors.

Legend: N windows, F horizon, Q quantiles, S series, R rows, K seasons back (1 for steps within the first season).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.data.filling import last_present
from qat_tft.data.panel import Panel
from qat_tft.data.reading.gap_search import usual_step
from qat_tft.data.time.season import season_rows

_FEWEST_ERRORS = 20
_MOST_ROWS = 2**22  # whose errors are looked at; more would change no quantile that is worth printing


def season_of(panel: Panel) -> int:
    """Return the season, in rows, that training learned; of rows that no training learned from, see `season_rows`."""
    time = panel.preparation.time
    if time is not None:
        return time.season
    instants, starts = panel.time.numpy(), panel.series_start.numpy()
    return season_rows(instants, starts, usual_step(instants, starts, panel.time_kind, panel.time_zone))


@dataclass(frozen=True)
class SeasonalNaive:
    """A fitted seasonal naive forecast; with a season of one row it repeats the last value.

    The point forecast of a step is the latest value known that lies a whole number of seasons before it; where the
    series does not reach back that far, or has no target there, its last known target; where it has none at all,
    the median of the training targets. A quantile adds that quantile of the errors which the point forecast made
    on the series' training rows; the median adds nothing.

    Attributes:
        panel: holds the values to look back at.
        season: rows of one season.
        offsets: what a quantile adds, [S, K, Q].
        center: the median of the training targets.
        latest: int64 [R], the last row of the series up to each row that has a target, -1 for none; None where
            every row has one.
    """

    panel: Panel
    season: int
    offsets: Tensor
    center: float
    latest: Tensor | None

    @classmethod
    def fit(cls, panel: Panel, ends: Tensor, *, season: int, horizon: int, levels: tuple[float, ...]) -> SeasonalNaive:
        """Collect the errors of the point forecast.

        Args:
            panel: all rows; a target that is not finite counts as missing.
            ends: int64 [S], the row after the last training row of each series.
            season: rows of one season.
            horizon: steps to forecast.
            levels: quantiles, ascending.
        """
        back = -(-horizon // season)
        rows = _sample(panel, ends)
        offsets = torch.stack([_offsets(panel, rows, k * season, levels) for k in range(1, back + 1)], dim=1)
        sampled = panel.target[rows]
        center = sampled[sampled.isfinite()].nanmedian().nan_to_num(0.0)
        missing = panel.target.isfinite().logical_not().numpy()
        latest = torch.from_numpy(last_present(missing, panel.series_start.numpy())) if missing.any() else None
        return cls(panel, season, offsets, float(center), latest)

    def forecast(self, first_rows: Tensor, horizon: int) -> Tensor:
        """Return quantiles [N, F, Q] for windows whose targets begin at `first_rows`, int64 [N]."""
        steps = torch.arange(horizon)
        back = steps // self.season + 1  # [F]
        source = first_rows[:, None] + steps - back * self.season  # [N, F]
        series = self.panel.series_at(first_rows)
        begin = self.panel.series_start[series][:, None]
        point = torch.where(source >= begin, self.panel.target[source.clamp(min=0)], torch.nan)
        point = torch.where(~torch.isfinite(point), self._last_known(first_rows - 1, begin.squeeze(1))[:, None], point)
        return point[..., None] + self.offsets[series][:, back - 1]  # [N, F, Q]

    def _last_known(self, origins: Tensor, begin: Tensor) -> Tensor:
        """Return [N], the last target up to each origin; `begin` holds the first rows of the series."""
        inside = origins >= begin
        rows = origins.clamp(min=0)
        if self.latest is not None:
            rows = self.latest[rows]
            inside &= rows >= 0
        return torch.where(inside, self.panel.target[rows.clamp(min=0)], self.center)


def in_sample_error(panel: Panel, ends: Tensor, season: int) -> Tensor:
    """Return the mean absolute error of the seasonal naive forecast on each series' rows before `ends`, float64 [S].

    NaN where a series has no two training targets a season apart. It is what the mean absolute scaled error is
    scaled by: Hyndman and Koehler (2006), "Another look at measures of forecast accuracy", International Journal
    of Forecasting 22, with the season in place of their one step.
    """
    total = torch.zeros(len(panel.series_ids), dtype=torch.float64)
    count = torch.zeros_like(total)
    for rows in panel.blocks_before(ends):
        errors, series = _errors(panel, rows, season)
        total.index_add_(0, series, errors.abs().double())
        count.index_add_(0, series, torch.ones(len(series), dtype=torch.float64))
    return total / count  # 0 / 0 is NaN


def _offsets(panel: Panel, rows: Tensor, lag: int, levels: tuple[float, ...]) -> Tensor:
    """Return [S, Q]; a series with too few errors of its own takes those of all series."""
    errors, series = (values.numpy() for values in _errors(panel, rows, lag))
    count = len(panel.series_ids)
    pooled = _quantiles(errors, np.zeros_like(series), 1, levels)  # [1, Q]
    own = _quantiles(errors, series, count, levels)
    enough = np.bincount(series, minlength=count) >= _FEWEST_ERRORS
    return torch.from_numpy(_held(np.where(enough[:, None], own, pooled), levels)).float()


def _errors(panel: Panel, rows: Tensor, lag: int) -> tuple[Tensor, Tensor]:
    """Return the change of the target over `lag` rows at those of `rows` that have both, and their series."""
    series = panel.series_at(rows)
    inside = rows - lag >= panel.series_start[series]
    rows, series = rows[inside], series[inside]
    errors = panel.target[rows] - panel.target[rows - lag]
    known = torch.isfinite(errors)
    return errors[known], series[known]


def _quantiles(
    values: npt.NDArray[np.float32], owner: npt.NDArray[np.int64], owners: int, levels: tuple[float, ...]
) -> npt.NDArray[np.float64]:
    """Return [owners, Q], quantiles with linear interpolation of the values of each owner; 0 for one without."""
    ordered = np.append(values[np.lexsort((values, owner))].astype(np.float64), 0.0)
    counts = np.bincount(owner, minlength=owners)
    starts = np.cumsum(counts) - counts
    place = np.maximum(counts - 1, 0)[:, None] * np.asarray(levels)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(counts - 1, 0)[:, None])
    first, second = ordered[starts[:, None] + low], ordered[starts[:, None] + high]
    return np.where(counts[:, None] > 0, first + (second - first) * (place - low), 0.0)


def _held(quantiles: npt.NDArray[np.float64], levels: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Hold the quantiles of the errors to the side of zero that their level is on."""
    side = np.sign(np.asarray(levels) - 0.5)
    return np.where(side * quantiles > 0, quantiles, 0.0)


def _sample(panel: Panel, ends: Tensor) -> Tensor:
    """Return all rows before `ends`, or an even share of them."""
    count = int((ends - panel.series_start[:-1]).clamp(min=0).sum())
    every = max(1, -(-count // _MOST_ROWS))
    blocks = [rows[::every] for rows in panel.blocks_before(ends)]
    return torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.int64)
