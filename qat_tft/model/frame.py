"""What stands around the network: level and scale of the window, and a linear path past the network to every quantile.

Legend: B batch, T history, F horizon, Q quantiles; Vs, Vh, Vf columns of the static, historical and future group.

A network does not extrapolate: what it never saw in training, it squashes. So the target's history enters it
normalized by mean and scale of the window itself, and its output is added, in those units, to a linear forecast from
the same history. That forecast is one more input for the steps ahead: a network that does not see what it corrects
would have to find it out. Both happen in floating point around the unchanged TFT of Lim et al. (2021), over time and
never over rows. Normalization by the window: Kim et al. (2022), "Reversible Instance Normalization for Accurate
Time-Series Forecasting against Distribution Shift", here without its trained affine part. The linear path: Zeng et al.
(2023), "Are Transformers Effective for Time Series Forecasting?", here fitted in closed form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner, run_directly
from qat_tft.model.tft import Forecast, TemporalFusionTransformer, steps_present
from qat_tft.schema import GroupSize


class WindowLevel(NamedTuple):
    """Where a window lies and how far it moves."""

    normalized: Tensor  # [B, T]: (target - mean) / scale; 0 at steps that do not count
    mean: Tensor  # [B, 1]
    scale: Tensor  # [B, 1]: sqrt(variance + k^2)


@dataclass(frozen=True)
class FrameShape:
    """What a frame consists of.

    Attributes:
        window: whether the target is normalized by its window.
        scale_input: whether the logarithm of the window's scale is one more real static column.
        path: whether there is a linear path.
        offsets: whether there are offsets of every step and quantile, as there are with a linear path.
    """

    window: bool = False
    scale_input: bool = False
    path: bool = False
    offsets: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands around the network, which is then exactly the paper's."""
        return not (self.window or self.path or self.offsets)


class FrameView(NamedTuple):
    """What the network gets, and how its output becomes a forecast: `base + scale * output`."""

    static: Tensor  # [B, Vs] or [B, Vs + 1]
    historical: Tensor  # [B, T, Vh]
    future: Tensor  # [B, F, Vf] or [B, F, Vf + 1]
    base: Tensor  # [B, F, Q], or [B, 1, 1] without path and offsets
    scale: Tensor  # [B, 1, 1]


class Frame(nn.Module):
    """Normalization and linear path of a model: buffers that are fitted, and nothing that is trained.

    The path maps the normalized history by `weight` and adds `offsets`.

    Args:
        shape: of the frame.
        historical: width of the historical group; its first column is the target.
        static_real: number of real static columns, after which the logarithm of the scale goes in.
        future_real: number of real future columns, after which the path's forecast goes in.
        history, horizon, quantiles: T, F and Q.
    """

    weight: Tensor  # [F, T]
    offsets: Tensor  # [F, Q]
    least_variance: Tensor
    log_center: Tensor
    log_spread: Tensor

    def __init__(
        self,
        shape: FrameShape,
        historical: GroupSize,
        static_real: int,
        future_real: int,
        *,
        history: int,
        horizon: int,
        quantiles: int,
    ) -> None:
        super().__init__()
        self.shape, self.static_real, self.future_real = shape, static_real, future_real
        self.present, self.missing = historical.present, historical.missing
        if shape.path:
            self.register_buffer("weight", torch.zeros(horizon, history))
        if shape.path or shape.offsets:
            self.register_buffer("offsets", torch.zeros(horizon, quantiles))
        if shape.window:
            self.register_buffer("least_variance", torch.tensor(0.01))
        if shape.scale_input:
            self.register_buffer("log_center", torch.tensor(0.0))
            self.register_buffer("log_spread", torch.tensor(1.0))

    def forward(self, static: Tensor, historical: Tensor, future: Tensor) -> FrameView:
        """Return what goes into the network, and what stands around it, for the scaled groups of columns."""
        level = self.level(historical[..., 0], historical)
        base, scale = level.mean.unsqueeze(-1), level.scale.unsqueeze(-1)  # [B, 1, 1]
        if self.shape.path:
            path = F.linear(level.normalized, self.weight).unsqueeze(-1)  # [B, F, 1]
            base = base + scale * (path + self.offsets)
            future = torch.cat([future[..., : self.future_real], path, future[..., self.future_real :]], -1)
        elif self.shape.offsets:
            base = base + scale * self.offsets
        if self.shape.scale_input:
            logarithm = (level.scale.log() - self.log_center) / self.log_spread
            static = torch.cat([static[:, : self.static_real], logarithm, static[:, self.static_real :]], -1)
        framed = torch.cat([level.normalized.unsqueeze(-1), historical[..., 1:]], -1)
        return FrameView(static, framed, future, base, scale)

    def level(self, target: Tensor, historical: Tensor) -> WindowLevel:
        """Return the level of scaled targets [B, T]; mean 0 and scale 1 where the window does not normalize.

        The historical group [B, T, Vh], scaled or raw, tells which steps count.
        """
        counts = self._counts(historical)
        if self.shape.window:
            return window_level(target, counts, self.least_variance.to(target.dtype))
        if counts is not None:
            target = torch.where(counts, target, 0)
        ones = torch.ones_like(target[:, :1])
        return WindowLevel(target, torch.zeros_like(ones), ones)

    def _counts(self, historical: Tensor) -> Tensor | None:
        """Return which steps hold a target [B, T] that is neither padding nor filled; None where all do."""
        counts = None if self.present is None else steps_present(historical, self.present)
        if self.missing is None:
            return counts
        known = historical[..., self.missing] < 0.5
        return known if counts is None else counts & known


def window_level(target: Tensor, counts: Tensor | None, least_variance: Tensor) -> WindowLevel:
    """Return the level of targets [B, T] over time.

    A window whose steps are all equal is normalized to exactly 0, as is one without any step; its mean is then 0.

    Args:
        target: any finite values at steps that count.
        counts: bool [B, T]; what stands at other steps does not matter, be it infinite. None: all count.
        least_variance: k^2, a scalar that is added to the variance. With 0, windows of equal steps have scale 0.
    """
    if counts is None:
        apart = target - target[:, -1:]  # from one of the steps, so that equal steps give exact zeros
        shift = apart.mean(1, keepdim=True)
        apart = apart - shift
        variance = (apart * apart).mean(1, keepdim=True)  # no power: that would be one more constant
        mean = target[:, -1:] + shift
    else:
        steps = counts.sum(1, keepdim=True).clamp(min=1)
        largest = torch.where(counts, target, -torch.inf).amax(1, keepdim=True)
        largest = torch.where(largest == -torch.inf, 0, largest)
        apart = torch.where(counts, target - largest, 0)
        shift = apart.sum(1, keepdim=True) / steps
        apart = torch.where(counts, apart - shift, 0)
        variance = (apart * apart).sum(1, keepdim=True) / steps
        mean = largest + shift
    scale = (variance + least_variance).sqrt()
    return WindowLevel(apart / scale.clamp(min=torch.finfo(scale.dtype).tiny), mean, scale)


class FramedTemporalFusionTransformer(TemporalFusionTransformer):
    """A TFT inside a frame. With a linear path its head starts at zero, so that it starts as the path's forecast.

    Args:
        static, historical, future: as for `TemporalFusionTransformer`, like all arguments not named here; without
            what the frame adds.
        frame: the shape of the frame.
    """

    def __init__(
        self, static: GroupSize, historical: GroupSize, future: GroupSize, *, frame: FrameShape, **arguments: Any
    ) -> None:
        inside = replace(static, real=static.real + 1) if frame.scale_input else static
        ahead = replace(future, real=future.real + 1) if frame.path else future
        super().__init__(inside, historical, ahead, **arguments)
        sizes = {"history": self.history, "horizon": self.horizon, "quantiles": len(self.quantiles)}
        self.frame = Frame(frame, historical, static.real, future.real, **sizes)
        if frame.path:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(
        self, static: Tensor, historical: Tensor, future: Tensor, run_segment: SegmentRunner = run_directly
    ) -> Forecast:
        """Return the forecast; arguments and result are those of `TemporalFusionTransformer.forward`."""
        with _in_full_precision(historical):
            view: FrameView = self.frame(static, historical, future)
        forecast = super().forward(view.static, view.historical, view.future, run_segment)
        return forecast._replace(quantiles=view.base + view.scale * forecast.quantiles)

    def output_units(self, historical: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and scale of the windows, both [B, 1, 1]."""
        level = self.frame.level(historical[..., 0], historical)
        return level.mean.unsqueeze(-1), level.scale.unsqueeze(-1)


@contextmanager
def _in_full_precision(tensor: Tensor) -> Iterator[None]:
    """Without a lower number format for products; a graph that is traced sees nothing of it."""
    if not torch.is_autocast_enabled(tensor.device.type):
        yield
        return
    with torch.autocast(tensor.device.type, enabled=False):
        yield
