"""The batches that set a run's ranges: training windows in the order of its first epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.data.loading.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Windows
from qat_tft.evaluation.window_forecasts import even_indices, validation_loss
from qat_tft.model.loss import loss_of
from qat_tft.quantization.calibrate import CalibrationReport, Calibrator, Inputs, recalibrate
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase


def calibrate_on(
    model: QATTemporalFusionTransformer, config: RunConfig, windows: Windows, scaling: Scaling, device: torch.device
) -> CalibrationReport:
    """Set every range of a model as the configuration says, on training windows, whatever it has observed before.

    Raises:
        CalibrationError: as `calibrate`.
    """
    settings = config.quantization
    inputs = islice(_scaled_batches(config, windows, scaling, device), settings.calibration_batches)
    usual = Calibrator.MOVING_AVERAGE
    return recalibrate(model, inputs, usual if settings.calibrator == "auto" else settings.calibrator)


def calibrator_losses(
    model: QATTemporalFusionTransformer,
    config: RunConfig,
    training: Windows,
    validation: Windows,
    scaling: Scaling,
    device: torch.device,
) -> dict[Calibrator, float]:
    """Return the validation loss of the calibrated model by the calibrator; none of a model without ranges.

    Raises:
        CalibrationError: as `calibrate`.
    """
    if not model.quantizers():
        return {}
    losses = {}
    for calibrator in Calibrator:
        calibrate_on(model, config.with_calibrator(calibrator), training, scaling, device)
        model.set_phase(Phase.FROZEN)
        losses[calibrator] = validation_loss(
            model,
            scaling,
            validation,
            even_indices(len(validation), config.training.validation_windows),
            loss=loss_of(config.model.quantiles),
            batch_size=config.training.batch_size,
            device=device,
        )
    return losses


def _scaled_batches(config: RunConfig, windows: Windows, scaling: Scaling, device: torch.device) -> Iterator[Inputs]:
    drawn = batches(
        windows,
        config.training.batch_size,
        shuffle=True,
        seed=config.training.seed,
        epoch=0,
        rank=ranks.rank(),
        world=ranks.world(),
    )
    for raw in drawn:
        batch = raw.to(device)
        yield scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
