"""Calibration: running real batches to set the ranges of activations, without training or rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from qat_tft import ranks
from qat_tft.errors import CalibrationError
from qat_tft.quantization.histogram import Extremes, PercentileBounds, SmallestErrorBounds
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, require_calibrated
from qat_tft.quantization.ranges import ActivationQuantizer, Phase, Statistics

Inputs = tuple[Tensor, Tensor, Tensor]
"""The scaled static, historical and future tensors of one batch."""


class Calibrator(StrEnum):
    """What a range is made of: the batches' extremes on average, those of all batches, or what a histogram says."""

    MOVING_AVERAGE = "moving-average"
    MIN_MAX = "min-max"
    PERCENTILE = "percentile"
    MSE = "mse"


@dataclass(frozen=True)
class CalibrationReport:
    """How many batches set the ranges, and which, counted from 0, were refused for values that are not finite."""

    batches: int
    refused: tuple[int, ...]


def calibrate(
    model: QATTemporalFusionTransformer,
    batches: Iterable[Inputs],
    calibrator: Calibrator | str = Calibrator.MOVING_AVERAGE,
) -> CalibrationReport:
    """Set every activation range from the batches; the model is left in the phase and mode it was in.

    A batch with an input that is not finite is refused whole: one such value would make a range infinite. What
    training observes afterwards moves the ranges on from here by the moving average, whatever made them. A model whose
    products are in floating point has no range to set, and takes no batch.

    Raises:
        CalibrationError: no batch was usable, or some part of the model never ran.
        ValueError: there is no calibrator of that name.
    """
    used, refused = 0, []
    calibrator = Calibrator(calibrator)
    if not model.quantizers():
        return CalibrationReport(0, ())
    with observing(model), collecting(model, calibrator), torch.no_grad():
        for position, inputs in enumerate(batches):
            if ranks.any_of_all(not all(bool(torch.isfinite(tensor).all()) for tensor in inputs)):
                refused.append(position)
            else:
                model(*inputs)
                used += 1
    if not used:
        raise CalibrationError(
            "no batch to calibrate on"
            if not refused
            else f"all {len(refused)} calibration batches contain NaN or infinity",
            allowed="at least one batch of finite numbers",
            next_step="inspect the training rows for missing and infinite values",
        )
    require_calibrated(model)
    return CalibrationReport(used, tuple(refused))


def recalibrate(
    model: QATTemporalFusionTransformer, batches: Iterable[Inputs], calibrator: Calibrator | str
) -> CalibrationReport:
    """Set every range anew, from these batches alone; arguments and errors are those of `calibrate`."""
    for quantizer in model.quantizers().values():
        quantizer.batches.zero_()
    return calibrate(model, batches, calibrator)


@contextmanager
def observing(model: QATTemporalFusionTransformer) -> Iterator[None]:
    """Put the model into evaluation mode and its quantizers into phase `calibrate`, and restore both."""
    phase, training = model.phase, model.training
    model.eval()
    model.set_phase(Phase.CALIBRATE)
    try:
        yield
    finally:
        model.set_phase(phase)
        model.train(training)


@contextmanager
def collecting(model: QATTemporalFusionTransformer, calibrator: Calibrator) -> Iterator[None]:
    """Let every quantizer collect what the calibrator needs; at the end its range is set from that.

    After an error the ranges stay what they were.
    """
    statistics_for = _STATISTICS.get(calibrator)
    if statistics_for is None:  # the quantizers average by themselves
        yield
        return
    collected = [(quantizer, statistics_for(quantizer)) for quantizer in model.quantizers().values()]
    try:
        for quantizer, statistics in collected:
            quantizer.statistics = statistics
        yield
        for quantizer, statistics in collected:
            quantizer.set_range(*statistics.bounds())
    finally:
        for quantizer, _ in collected:
            quantizer.statistics = None


_STATISTICS: dict[Calibrator, Callable[[ActivationQuantizer], Statistics]] = {
    Calibrator.MIN_MAX: lambda quantizer: Extremes(quantizer.minimum.numel()),
    Calibrator.PERCENTILE: lambda quantizer: PercentileBounds(quantizer.minimum.numel()),
    Calibrator.MSE: lambda quantizer: SmallestErrorBounds(quantizer.minimum.numel(), quantizer.codes),
}
