"""Whether a run forecasts seasonal differences, over how many rows, and how large these usually are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qat_tft.config import DataConfig, ModelConfig
from qat_tft.errors import ConfigError
from qat_tft.evaluation.naive import season_of
from qat_tft.training.dataset import RunData

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
    panel, series = data.panel, data.panel.series_of_row
    scaling = data.preprocessing.scaling()
    scaled = scaling.scale_target(panel.target.unsqueeze(1), panel.series_code[series]).squeeze(1)
    rows = torch.nonzero(data.training_rows).squeeze(1)
    rows = rows[rows - season >= panel.series_start[series[rows]]]
    changes = (scaled[rows] - scaled[rows - season]).double()
    changes = changes[~changes.isnan()]  # of a missing target
    if not len(changes):
        return None
    return max(_SMALLEST, float(changes.square().mean().sqrt()))


def _required_spread(data: RunData, season: int) -> float:
    spread = usual_difference(data, season)
    if spread is None:
        raise ConfigError(
            f"no series has {season} training rows to difference over",
            where="model.seasonal_difference",
            next_step="Choose a shorter season, or 0 for none",
        )
    return spread
