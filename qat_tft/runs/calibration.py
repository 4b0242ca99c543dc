"""The batches that set a run's ranges: training windows in the order of its first epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from qat_tft.config.run import RunConfig
from qat_tft.data.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Windows
from qat_tft.quantization.calibrate import CalibrationReport, Inputs, recalibrate
from qat_tft.quantization.prepare import QATTemporalFusionTransformer


def calibrate_on(
    model: QATTemporalFusionTransformer, config: RunConfig, windows: Windows, scaling: Scaling, device: torch.device
) -> CalibrationReport:
    """Set every range of a model as the configuration says, on training windows, whatever it has observed before.

    Raises:
        CalibrationError: as `calibrate`.
    """
    settings = config.quantization
    inputs = islice(_scaled_batches(config, windows, scaling, device), settings.calibration_batches)
    return recalibrate(model, inputs, settings.calibrator)


def _scaled_batches(config: RunConfig, windows: Windows, scaling: Scaling, device: torch.device) -> Iterator[Inputs]:
    for raw in batches(windows, config.training.batch_size, shuffle=True, seed=config.training.seed, epoch=0):
        batch = raw.to(device)
        yield scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
