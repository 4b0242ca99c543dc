"""Which columns of a batch made a loss non-finite: those with non-finite values, else the most extreme."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qat_tft.errors import some_of
from qat_tft.schema import Schema

EXTREME = 100.0
"""Standard deviations from the training mean past which a scaled value is worth naming."""


def explain_batch(schema: Schema, inputs: Sequence[Tensor], target: Tensor) -> str:
    """Say which columns hold the non-finite or extreme values of a scaled batch.

    Args:
        schema: names the columns.
        inputs: scaled static [B, Vs], historical [B, history, Vh] and future [B, horizon, Vf].
        target: scaled, [B, horizon]; NaN stands for a missing one.
    """
    extremes: dict[str, float] = {}
    for group, tensor in zip(schema.groups, inputs, strict=True):
        for index, column in enumerate(group.real):
            _keep_largest(extremes, column, tensor[..., index])
    _keep_largest(extremes, schema.target, target[~target.isnan()])
    broken = [column for column, value in extremes.items() if value == float("inf")]
    if broken:
        return f"non-finite values in {some_of([repr(column) for column in broken])}"
    largest = sorted(extremes.items(), key=lambda item: -item[1])
    named = [f"{column!r} ({value:.3g})" for column, value in largest if value > EXTREME]
    if named:
        return f"values far from the training mean, in standard deviations: {some_of(named)}"
    return "no column holds a non-finite or extreme value, so the weights have diverged"


def _keep_largest(extremes: dict[str, float], column: str, values: Tensor) -> None:
    finite = bool(torch.isfinite(values).all())
    size = float(values.abs().max()) if finite and values.numel() else (0.0 if finite else float("inf"))
    extremes[column] = max(size, extremes.get(column, 0.0))
