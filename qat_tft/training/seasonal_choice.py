"""Whether a run forecasts seasonal differences, over how many rows, and how large these usually are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qat_tft.config.data import DataConfig
from qat_tft.config.model import ModelConfig
from qat_tft.errors import ConfigError
from qat_tft.evaluation.naive import season_of
from qat_tft.runs.data import RunData

STRONG = 0.5
"""Differences smaller than this, in standard deviations of the target, leave under a quarter of its variance."""
_SMALLEST = 1e-4


@dataclass(frozen=True)
class Difference:
    """Seasonal differencing of the target: rows of a season, 0 for none, and the usual size of a difference."""

    season: int
    spread: float = 1.0

    def sentence(self) -> str:
        """Say what is done, for the user."""
        if not self.season:
            return ""
        rows = f"a season of {self.season} rows" if self.season > 1 else "one row"
        return (
            f"The target changes by {self.spread:.3g} standard deviations over {rows}: "
            f"the model forecasts that change (model.seasonal_difference = {self.season})"
        )


def difference_for(data: RunData, config: DataConfig, model: ModelConfig) -> Difference:
    """Return the differencing that the configuration names or, where it leaves it open, the data call for.

    Open means: difference over the season of the naive forecast, if the history holds two of them, the shortest
    padded one at least one, and the training rows' differences are small against the target's deviation.

    Raises:
        ConfigError: the training rows of every series are shorter than the season.
    """
    if model.seasonal_difference is not None:
        season = model.seasonal_difference
        return Difference(season, _required_spread(data, season)) if season else Difference(0)
    season = config.season or season_of(data.panel)
    if model.history < 2 * season or (config.min_history or season) < season:
        return Difference(0)
    spread = usual_difference(data, season)
    return Difference(season, spread) if spread is not None and spread < STRONG else Difference(0)


def usual_difference(data: RunData, season: int) -> float | None:
    """Return the root mean square of the scaled target's differences over a season, from training rows alone.

    None where no series has that many training rows.
    """
    panel, scaling = data.panel, data.preprocessing.scaling()
    total, count = 0.0, 0
    for rows in panel.blocks_before(data.training_ends):
        series = panel.series_at(rows)
        inside = rows - season >= panel.series_start[series]
        rows, codes = rows[inside], panel.series_code[series[inside]]
        now, before = (scaling.scale_target(panel.target[at].unsqueeze(1), codes) for at in (rows, rows - season))
        changes = (now - before).double()
        changes = changes[~changes.isnan()]  # of a missing target
        total, count = total + float(changes.square().sum()), count + len(changes)
    return max(_SMALLEST, math.sqrt(total / count)) if count else None


def _required_spread(data: RunData, season: int) -> float:
    spread = usual_difference(data, season)
    if spread is None:
        raise ConfigError(
            f"no series has {season} training rows to compute the difference over",
            where="model.seasonal_difference",
            next_step="Choose a shorter season, or 0 for none",
        )
    return spread
