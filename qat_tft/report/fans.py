"""Which forecasts a report shows: those of the best, the median and the worst series, or window, by error.

Legend: N windows, T history, F horizon, Q quantiles, C cells (series or windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.evaluation.scores import Tally
from qat_tft.evaluation.window_history import target_history
from qat_tft.report.evidence import Evidence
from qat_tft.schema import Schema

Array = npt.NDArray[np.floating]
_RANKS = ("best", "median", "worst")
_FEWEST_SERIES = 3
_SHOWN_HORIZONS, _FEWEST_SHOWN = 2, 24  # how much of the history stands before the forecast, in horizons and steps


@dataclass(frozen=True)
class Fan:
    """One forecast with what came before it and what came.

    Attributes:
        rank: "best", "median" or "worst".
        series: name of the series.
        error: q-risk of the middle quantile, of the series or the window.
        history: the end of the history's target.
        truth: [F], NaN where no target is there.
        simple: [F], the last season repeated.
        forecasts: kind and label of each model, and its quantiles [F, Q].
    """

    rank: str
    series: str
    error: float
    history: Array
    truth: Array
    simple: Array
    forecasts: tuple[tuple[str, str, Array], ...]


@dataclass(frozen=True)
class Fans:
    """The forecasts that are shown, and what was ranked to choose them.

    Attributes:
        ranked: "series", or "windows" where there are fewer than three series.
        count: how many were ranked.
        shown: best first.
    """

    ranked: str
    count: int
    shown: tuple[Fan, ...]


def choose_fans(evidence: Evidence, schema: Schema, levels: tuple[float, ...], middle: int) -> Fans:
    """Return the forecasts of the best, the median and the worst series; of windows where series are few.

    Series are ranked by the error of the run's last model, and a series is shown by its window of median error.
    """
    names = sorted(set(evidence.series))
    by_series = len(names) >= _FEWEST_SERIES
    each = torch.arange(len(evidence.series))
    cells = torch.tensor([names.index(name) for name in evidence.series]) if by_series else each
    own, errors = (_errors(evidence, cell, levels, middle) for cell in (each, cells))
    ranking = sorted((error, cell) for cell, error in errors.items())
    ranks = dict(zip((0, (len(ranking) - 1) // 2, len(ranking) - 1), _RANKS, strict=True)) if ranking else {}
    shown = []
    for place, rank in sorted(ranks.items()):
        error, cell = ranking[place]
        windows = torch.nonzero(cells == cell).flatten().tolist()
        inside = sorted((own[window], window) for window in windows if window in own)
        shown.append(_fan(evidence, schema, inside[(len(inside) - 1) // 2][1], rank, error))
    return Fans("series" if by_series else "windows", len(ranking), tuple(shown))


def _errors(evidence: Evidence, cells: Tensor, levels: tuple[float, ...], middle: int) -> dict[int, float]:
    """Return the q-risk of each cell [N] that has one: not where all its targets are zero, or missing."""
    tally = Tally(int(cells.max()) + 1, levels)
    target, quantiles = evidence.windows.target, evidence.last.quantiles
    steps = target.shape[1]
    unscaled = torch.ones(target.numel())
    tally.add(cells.repeat_interleave(steps), quantiles.flatten(0, 1), target.flatten(), unscaled)
    risks = ((cell, score.q_risk[middle]) for cell, score in enumerate(tally.scores()))
    return {cell: risk for cell, risk in risks if risk is not None}


def _fan(evidence: Evidence, schema: Schema, window: int, rank: str, error: float) -> Fan:
    truth = cast(Array, evidence.windows.target[window].numpy())
    shown = max(_SHOWN_HORIZONS * len(truth), _FEWEST_SHOWN)
    return Fan(
        rank=rank,
        series=evidence.series[window],
        error=error,
        history=target_history(schema, evidence.windows.historical[window])[-shown:],
        truth=truth,
        simple=cast(Array, evidence.simple[window].numpy()),
        forecasts=tuple((view.kind, view.label, view.quantiles[window].numpy()) for view in evidence.views),
    )
