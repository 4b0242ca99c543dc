"""What stands around a run's network: the window's floor, and the linear path with the lowest validation loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from qat_tft.config.model import ModelConfig, PathChoice
from qat_tft.config.run import RunConfig
from qat_tft.data.scaling import Scaling
from qat_tft.errors import ConfigError
from qat_tft.evaluation.linear_paths import (
    LAST,
    LEAST_WINDOWS,
    MEAN,
    SEASON,
    LinearForecast,
    fit_linear_forecasts,
    least,
    target_windows,
)
from qat_tft.evaluation.naive import season_of
from qat_tft.evaluation.window_forecasts import even_indices
from qat_tft.model.frame import Frame, FramedTemporalFusionTransformer, FrameShape
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.runs.data import RunData
from qat_tft.schema import GroupSize

FLOOR = 0.1
"""Least scale of a window, as a share of the root mean square of training windows' deviations.

Where that vanishes, as in histories of one step, the least scale is the deviation of the series.
"""
_MEASURED_WINDOWS = 2**13
_SMALLEST = 1e-4


@dataclass(frozen=True)
class WindowScales:
    """How far training windows move, in scaled units.

    Attributes:
        floor: least scale.
        log_center, log_spread: mean and deviation of the logarithm of the scale, floor included.
    """

    floor: float
    log_center: float
    log_spread: float

    def put(self, frame: Frame) -> None:
        """Write them into a frame that normalizes by the window."""
        if frame.shape.window:
            frame.least_variance.fill_(self.floor**2)
        if frame.shape.scale_input:
            frame.log_center.fill_(self.log_center)
            frame.log_spread.fill_(self.log_spread)


@dataclass(frozen=True)
class FittedFrame:
    """What was fitted to the training part for a model's frame, and what it was chosen among.

    Attributes:
        scales: of the windows.
        candidates: linear forecasts in the units of the model's frame; none where nothing was fitted.
        path: the chosen one; None without a linear path.
        ridge: what a ridge regression on windows in their own units forecasts; None where none could be fitted.
        season: rows of one season.
        too_few: a sentence where there were too few windows to fit a path that was asked for.
    """

    scales: WindowScales
    candidates: Sequence[LinearForecast]
    path: LinearForecast | None
    ridge: RidgeBaseline | None
    season: int
    too_few: str = ""

    def choice(self, model: ModelConfig) -> PathChoice:
        """Return what the configuration says once the path is chosen; it chooses the same path on the same data."""
        if self.path is None:
            return "off"
        return cast(PathChoice, self.path.anchor) if self.path.is_simple else "ridge"

    def put(self, model: TemporalFusionTransformer) -> None:
        """Write floor and linear path into a new model."""
        if isinstance(model, FramedTemporalFusionTransformer):
            self.scales.put(model.frame)
            if model.frame.shape.path:
                assert self.path is not None, "a path is configured only where there is one"
                model.frame.weight.copy_(self.path.weight)
                model.frame.offsets.copy_(self.path.offsets)

    def notes(self) -> list[str]:
        """Say which linear path was chosen, and among what, or why there is none."""
        if self.path is None:
            return [self.too_few] if self.too_few else []
        names = {MEAN: "ridge regression", LAST: "last value", SEASON: f"value of {self.season} rows before"}
        chosen = names[self.path.anchor]
        if self.path.anchor != MEAN and not self.path.is_simple:
            chosen = f"ridge regression around the {chosen}"
        others: dict[str, float] = {}
        for one in self.candidates:
            if one.is_simple or one.anchor == MEAN:
                others[one.anchor] = min(others.get(one.anchor, math.inf), one.validation_loss)
        figures = ", ".join(f"{names[anchor]} {loss:.4g}" for anchor, loss in others.items())
        return [f"Linear path: {chosen}, with a validation loss of {self.path.validation_loss:.4g} ({figures})"]


@dataclass(frozen=True)
class RidgeBaseline:
    """A ridge regression on the target's history alone, as a forecast to compare with.

    Attributes:
        forecast: with the strength that has the lowest validation loss.
        frame: normalizes the windows it was fitted to.
    """

    forecast: LinearForecast
    frame: Frame


def fit_frame(data: RunData, config: RunConfig) -> FittedFrame:
    """Fit what stands around the network of a run, from training windows, and choose its path on validation windows.

    Raises:
        ConfigError: the seasonal naive forecast is asked for, and the history holds no season.
    """
    scaling = data.preprocessing.scaling()
    scales, season = window_scales(data, scaling), config.data.season or season_of(data.panel)
    frame = frame_for(data, FrameShape(window=True))
    scales.put(frame)
    candidates = linear_forecasts(data, config, frame, season)
    ridge = RidgeBaseline(least([one for one in candidates if one.anchor == MEAN]), frame) if candidates else None
    if config.model.linear_path == "off":
        return FittedFrame(scales, (), None, ridge, season)
    if ridge is None:
        return FittedFrame(scales, (), None, None, season, _too_few(data))
    if config.model.normalize != "window":
        candidates = linear_forecasts(data, config, frame_for(data, FrameShape()), season)
    wanted = [one for one in candidates if _is_wanted(one, config.model.linear_path)]
    if not wanted:
        raise ConfigError(
            f"a season of {season} rows gives no linear path over a history of {config.model.history}",
            where="model.linear_path",
            allowed="a season of 2 rows or more that the history holds",
            next_step="Set data.season, lengthen the history, or choose another linear path",
        )
    return FittedFrame(scales, candidates, least(wanted), ridge, season)


def _is_wanted(candidate: LinearForecast, choice: PathChoice) -> bool:
    if choice == "auto":
        return True
    return candidate.anchor == choice if candidate.is_simple else choice == "ridge"


def linear_forecasts(data: RunData, config: RunConfig, frame: Frame, season: int) -> Sequence[LinearForecast]:
    """Return every linear forecast in the units of a frame."""
    return fit_linear_forecasts(
        data.training,
        data.validation,
        data.preprocessing.scaling(),
        frame,
        levels=config.model.quantiles,
        season=season,
        validation_windows=config.training.validation_windows,
    )


def frame_for(data: RunData, shape: FrameShape) -> Frame:
    """Return a frame without a path that normalizes the histories of a run."""
    group = data.schema.group("historical")
    size = GroupSize(len(group.real), (0,) * len(group.category), group.present, group.missing)
    return Frame(shape, size, 0, 0, history=data.training.history, horizon=data.training.horizon, quantiles=0)


def window_scales(data: RunData, scaling: Scaling) -> WindowScales:
    """Measure training windows, evenly spaced, by their deviations without a floor."""
    frame = frame_for(data, FrameShape(window=True))
    frame.least_variance.fill_(0.0)
    indices = even_indices(len(data.training), _MEASURED_WINDOWS)
    scale = torch.cat([windows.scale for windows in target_windows(data.training, indices, scaling, frame)])
    usual = float(scale.square().mean().sqrt())
    floor = FLOOR * usual if usual > _SMALLEST else 1.0
    logarithms = _logarithms(scale, floor)
    return WindowScales(floor, float(logarithms.mean()), max(_SMALLEST, float(logarithms.std(correction=0))))


def _logarithms(scale: Tensor, floor: float) -> Tensor:
    return (scale.square() + floor**2).sqrt().log()


def several_series(data: RunData) -> bool:
    """Whether windows of different series are trained on, whose scales may differ."""
    return len(data.preprocessing.series) > 1


def _too_few(data: RunData) -> str:
    return (
        f"No linear path: {len(data.training)} training windows are fewer than the {LEAST_WINDOWS} that a ridge "
        "regression is fitted to"
    )
