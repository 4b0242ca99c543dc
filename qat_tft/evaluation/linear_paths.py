"""Linear forecasts of the normalized target: ridge regressions around simple forecasts, fitted in closed form.

Legend: N windows, T history, F horizon, Q quantiles, D = T + 1 inputs with the constant, C candidates.

A candidate is `W z + o`: z the target's history in units of its window, W [F, T], o [F, Q] the quantiles of what is
left on the training windows. W minimizes `sum over windows of scale^2 |t - W z - b|^2 + strength |W - A|^2`: errors
count in units that all windows share, and the anchor A is a simple forecast that an infinite strength leaves alone: the
mean of the window (A = 0, the usual ridge regression), its last value, or the value one season before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Windows, history_of
from qat_tft.evaluation.window_forecasts import even_indices
from qat_tft.model.frame import Frame
from qat_tft.model.loss import pinball

MEAN, LAST, SEASON = "mean", "last-value", "seasonal-naive"
"""The anchors: the window's mean, its last value, the value one season before."""

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Strengths tried, as shares of the mean diagonal of the normal equations."""
LEAST_WINDOWS = 20
"""Training windows below which nothing is fitted."""
FITTED_WINDOWS = 2**16
RESIDUAL_WINDOWS = 2**13
"""Most training windows that weights, and quantiles of what is left, are fitted to."""
_GATHERED_VALUES = 2**30
_BLOCK = 2**10


class TargetWindows(NamedTuple):
    """The target of some windows, in units of each window, in double precision."""

    history: Tensor  # [N, T]; 0 at steps that do not count
    target: Tensor  # [N, F]; NaN where it is missing
    mean: Tensor  # [N, 1], in scaled units
    scale: Tensor  # [N, 1]


@dataclass(frozen=True)
class LinearForecast:
    """One candidate.

    Attributes:
        anchor: `mean`, `last-value` or `seasonal-naive`.
        strength: of the ridge around it; infinite where the anchor itself is the forecast.
        weight: W, float64 [F, T].
        offsets: o, float64 [F, Q], ascending.
        validation_loss: mean over validation targets of the quantile losses, summed over the quantiles, in scaled
            units.
    """

    anchor: str
    strength: float
    weight: Tensor
    offsets: Tensor
    validation_loss: float

    @property
    def is_simple(self) -> bool:
        """Whether it is its anchor and nothing else, but for the quantiles."""
        return math.isinf(self.strength)

    def __call__(self, windows: TargetWindows) -> Tensor:
        """Return quantiles [N, F, Q] in scaled units."""
        return _forecast(self.weight, self.offsets, windows)


def target_windows(
    windows: Windows, indices: Tensor, scaling: Scaling, frame: Frame, size: int = _BLOCK
) -> Iterator[TargetWindows]:
    """Yield the target of windows at int64 indices, some at a time; what else they hold is not read.

    Args:
        windows: of a part.
        indices: of the windows, ascending.
        scaling: of the run, on the CPU.
        frame: normalizes.
        size: windows at a time.
    """
    panel, history = windows.panel, windows.history
    for some in indices.split(size):
        series = panel.series_code[windows.series_of(some)]
        past = history_of(panel, windows.origins(some) - history + 1, history)
        level = frame.level(scaling.scale_target(past[..., 0].double(), series), past)
        target = scaling.scale_target(panel.target[windows.target_rows(some)].double(), series)
        yield TargetWindows(level.normalized, (target - level.mean) / level.scale, level.mean, level.scale)


def fit_linear_forecasts(
    training: Windows,
    validation: Windows,
    scaling: Scaling,
    frame: Frame,
    *,
    levels: Sequence[float],
    season: int,
    validation_windows: int,
) -> list[LinearForecast]:
    """Return every candidate, with its loss on the validation part; none where there are too few training windows.

    Args:
        training: windows that are fitted to, evenly spaced where there are more than needed.
        validation: windows that candidates are compared on.
        scaling: of the run, on the CPU.
        frame: normalizes.
        levels: quantiles, ascending.
        season: rows of one season; where the history is shorter, or it is one row, there is no seasonal anchor.
        validation_windows: most windows of the validation part.
    """
    if len(training) < LEAST_WINDOWS:
        return []
    history, horizon = training.history, training.horizon
    width = history * training.panel.values.shape[1]
    fitted = even_indices(len(training), min(FITTED_WINDOWS, max(RESIDUAL_WINDOWS, _GATHERED_VALUES // width)))
    equations = NormalEquations(history, horizon)
    for windows in target_windows(training, fitted, scaling, frame):
        equations.add(windows)
    left = _together(target_windows(training, even_indices(len(training), RESIDUAL_WINDOWS), scaling, frame))
    compared = even_indices(len(validation), validation_windows)
    judged = _together(target_windows(validation, compared, scaling, frame))
    candidates = []
    for name, anchor in anchors(history, horizon, season).items():
        solved = {strength: equations.solve(anchor, strength) for strength in STRENGTHS}
        if name != MEAN:
            solved[math.inf] = anchor
        for strength, weight in solved.items():
            offsets = _offsets(weight, left, levels, simple=math.isinf(strength))
            loss = _loss(_forecast(weight, offsets, judged), judged, levels)
            candidates.append(LinearForecast(name, strength, weight, offsets, loss))
    return candidates


def anchors(history: int, horizon: int, season: int) -> dict[str, Tensor]:
    """Return the simple forecasts by name, each as a map of the history, float64 [F, T]."""
    found = {MEAN: torch.zeros(horizon, history, dtype=torch.float64)}
    periods = {LAST: 1} | ({SEASON: season} if 1 < season <= history else {})
    for name, period in periods.items():
        found[name] = torch.zeros(horizon, history, dtype=torch.float64)
        steps = torch.arange(horizon)
        found[name][steps, history - period + steps % period] = 1.0
    return found


def raw_forecasts(
    forecast: LinearForecast, windows: Windows, indices: Tensor, scaling: Scaling, frame: Frame
) -> Tensor:
    """Return raw quantiles [N, F, Q] of the windows at int64 indices [N], ascending, in single precision."""
    found = []
    for some in indices.split(_BLOCK):
        (part,) = target_windows(windows, some, scaling, frame)
        series = windows.panel.series_code[windows.series_of(some)]
        found.append(scaling.unscale_target(forecast(part).float(), series))
    return torch.cat(found)


def least(candidates: Sequence[LinearForecast]) -> LinearForecast:
    """Return the candidate with the least validation loss."""
    return min(candidates, key=lambda one: one.validation_loss)


class NormalEquations:
    """Sums over windows from which every ridge regression follows.

    A window with missing targets counts for the steps that it has; from the first such window on, sums are kept for
    each step.
    """

    def __init__(self, history: int, horizon: int) -> None:
        size = history + 1
        self._gram = torch.zeros(1, size, size, dtype=torch.float64)  # [1 or F, D, D]
        self._cross = torch.zeros(horizon, size, dtype=torch.float64)

    def add(self, windows: TargetWindows) -> None:
        """Count some windows in."""
        inputs = torch.cat([windows.history, torch.ones_like(windows.scale)], 1)  # [N, D]
        weighted = inputs * windows.scale.square()
        there = windows.target.isnan().logical_not()
        target = torch.where(there, windows.target, 0)
        self._cross += target.T @ weighted
        if bool(there.all()):
            self._gram += weighted.T @ inputs
            return
        if len(self._gram) == 1:
            self._gram = self._gram.repeat(len(self._cross), 1, 1)
        for step, known in enumerate(there.unbind(1)):
            self._gram[step] += weighted[known].T @ inputs[known]

    def solve(self, anchor: Tensor, strength: float) -> Tensor:
        """Return W [F, T] of the ridge regression around an anchor [F, T]; its constant is part of the offsets.

        Args:
            anchor: A.
            strength: as a share of the mean diagonal of each step's normal equations; the constant is not held.
        """
        size = anchor.shape[1]
        gram = self._gram.clone()
        rest = self._cross.unsqueeze(-1) - gram[:, :, :size] @ anchor.unsqueeze(-1)  # [F, D, 1]
        diagonal = gram.diagonal(dim1=1, dim2=2)
        least = torch.finfo(torch.float64).tiny  # histories that never move have a diagonal of zeros
        diagonal[:, :size] += (strength * diagonal[:, :size].mean(1, keepdim=True)).clamp(min=least)
        diagonal[:, size] += least
        if len(gram) == 1:
            change: Tensor = torch.linalg.solve(gram[0], rest.squeeze(-1).T).T
        else:
            change = torch.linalg.solve(gram, rest).squeeze(-1)
        return anchor + change[:, :size]


def _together(parts: Iterator[TargetWindows]) -> TargetWindows:
    return TargetWindows(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _forecast(weight: Tensor, offsets: Tensor, windows: TargetWindows) -> Tensor:
    normalized = (windows.history @ weight.T).unsqueeze(-1) + offsets  # [N, F, Q]
    return windows.mean.unsqueeze(-1) + windows.scale.unsqueeze(-1) * normalized


def _loss(quantiles: Tensor, windows: TargetWindows, levels: Sequence[float]) -> float:
    target = windows.mean + windows.scale * windows.target
    losses = pinball(quantiles, target, levels).sum(-1)
    return float(losses.sum() / target.isnan().logical_not().sum().clamp(min=1))


def _offsets(weight: Tensor, windows: TargetWindows, levels: Sequence[float], *, simple: bool) -> Tensor:
    """Return the quantiles [F, Q] of what a forecast leaves on windows, each window counted by its scale.

    That minimizes the quantile loss in scaled units. A simple forecast keeps its median, and the quantiles of its
    errors stay on their side of it.
    """
    errors = windows.target - windows.history @ weight.T  # [N, F]
    found = weighted_quantiles(errors, windows.scale, levels)
    if simple:
        side = torch.sign(torch.tensor(levels, dtype=torch.float64) - 0.5)
        found = torch.where(side * found > 0, found, 0)
    return found


def weighted_quantiles(values: Tensor, weights: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the quantiles [F, Q] of each column of values [N, F] with weights [N, 1]; NaN counts nowhere.

    A quantile is the least value up to which the weights reach its level's share; 0 for a column without any value.
    """
    there = values.isnan().logical_not()
    ordered, order = torch.where(there, values, torch.inf).sort(0)
    reached = torch.where(there, weights, 0).gather(0, order).cumsum(0)  # [N, F]
    wanted = reached[-1:] * torch.tensor(levels, dtype=values.dtype).unsqueeze(1)  # [Q, F]
    place = torch.searchsorted(reached.T.contiguous(), wanted.T.contiguous()).clamp(max=len(values) - 1)  # [F, Q]
    found = ordered.T.gather(1, place)
    return torch.where(found.isfinite(), found, 0)
