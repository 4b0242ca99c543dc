"""Draws a forecast of a run: by its INT8 file where there is one, otherwise by its best torch model."""

from pathlib import Path
from typing import cast

import numpy as np
import torch

from qat_tft.data.windows import Batch
from qat_tft.evaluation.plots import Array, draw_forecast
from qat_tft.evaluation.window_forecasts import raw_quantiles
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema


def draw_run(folder: RunFolder, path: Path) -> Path:
    """Draw the forecast for the middle one of the run's check windows and return the picture's path.

    Raises:
        RunFolderError: the run folder is damaged, or the picture cannot be written.
        OnnxFileError: the run's ONNX file is damaged.
    """
    windows = folder.load_check_windows()
    middle = torch.tensor([len(windows.target) // 2])
    one = windows.windows(middle)
    config, schema = folder.load_config(), folder.load_effective_schema()
    label, quantiles = _forecast(folder, one)
    history = target_history(schema, one.historical[0])
    draw_forecast(
        path,
        title=f"{schema.target}: forecast of run {folder.name} for a window of the test part",
        unit=schema.target,
        history=history,
        truth=one.target[0].numpy(),
        naive=_naive(history, config.model.horizon, folder.load_results().season),
        forecasts={label: quantiles},
        levels=config.model.quantiles,
    )
    return path


def target_history(schema: Schema, historical: torch.Tensor) -> Array:
    """Return the target [steps] of a raw history [T, Vh], without the steps that are padding."""
    present = schema.group("historical").present
    rows = historical if present is None else historical[historical[:, present] != 0]
    return cast(Array, rows[:, 0].numpy())


def _forecast(folder: RunFolder, one: Batch) -> tuple[str, Array]:
    """Return the label and the quantiles [F, Q] of one window."""
    file = folder.integer_file
    if file.is_file():
        forecaster = ForecastSession(file, threads=1)
        inputs = window_inputs(one, torch.tensor([0]), forecaster.metadata)
        return f"INT{forecaster.metadata.bits}", cast(Array, forecaster.forecast(inputs)[0])
    quantized = folder.has_qat_weights
    model = folder.load_qat_model() if quantized else folder.load_fp32_model()
    scaling = folder.load_preprocessing().scaling()
    with torch.no_grad():
        raw = raw_quantiles(model, scaling, one)
    return "QAT" if quantized else "FP32", cast(Array, raw[0].numpy())


def _naive(history: Array, horizon: int, season: int) -> Array:
    """Return the last season repeated [F]; the last value where the history is shorter than a season."""
    last = history[-season:] if len(history) >= season else history[-1:]
    return np.resize(last, horizon)
