"""The weights that explain forecasts, computed by onnxruntime from a file that was exported with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qat_tft.data.reading.files.find import Paths
from qat_tft.data.transform import TargetTransform
from qat_tft.data.windows import Batch, Windows
from qat_tft.export.inference.predict import encoding_of, read_rows
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.model.tft import Forecast


def windows_for(file: ForecastSession, paths: Paths) -> Windows:
    """Return every window of the data that has a target to forecast, read as the file's training read them.

    Raises:
        UserError: the data cannot be read, lack a column, or no series is long enough.
    """
    metadata = file.metadata
    rows = read_rows(metadata, paths)
    TargetTransform(metadata.target_transform).require_domain(rows)
    return Windows(encoding_of(metadata).encode(rows), history=metadata.history, horizon=metadata.horizon)


@dataclass(frozen=True)
class FileModel:
    """A file as what says something of raw windows.

    Attributes:
        file: with explanations.
    """

    file: ForecastSession

    def __call__(self, batch: Batch) -> Forecast:
        """Return raw quantiles and weights of raw windows; a group without variables has none, [B, ..., 0].

        Raises:
            DataError: values that are not finite.
            OnnxFileError: the file has no explanations, or its graph does not fit together.
        """
        found = self.file.explain(window_inputs(batch, torch.arange(len(batch.target)), self.file.metadata))
        empty = {
            "static_weights": batch.static[:, :0],
            "historical_weights": batch.historical[..., :0],
            "future_weights": batch.future[..., :0],
        }
        return Forecast(**{**empty, **{name: torch.from_numpy(values) for name, values in found.items()}})
