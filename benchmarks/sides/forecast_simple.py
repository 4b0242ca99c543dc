"""Forecasts that a model has to beat, in plain numpy: the value a season ago, and ridge regression on the target.

N windows, T history, F horizon, Q quantiles, S series.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sides.forecast_rows import TRAINING, VALIDATION, Ints, Rows
from sides.forecast_sets import QUANTILES

Floats = npt.NDArray[np.float64]

LAST_VALUE, SEASONAL, RIDGE = "last_value", "seasonal_naive", "ridge"
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
FLOOR = 0.05
"""What the deviation of a window is not let below, in deviations of the training targets."""


def simple_forecasts(rows: Rows) -> dict[str, Floats]:
    """Return quantiles [N, F, Q] of the windows that are scored, by the name of the forecast."""
    return {LAST_VALUE: naive(rows, 1), SEASONAL: naive(rows, rows.of.season), RIDGE: ridge(rows)}


def naive(rows: Rows, season: int) -> Floats:
    """Return the latest value a whole number of seasons before each step, with quantiles of its training errors.

    The errors are those of the same series; the median adds nothing.
    """
    target, windows = rows.target.astype(np.float64), rows.scored
    steps = np.arange(rows.of.horizon)
    back = (steps // season + 1) * season  # [F]
    point = target[windows[:, None] + steps - back]  # [N, F]
    offsets = np.stack([_error_quantiles(rows, lag) for lag in np.unique(back)], axis=1)  # [S, seasons, Q]
    return point[..., None] + offsets[rows.series[windows]][:, steps // season]


def _error_quantiles(rows: Rows, lag: int) -> Floats:
    """Return quantiles of the change over so many rows of each series' training target, [S, Q]."""
    target = rows.target.astype(np.float64)
    training = [target[where][rows.part[where] == TRAINING] for where in rows.each_series()]
    found = np.stack([np.quantile(values[lag:] - values[:-lag], QUANTILES) for values in training])
    found[:, QUANTILES.index(0.5)] = 0.0
    return found


class Histories(NamedTuple):
    """Histories of windows on their own scale: values [N, T] with a one beside, mean [N, 1] and deviation [N, 1]."""

    values: Floats
    mean: Floats
    deviation: Floats


def ridge(rows: Rows) -> Floats:
    """Return a linear forecast of every step from the normalized history alone.

    Errors count in units of the target and not of the window. The strength of the penalty is the one with the lowest
    absolute error on the validation windows; quantiles add those of the training residuals, step by step.
    """
    training, validation = rows.windows(TRAINING), rows.windows(VALIDATION)
    known, checked = histories(rows, training), histories(rows, validation)
    wanted = (rows.actual(training) - known.mean) / known.deviation
    fits = [fitted(known, wanted, strength) for strength in STRENGTHS]
    best = min(fits, key=lambda weights: np.abs(unscaled(checked, weights) - rows.actual(validation)).mean())
    offsets = np.quantile(wanted - known.values @ best, QUANTILES, axis=0)  # [Q, F]
    scored = histories(rows, rows.scored)
    point = unscaled(scored, best)
    return point[..., None] + offsets.T * scored.deviation[..., None]


def histories(rows: Rows, windows: Ints) -> Histories:
    """Return the histories of windows by their first target rows."""
    values = rows.target[windows[:, None] + np.arange(-rows.of.history, 0)].astype(np.float64)
    floor = FLOOR * rows.target[rows.part == TRAINING].astype(np.float64).std()
    mean = values.mean(1, keepdims=True)
    deviation = np.sqrt(values.var(1, keepdims=True) + floor**2)
    ones = np.ones((len(values), 1))
    return Histories(np.hstack([(values - mean) / deviation, ones]), mean, deviation)


def fitted(known: Histories, wanted: Floats, strength: float) -> Floats:
    """Return weights [T + 1, F] of the least squares with a penalty on all but the constant."""
    scale = float(np.mean(known.deviation**2))
    weighted = known.values * (known.deviation**2 / scale)
    penalty = strength * np.diag(np.append(np.ones(known.values.shape[1] - 1), 0.0))
    return np.linalg.solve(weighted.T @ known.values + penalty, weighted.T @ wanted)


def unscaled(known: Histories, weights: Floats) -> Floats:
    """Return point forecasts [N, F] in units of the target."""
    return known.values @ weights * known.deviation + known.mean
