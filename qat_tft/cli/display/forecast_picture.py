"""The integer file of a run for pictures: it forecasts where there is one, otherwise the run's best torch model."""

from pathlib import Path
from typing import cast

import torch

from qat_tft.data.windows import Batch
from qat_tft.evaluation.plots import Array, draw_forecast
from qat_tft.evaluation.window_forecasts import raw_quantiles
from qat_tft.evaluation.window_history import season_repeated, target_history
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.report.evidence import FileForecasts
from qat_tft.runs.folder import RunFolder


def exported(folder: RunFolder) -> ForecastSession | None:
    """Return the run's integer file, ready to forecast; None where there is none.

    Raises:
        OnnxFileError: the file is damaged.
    """
    file = folder.integer_file
    return ForecastSession(file, threads=1) if file.is_file() else None


def forecasts_of(file: ForecastSession | None) -> FileForecasts | None:
    """Return an exported file as a report takes it; None for none."""
    if file is None:
        return None

    def forecast(windows: Batch) -> torch.Tensor:
        inputs = window_inputs(windows, torch.arange(len(windows.target)), file.metadata)
        return torch.from_numpy(file.finite_forecast(inputs))

    return FileForecasts(file.path.name, file.metadata.versions, forecast)


def draw_run(folder: RunFolder, path: Path, forecaster: ForecastSession | None) -> Path:
    """Draw the forecast for the middle one of the run's check windows and return the picture's path.

    Args:
        folder: a finished run.
        path: the picture.
        forecaster: the run's integer file; None takes its best torch model.

    Raises:
        RunFolderError: the run folder is damaged, or the picture cannot be written.
    """
    windows = folder.load_check_windows()
    middle = torch.tensor([len(windows.target) // 2])
    one = windows.windows(middle)
    config, schema = folder.load_config(), folder.load_effective_schema()
    label, quantiles = _forecast(folder, one, forecaster)
    history = target_history(schema, one.historical[0])
    draw_forecast(
        path,
        title=f"{schema.target}: forecast of run {folder.name} for a window of the test part",
        unit=schema.target,
        history=history,
        truth=one.target[0].numpy(),
        naive=season_repeated(history, config.model.horizon, folder.load_results().season),
        forecasts={label: quantiles},
        levels=config.model.quantiles,
    )
    return path


def _forecast(folder: RunFolder, one: Batch, forecaster: ForecastSession | None) -> tuple[str, Array]:
    """Return the label and the quantiles [F, Q] of one window."""
    if forecaster is not None:
        inputs = window_inputs(one, torch.tensor([0]), forecaster.metadata)
        return f"INT{forecaster.metadata.bits}", cast(Array, forecaster.forecast(inputs)[0])
    quantized = folder.has_qat_weights
    model = folder.load_qat_model() if quantized else folder.load_fp32_model()
    scaling = folder.load_preprocessing().scaling()
    with torch.no_grad():
        raw = raw_quantiles(model, scaling, one)
    return "QAT" if quantized else "FP32", cast(Array, raw[0].numpy())
