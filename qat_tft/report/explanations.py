"""Which variables and which steps of the past a forecast rests on, and what integers change about that.

Source: Lim et al. (2021), section 7. Legend: N windows, T history, F horizon, S = T + F, V variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qat_tft.report.evidence import ModelView
from qat_tft.schema import GroupName

TITLES: dict[GroupName, str] = {
    "static": "Static columns",
    "historical": "History",
    "future": "Known columns of the steps to forecast",
}
LOW, HIGH = 0.1, 0.9
"""Quantiles over windows between which a spread is shown."""
UNNOTICED = 5e-4
"""Share below which a change would be printed as 0.0 %."""
_NAMED_CHANGES = 3


@dataclass(frozen=True)
class Spread:
    """The mean of a weight over windows, and between which values it lies in most of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class VariableImportance:
    """The selection weight of one variable, by the kind of the model: "fp32", and "int8" where there is one."""

    variable: str
    weights: dict[str, Spread]

    @property
    def change(self) -> float | None:
        """Mean weight of the integer model minus that of the floating-point model; None with one model."""
        if "int8" not in self.weights:
            return None
        return self.weights["int8"].mean - self.weights["fp32"].mean


@dataclass(frozen=True)
class GroupImportance:
    """The variables of a group, the most important one of the last model first."""

    group: GroupName
    variables: tuple[VariableImportance, ...]
    moved: float | None
    """Share of the weight that another model puts on other variables, the mean over windows; None with one model."""

    @property
    def heaviest(self) -> float:
        """The largest mean weight of a variable."""
        return max(spread.mean for one in self.variables for spread in one.weights.values())


@dataclass(frozen=True)
class AttentionByLag:
    """The attention of one model by position: 0 is the last step of the history, 1 the first to forecast.

    Attributes:
        kind: "fp32" or "int8".
        label: what the model is called.
        lags: the S positions.
        mean, low, high: over windows, of the mean over forecast steps.
    """

    kind: str
    label: str
    lags: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def highest(self, count: int = 3) -> tuple[int, ...]:
        """Return the positions of the history with most attention, most first."""
        past = [(weight, lag) for weight, lag in zip(self.mean, self.lags, strict=True) if lag <= 0]
        return tuple(lag for _, lag in sorted(past, key=lambda one: (-one[0], -one[1]))[:count])


@dataclass(frozen=True)
class Explanations:
    """What the weights of a run's models say.

    Attributes:
        groups: those with variables.
        attention: of each model.
        attention_moved: share of the attention that the integer model puts elsewhere, the mean over windows; None with
            one model.
    """

    groups: tuple[GroupImportance, ...]
    attention: tuple[AttentionByLag, ...]
    attention_moved: float | None

    def changes(self, label: str) -> tuple[str, ...]:
        """Say what the integer model, called `label`, changes; nothing with one model."""
        told = [_group_change(group, label) for group in self.groups if group.moved is not None]
        if self.attention_moved is not None:
            moved = f"{self.attention_moved:.1%}" if self.attention_moved >= UNNOTICED else "Next to nothing"
            told.append(f"{moved} of the attention goes to other steps with {label}.")
        return tuple(told)


def _group_change(group: GroupImportance, label: str) -> str:
    if group.moved is not None and group.moved < UNNOTICED:
        return f"{TITLES[group.group]}: {label} puts next to nothing of the weight on other variables."
    noticed = [one for one in group.variables if abs(one.change or 0.0) >= UNNOTICED]
    largest = sorted(noticed, key=lambda one: -abs(one.change or 0.0))[:_NAMED_CHANGES]
    named = ", ".join(f"{one.variable} {signed_points(one.change or 0.0)}" for one in largest)
    most = f"; most: {named}" if named else ""
    return f"{TITLES[group.group]}: {label} puts {group.moved:.1%} of the weight on other variables{most}."


def signed_points(share: float) -> str:
    """Return a difference of two shares in percentage points, with a real minus sign."""
    points = round(share * 100, 1)
    return f"{points:+.1f} points".replace("-", "\N{MINUS SIGN}") if points else "0.0 points"


def explain(views: Sequence[ModelView], variables: Mapping[GroupName, tuple[str, ...]], history: int) -> Explanations:
    """Aggregate the weights of models over windows.

    Args:
        views: of the same windows; FP32 first where there are two.
        variables: of each group, in the order of its weights.
        history: steps of a history.
    """
    groups = tuple(_group(views, name, variables[name]) for name in TITLES if variables[name])
    attention = tuple(_attention(view, history) for view in views)
    return Explanations(groups, attention, _moved([view.attention for view in views]))


def _group(views: Sequence[ModelView], name: GroupName, names: tuple[str, ...]) -> GroupImportance:
    weights = {view.kind: view.selection[name] for view in views}
    spreads = {kind: _spreads(values) for kind, values in weights.items()}
    variables = [
        VariableImportance(variable, dict(zip(spreads, found, strict=True)))
        for variable, *found in zip(names, *spreads.values(), strict=True)
    ]
    variables.sort(key=lambda one: -one.weights[views[-1].kind].mean)
    return GroupImportance(name, tuple(variables), _moved(list(weights.values())))


def _spreads(weights: Tensor) -> list[Spread]:
    """Return the spread of each column of [N, V]."""
    mean, low, high = weights.mean(0), _quantile(weights, LOW), _quantile(weights, HIGH)
    return [Spread(*one) for one in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)]


def _attention(view: ModelView, history: int) -> AttentionByLag:
    weights = view.attention
    lags = tuple(range(1 - history, weights.shape[1] - history + 1))
    figures = (weights.mean(0), _quantile(weights, LOW), _quantile(weights, HIGH))
    mean, low, high = (tuple(figure.tolist()) for figure in figures)
    return AttentionByLag(view.kind, view.label, lags, mean, low, high)


def _quantile(weights: Tensor, level: float) -> Tensor:
    return torch.quantile(weights.double(), level, dim=0)


def _moved(weights: list[Tensor]) -> float | None:
    """Return half the summed absolute difference of two distributions [N, ...], the mean over windows."""
    if len(weights) < 2:
        return None
    return float((weights[1] - weights[0]).abs().sum(1).mean() / 2)
