"""How good forecasts are, in numpy and the same for every model. N windows, F horizon, Q quantiles, S series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sides.forecast_rows import TRAINING, Rows
from sides.forecast_sets import QUANTILES

Floats = npt.NDArray[np.float64]

LEVELS = tuple(map(str, QUANTILES))


@dataclass(frozen=True)
class Score:
    """How good one model's forecasts of a set's test windows are.

    Attributes:
        q_risk: quantile to twice the summed quantile loss over the summed absolute target.
        coverage: quantile to the share of targets that do not lie above it.
        mae: mean absolute error of the median.
        mase: the same, each error divided by the seasonal naive one on its series' training rows; series that never
            change there are left out.
        windows: how many there are.
    """

    q_risk: dict[str, float]
    coverage: dict[str, float]
    mae: float
    mase: float
    windows: int

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Score:
        """Return what `dataclasses.asdict` made plain; other keys are left out."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})

    @property
    def risk(self) -> float:
        """Mean q-risk over the quantiles."""
        return float(np.mean(list(self.q_risk.values())))


def score(rows: Rows, quantiles: npt.NDArray[Any]) -> Score:
    """Score forecasts [N, F, Q] of the windows that are scored; quantiles that cross are put in order first.

    Raises:
        ValueError: the forecasts are not as many, or not all of them are finite.
    """
    actual, ordered = rows.actual(rows.scored), np.sort(quantiles.astype(np.float64), axis=-1)
    if ordered.shape != (*actual.shape, len(QUANTILES)) or not np.isfinite(ordered).all():
        raise ValueError(f"forecasts of shape {ordered.shape}, or not finite, for targets of shape {actual.shape}")
    error = actual[..., None] - ordered  # [N, F, Q]
    loss = np.maximum(np.array(QUANTILES) * error, (np.array(QUANTILES) - 1) * error)
    median = np.abs(error[..., QUANTILES.index(0.5)])  # [N, F]
    scale = naive_errors(rows)[rows.series[rows.scored]]
    scalable = scale > 0
    return Score(
        q_risk=_by_level(2 * loss.sum((0, 1)) / np.abs(actual).sum()),
        coverage=_by_level((error <= 0).mean((0, 1))),
        mae=float(median.mean()),
        mase=float((median[scalable] / scale[scalable, None]).mean()),
        windows=len(actual),
    )


def naive_errors(rows: Rows) -> Floats:
    """Return the mean absolute change of each series' training target over a season, [S]."""
    season = rows.of.season
    target = rows.target.astype(np.float64)
    training = [target[where][rows.part[where] == TRAINING] for where in rows.each_series()]
    return np.array([np.abs(values[season:] - values[:-season]).mean() for values in training])


def _by_level(values: Floats) -> dict[str, float]:
    return dict(zip(LEVELS, values.tolist(), strict=True))
