"""How good the forecasts of a run are: q-risk and coverage of its results, and errors step by step.

Legend: N windows, F horizon, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qat_tft.evaluation.names import NAIVE, SIMPLE, TITLES
from qat_tft.evaluation.scores import Scores, Tally
from qat_tft.report.evidence import Evidence
from qat_tft.runs.results import RunResults


@dataclass(frozen=True)
class RiskRow:
    """The q-risk of one forecast on the test part.

    Attributes:
        name: as in results.json.
        title: what it is called.
        kind: "fp32", "int8" or "simple", which is how a report colours it.
        risks: per quantile; None where it is undefined.
        coverage: share of targets up to each quantile; empty where the results hold none.
        gain: by which share it lies below the strongest simple forecast at the middle quantile.
        strongest_simple: whether it is that forecast.
    """

    name: str
    title: str
    kind: str
    risks: tuple[float | None, ...]
    coverage: tuple[float | None, ...]
    gain: float | None
    strongest_simple: bool


@dataclass(frozen=True)
class StepErrors:
    """One forecast, step by step over the horizon.

    Attributes:
        kind: how a report colours it.
        label: what it is called.
        error: mean absolute error of each step; None where no target is there.
        inside: share of the targets from the lowest to the highest quantile; empty for a forecast without quantiles.
    """

    kind: str
    label: str
    error: tuple[float | None, ...]
    inside: tuple[float | None, ...]


def risk_rows(results: RunResults) -> tuple[RiskRow, ...]:
    """Return the rows of the q-risk table in the order of the results."""
    return tuple(
        RiskRow(
            name=name,
            title="last value" if name == NAIVE and results.season == 1 else TITLES.get(name, name),
            kind={"fp32": "fp32", "qat": "int8"}.get(name, "simple" if name in SIMPLE else "other"),
            risks=risks,
            coverage=results.coverage.get(name, ()),
            gain=results.gain(name),
            strongest_simple=name == results.strongest_simple,
        )
        for name, risks in results.q_risk.items()
    )


def errors_by_step(evidence: Evidence, levels: tuple[float, ...]) -> tuple[StepErrors, ...]:
    """Return the errors of each model, then those of the last season repeated."""
    found = []
    for view in evidence.views:
        scores = _by_step(view.quantiles, evidence.windows.target, levels)
        error, inside = tuple(one.mae for one in scores), tuple(one.interval for one in scores)
        found.append(StepErrors(view.kind, view.label, error, inside if len(levels) > 1 else ()))
    simple = _by_step(evidence.simple.unsqueeze(-1), evidence.windows.target, (0.5,))
    return (*found, StepErrors("simple", "last season repeated", tuple(one.mae for one in simple), ()))


def _by_step(quantiles: Tensor, target: Tensor, levels: tuple[float, ...]) -> list[Scores]:
    """Return the scores of each step, for quantiles [N, F, Q] and targets [N, F]."""
    count, steps = target.shape
    tally = Tally(steps, levels)
    tally.add(torch.arange(steps).repeat(count), quantiles.flatten(0, 1), target.flatten(), torch.ones(target.numel()))
    return tally.scores()
