"""Standardization inside the model's graph: raw values in, raw quantiles out.

B batch, T time, V columns of a group, N rows of statistics (1, or 1 + series seen in training), Q quantiles.
"""

from typing import NamedTuple

import torch
from torch import nn

from qat_tft.data.transform import TargetTransform


class Affine(NamedTuple):
    """``(value - center) / scale`` for each column of a group; both float32 [N, V].

    Category columns have center 0 and scale 1, so that their codes pass unchanged.
    """

    center: torch.Tensor
    scale: torch.Tensor


class Scaling(nn.Module):
    """Scale inputs and target, and take quantiles back to raw units. Buffers only, nothing to train.

    Args:
        static: N = 1; a static column has one value per series, so its statistics are over series.
        historical: column 0 is the target.
        future: the known columns of ``historical`` in the order of the future group.
        per_series: whether row n of the statistics belongs to the series of code n. Row 0 holds the statistics
            over all series and serves series that were not seen in training. Otherwise N = 1.
        transform: of the target before it is standardized; its statistics are those of the transformed values.

    Raises:
        ValueError: a scale that is not positive and finite, or shapes that do not fit.
    """

    static_center: torch.Tensor
    static_scale: torch.Tensor
    historical_center: torch.Tensor
    historical_scale: torch.Tensor
    future_center: torch.Tensor
    future_scale: torch.Tensor

    def __init__(
        self,
        static: Affine,
        historical: Affine,
        future: Affine,
        *,
        per_series: bool = False,
        transform: TargetTransform = TargetTransform.NONE,
    ) -> None:
        super().__init__()
        self.per_series = per_series
        self.transform = transform
        for name, affine in (("static", static), ("historical", historical), ("future", future)):
            rows = 1 if name == "static" or not per_series else historical.center.shape[0]
            _check(name, affine, rows)
            self.register_buffer(f"{name}_center", affine.center.to(torch.float32))
            self.register_buffer(f"{name}_scale", affine.scale.to(torch.float32))

    def forward(
        self, static: torch.Tensor, historical: torch.Tensor, future: torch.Tensor, series: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Same as ``scale_inputs``."""
        return self.scale_inputs(static, historical, future, series)

    def scale_inputs(
        self, static: torch.Tensor, historical: torch.Tensor, future: torch.Tensor, series: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scale the three groups.

        Args:
            static: raw, [B, Vs].
            historical: raw, [B, history, Vh].
            future: raw, [B, horizon, Vf].
            series: int64 [B], code of each series, 0 = not seen in training; not read in global mode.

        Returns:
            The three tensors in the same shapes, real columns scaled, category codes untouched.
        """
        if static.shape[-1]:  # an empty group stays out of an exported graph
            static = (static - self.static_center) / self.static_scale
        if self.transform is not TargetTransform.NONE:
            target = self.transform.apply(historical[..., :1])
            historical = torch.cat([target, historical[..., 1:]], -1)
        historical = self._over_time(historical, self.historical_center, self.historical_scale, series)
        if future.shape[-1]:
            future = self._over_time(future, self.future_center, self.future_scale, series)
        return static, historical, future

    def scale_target(self, target: torch.Tensor, series: torch.Tensor) -> torch.Tensor:
        """Raw target [B, horizon] to the scale on which the model is trained, [B, horizon]."""
        center, scale = self._target_statistics(series)
        return (self.transform.apply(target) - center) / scale

    def unscale_target(self, quantiles: torch.Tensor, series: torch.Tensor) -> torch.Tensor:
        """Scaled quantiles [B, horizon, Q], of ascending levels, to raw units in ascending order, [B, horizon, Q].

        A network may let quantiles cross. Sorted, they do not, and their quantile loss, added up over the levels,
        is never higher (Chernozhukov, Fernandez-Val, Galichon 2010, "Quantile and probability curves without
        crossing", proposition 4).
        """
        raw = self.transform.invert(self.unstandardize_target(quantiles, series))
        return raw.sort(-1).values if raw.shape[-1] > 1 else raw

    def unstandardize_target(self, quantiles: torch.Tensor, series: torch.Tensor) -> torch.Tensor:
        """Scaled quantiles [B, horizon, Q] to the target's own units; to transformed ones where it is transformed."""
        center, scale = self._target_statistics(series)
        return quantiles * scale.unsqueeze(-1) + center.unsqueeze(-1)

    def _over_time(
        self, values: torch.Tensor, center: torch.Tensor, scale: torch.Tensor, series: torch.Tensor
    ) -> torch.Tensor:
        if self.per_series:
            center, scale = center[series].unsqueeze(1), scale[series].unsqueeze(1)  # [B, 1, V]
        return (values - center) / scale

    def _target_statistics(self, series: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        center, scale = self.historical_center[:, :1], self.historical_scale[:, :1]  # [N, 1]
        return (center[series], scale[series]) if self.per_series else (center, scale)


def _check(name: str, affine: Affine, rows: int) -> None:
    center, scale = affine
    if center.shape != scale.shape or center.ndim != 2 or center.shape[0] != rows:
        raise ValueError(
            f"{name}: center {tuple(center.shape)} and scale {tuple(scale.shape)} must both be [{rows}, columns]"
        )
    if not bool(torch.isfinite(center).all() & torch.isfinite(scale).all() & (scale > 0).all()):
        raise ValueError(f"{name}: centers must be finite and scales positive and finite")
