"""Forecasts of every series of a Parquet file, computed by onnxruntime from an exported file.

Reading goes through the same code as in training, which keeps its rows in torch tensors; the model is the file.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.data.encoding import Encoding
from qat_tft.data.panel import Panel
from qat_tft.data.reading.files.find import Paths
from qat_tft.data.reading.future import can_extend, with_future_rows
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.reading.source import open_source
from qat_tft.data.transform import TargetTransform
from qat_tft.data.vocabulary import Vocabulary
from qat_tft.data.window_values import require_values
from qat_tft.data.windows import batch_from
from qat_tft.evaluation.forecast_table import ForecastRows
from qat_tft.export.inference.far_values import FarValues
from qat_tft.export.inference.origins import Needs, find_origins
from qat_tft.export.inference.predict_report import Predictions
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import ModelMetadata
from qat_tft.export.verify.compare import window_inputs

_BATCH = 64


def forecast_parquet(
    file: ForecastSession, paths: Paths, *, origin: str | None = None, future: Paths | None = None
) -> Predictions:
    """Forecast every series of the data from one origin each.

    Args:
        file: the exported model.
        paths: a Parquet file, a folder of such files, a URL of either or a list of them, with the columns that the
            model was trained on. The last rows of a series may lack the target and the observed columns: these are the
            steps to forecast, whose known columns the model needs. Known columns that the calendar gives need no rows.
        origin: time up to which the forecasts may know rows. By default, per series, that of the last row with a
            target; of an earlier one where fewer than ``horizon`` rows follow it.
        future: a Parquet file, a folder or a URL with the steps to forecast: the time, the id and the known columns.
            Then a series without them is skipped, and forecast from no earlier origin.

    Raises:
        DataError, SchemaError: the data cannot be read, lack a column, or no series is long enough.
    """
    metadata = file.metadata
    read = read_rows(metadata, paths, future)
    appended = can_extend(read)
    rows = with_future_rows(read, metadata.horizon) if appended else read
    needs = Needs(metadata.preparation.min_history or metadata.history, metadata.horizon, appended)
    origins = find_origins(rows, needs, at=origin, strict=future is not None)
    needed = _rows_of_windows(rows, origins.rows, metadata)
    TargetTransform(metadata.target_transform).require_domain(rows, needed)
    panel = encoding_of(metadata).encode(rows, needed)
    far = FarValues(metadata)
    quantiles = np.concatenate([_forecast(file, panel, some, far) for some in origins.rows.split(_BATCH)])
    table = ForecastRows.of(panel, paths).table(
        origins.series.numpy(), origins.rows.numpy(), quantiles, metadata.quantiles
    )
    return Predictions(table, len(origins.rows), (*panel.notes, *origins.notes, *far.notes()))


def read_rows(metadata: ModelMetadata, paths: Paths, future: Paths | None = None) -> Panel:
    """Return rows as a file's training read them, categories still in words; arguments and errors of forecasting."""
    declared = metadata.preparation.source_schema(metadata.schema)
    if future is None:
        return read_panel(paths, declared, metadata.preparation, checked=False)
    coming = open_source(future)
    for column in (*declared.id, declared.time, *declared.known.names):
        coming.require(column)
    return read_panel(paths, declared, metadata.preparation, checked=False, future=future)


def _rows_of_windows(panel: Panel, origins: Tensor, metadata: ModelMetadata) -> Tensor:
    """Every row that a window from one of these origins reads, ascending."""
    rows = origins.unsqueeze(1) + torch.arange(1 - metadata.history, metadata.horizon + 1)
    begin = panel.stretches[panel.stretch_at(origins)].unsqueeze(1)  # histories may be padded before it
    every: Tensor = torch.maximum(rows, begin).unique()
    return every


def encoding_of(metadata: ModelMetadata) -> Encoding:
    """Return what a file knows of categories, series and missing values."""
    vocabularies = {column: Vocabulary(column, values) for column, values in metadata.vocabularies.items()}
    return Encoding(vocabularies, metadata.series, metadata.series is not None, metadata.fills)


def _forecast(file: ForecastSession, panel: Panel, origins: Tensor, far: FarValues) -> npt.NDArray[np.float32]:
    history, horizon = file.metadata.history, file.metadata.horizon
    first = origins - history + 1
    batch = batch_from(panel, first, history, horizon)
    require_values(panel, batch, first)
    far.count(batch)
    return file.finite_forecast(window_inputs(batch, torch.arange(len(origins)), file.metadata))
