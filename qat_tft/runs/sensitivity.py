"""The sensitivity of a run: which layers cost forecast quality in INT8, and which to leave in floating point."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Literal

import torch
from torch import nn

from qat_tft.config.run import RunConfig
from qat_tft.data.reading.parquet import ReadingProgress
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Windows
from qat_tft.errors import DataError
from qat_tft.evaluation.window_forecasts import even_indices, forecast_windows
from qat_tft.model.loss import q_risk
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.rounding_costs import (
    Risks,
    by_layer,
    by_segment,
    leave_float,
    mean,
    measure_costs,
)
from qat_tft.runs.build import accelerator_for, configured_qat_model
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import RunData, load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.sensitivity_report import Sensitivity
from qat_tft.stages import Told, nobody

Grouping = Literal["layer", "segment"]
_GROUPINGS = {"layer": by_layer, "segment": by_segment}


def analyse(
    run: RunFolder,
    *,
    by: Grouping = "layer",
    windows: int = 1024,
    max_drop: float | None = None,
    told: Told = nobody,
    reading: ReadingProgress | None = None,
) -> Sensitivity:
    """Measure what rounding each layer or segment alone costs, on validation windows of the run's own data.

    A run without quantization-aware weights is calibrated for it. With `max_drop`, few groups are chosen to stay in
    floating point; for a quantization-aware run the choice is written into its config.toml, as
    `quantization.float_layers`, which export and check follow. Its weights stay as they are.

    Args:
        run: a finished run; its data files must still be there.
        by: what a group is.
        windows: most validation windows, evenly spaced.
        max_drop: share by which the mean q-risk may lie above the FP32 model's, such as 0.005.
        told: is told each group before it is measured.
        reading: is told how far reading the rows has come.

    Raises:
        UserError: the run or its data cannot be used, or another process is writing to the run.
    """
    with nullcontext() if max_drop is None else run.held():
        return _analysed(run, by, windows, max_drop, told, reading)


def _analysed(
    run: RunFolder,
    by: Grouping,
    windows: int,
    max_drop: float | None,
    told: Told,
    reading: ReadingProgress | None,
) -> Sensitivity:
    config, preprocessing = run.load_config(), run.load_preprocessing()
    data = load_data_of(run, reading=reading)
    device = accelerator_for(config.training).device
    scaling = preprocessing.scaling().to(device)
    measured_on = partial(risks_of, scaling, data.validation, config, windows, device)
    fp32 = measured_on(run.load_fp32_model().to(device))
    model = _quantized(run, config, data, scaling, device)
    groups = _GROUPINGS[by](model)
    measure: Callable[[], Risks] = partial(measured_on, model)
    rounded = measure()
    costs = measure_costs(model, groups, measure, told=told)
    choice = None
    if max_drop is not None:
        told("choosing layers to leave in floating point", len(groups), len(groups))
        choice = leave_float(model, groups, costs, measure, highest=(1.0 + max_drop) * mean(fp32))
    found = Sensitivity(
        run=run.name,
        trained=run.has_qat_weights,
        quantiles=config.model.quantiles,
        windows=min(windows, len(data.validation)),
        groups=groups,
        weights={group: sum(_weights(model, layer) for layer in layers) for group, layers in groups.items()},
        fp32=fp32,
        rounded=rounded,
        costs=costs,
        max_drop=max_drop,
        choice=choice,
    )
    if found.trained and found.float_layers is not None:
        run.write_config(config.with_float_layers((*model.left_out(), *found.float_layers)))
    return found


def _quantized(
    run: RunFolder, config: RunConfig, data: RunData, scaling: Scaling, device: torch.device
) -> QATTemporalFusionTransformer:
    """Return the run's quantization-aware model, or its FP32 model calibrated; every layer that can be is quantized."""
    if run.has_qat_weights:
        return run.load_qat_model(every_layer=True).to(device)
    settings = config.quantization.model_copy(update={"float_layers": ()})
    model = configured_qat_model(run.load_fp32_model(), config.model, settings).to(device)
    calibrate_on(model, config, data.training, scaling, device)
    model.set_phase(Phase.FROZEN)
    return model.eval()


def risks_of(
    scaling: Scaling, windows: Windows, config: RunConfig, limit: int, device: torch.device, model: nn.Module
) -> Risks:
    """Return the q-risks of a model on windows, at most so many and evenly spaced.

    Raises:
        DataError: one of them is zero or not finite.
    """
    indices = even_indices(len(windows), limit)
    size = config.training.batch_size
    found = forecast_windows(model, scaling, windows, indices, batch_size=size, device=device)
    risks = tuple(q_risk(found.quantiles, found.target, config.model.quantiles).tolist())
    unusable = [risk for risk in risks if not 0.0 < risk < math.inf]
    if unusable:
        raise DataError(
            f"the q-risk of {len(indices)} validation windows is {unusable[0]}, which no other can be compared with",
            allowed="validation windows whose target is there and not zero throughout",
            next_step="Take more of them with --windows, or train with another --validation",
        )
    return risks


def _weights(model: QATTemporalFusionTransformer, layer: str) -> int:
    return sum(
        weight.numel() for name, weight in model.model.get_submodule(layer).named_parameters() if "weight" in name
    )
