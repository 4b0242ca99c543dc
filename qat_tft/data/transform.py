"""Transforms of a positive target, applied before it is standardized and inverted in the model's graph."""

from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F

from qat_tft.data.panel import Panel
from qat_tft.errors import ConfigError, DataError

_SMALL = 0.1
"""Below it the series of `softplus_inverse` is exact to single precision, above it the closed form is."""


class TargetTransform(StrEnum):
    """What the target becomes before standardization; every one rises, so that quantiles stay in order.

    ``softplus`` names what forecasts come out of: the target goes in through its inverse, `log(exp(y) - 1)`, which
    is a logarithm near zero and leaves large values as they are.
    """

    NONE = "none"
    LOG = "log"  # for y > 0: relative errors count
    LOG1P = "log1p"  # for y > -1, such as counts with zeros
    SOFTPLUS = "softplus"  # for y > 0

    def apply(self, target: Tensor) -> Tensor:
        """Raw values, any shape, to transformed ones; NaN stays NaN."""
        match self:
            case TargetTransform.NONE:
                return target
            case TargetTransform.LOG:
                return target.log()
            case TargetTransform.LOG1P:
                return target.log1p()
            case TargetTransform.SOFTPLUS:
                return softplus_inverse(target)

    def invert(self, transformed: Tensor) -> Tensor:
        """Transformed values, any shape, to raw ones."""
        match self:
            case TargetTransform.NONE:
                return transformed
            case TargetTransform.LOG:
                return transformed.exp()
            case TargetTransform.LOG1P:
                return transformed.expm1()
            case TargetTransform.SOFTPLUS:
                return F.softplus(transformed)

    @property
    def above(self) -> float:
        """Every value that can be transformed is larger than this."""
        return {TargetTransform.NONE: -torch.inf, TargetTransform.LOG1P: -1.0}.get(self, 0.0)

    def require_zero(self) -> None:
        """Refuse that a missing target becomes zero, where zero cannot be transformed.

        Raises:
            ConfigError: it cannot.
        """
        if self.above >= 0:
            raise ConfigError(
                f"data.missing replaces missing targets with zero, which the target transform {self} cannot take",
                allowed="forward or mean for the target, or the transform log1p",
            )

    def require_domain(self, panel: Panel, rows: Tensor | None = None) -> None:
        """Refuse targets that cannot be transformed, in int64 ``rows`` or in all.

        Raises:
            DataError: there are some; the message names the first by time and series.
        """
        if self is TargetTransform.NONE:
            return
        outside = panel.target <= self.above  # false for NaN
        outside = torch.nonzero(outside).squeeze(1) if rows is None else rows[outside[rows]]
        if not len(outside):
            return
        first = outside[:1]
        series = panel.series_name(int(panel.series_at(first)))
        raise DataError(
            f"the target '{panel.schema.target}' is {float(panel.target[first]):g} at "
            f"{panel.time_text(int(panel.time[first]))} ({series}), one of {len(outside):,} rows that the target "
            f"transform {self} cannot take",
            where=panel.source,
            allowed=f"numbers above {self.above:g}",
            next_step="Correct these rows, shift the column, or use "
            + ("--target-transform none." if self is TargetTransform.LOG1P else "--target-transform log1p or none."),
        )


def softplus_inverse(y: Tensor) -> Tensor:
    """`log(exp(y) - 1)` for y > 0, without overflow for large y and without cancellation for small."""
    closed = y + torch.log(1 - torch.exp(-y))
    series = torch.log(y) + y / 2 + y**2 / 24
    return torch.where(y < _SMALL, series, closed)
