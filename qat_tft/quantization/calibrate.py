"""Calibration: running real batches to observe the ranges of activations, without training or rounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from qat_tft.errors import CalibrationError
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, require_calibrated
from qat_tft.quantization.ranges import Phase

Inputs = tuple[Tensor, Tensor, Tensor]
"""The scaled static, historical and future tensors of one batch."""


@dataclass(frozen=True)
class CalibrationReport:
    """How many batches set the ranges, and which, counted from 0, were refused for values that are not finite."""

    batches: int
    refused: tuple[int, ...]


def calibrate(model: QATTemporalFusionTransformer, batches: Iterable[Inputs]) -> CalibrationReport:
    """Observe every activation range on the batches; the model is left in the phase and mode it was in.

    A batch with an input that is not finite is refused whole: one such value would make a range infinite.

    Raises:
        CalibrationError: no batch was usable, or some part of the model never ran.
    """
    used, refused = 0, []
    with observing(model), torch.no_grad():
        for position, inputs in enumerate(batches):
            if all(bool(torch.isfinite(tensor).all()) for tensor in inputs):
                model(*inputs)
                used += 1
            else:
                refused.append(position)
    if not used:
        raise CalibrationError(
            "no batch to calibrate on"
            if not refused
            else f"all {len(refused)} calibration batches hold NaN or infinity",
            allowed="at least one batch of finite numbers",
            next_step="look at the training rows: inspect the file for missing and infinite values",
        )
    require_calibrated(model)
    return CalibrationReport(used, tuple(refused))


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
