"""The same windows through torch and through onnxruntime, at several batch sizes and optimization levels.

N windows, P horizon, Q quantiles.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.data.scaling import Scaling
from qat_tft.data.transform import TargetTransform
from qat_tft.data.windows import Batch
from qat_tft.errors import DataError, RunFolderError
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import OUTPUT, SERIES_INPUT, ModelMetadata
from qat_tft.export.verify.measures import spread_order
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Group

LARGE_BATCH = 64
SMALL_BATCHES = (1, 3)
_SMALL_BATCH_ROWS = 6
_EXTREME = np.float32(100.0)  # how much larger than real values the batch mates are made that must not matter

Array = npt.NDArray[np.float32]
Inputs = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Comparison:
    """Raw forecasts [N, P, Q] of the same windows by everyone concerned.

    Attributes:
        reference: of the torch model that the file was made from; fp32: of the FP32 model.
        file: of the file at batch 64, by how onnxruntime ran it; the first is what users run.
        small: of the file, run in that first way, for the first few windows, by smaller batch size.
        batch_mates_change: largest change of a window's raw forecast when its batch mates are replaced.
        explanations: name of each output besides the quantiles to the weights of the reference and of the file, run as
            users do, for the first windows; empty where the file has none.
        target: raw, [N, P].
        units: turn forecasts into what the network put out.
    """

    reference: Array
    fp32: Array
    file: Mapping[str, Array]
    small: Mapping[int, Array]
    batch_mates_change: float
    explanations: Mapping[str, tuple[Array, Array]]
    target: Tensor
    units: "NetworkUnits"

    @property
    def rows(self) -> int:
        """Number of windows compared."""
        return len(self.reference)

    @property
    def first(self) -> Array:
        """Forecasts of the file, run as users do."""
        return next(iter(self.file.values()))


@dataclass(frozen=True)
class NetworkUnits:
    """Turns raw forecasts into the units that the network forecasts in, before a level is added in floating point.

    Errors are measured there: the mean of the data or of the window, or the season before that a seasonal model adds
    to its forecast, is exact whatever the network does, and would make any error look small.

    Attributes:
        center, scale: [N, P]; a forecast, transformed as the target is, is `center + scale * forecast in these units`.
        transform: of the target.
    """

    center: Tensor
    scale: Tensor
    transform: TargetTransform

    @classmethod
    def of(cls, model: TemporalFusionTransformer, scaling: Scaling, windows: Batch) -> "NetworkUnits":
        """The units for some windows: those of the scaled target, of its windows or of its seasonal differences."""
        _, historical, _ = scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)
        center, scale = model.output_units(historical)
        ends = torch.cat([center, center + scale], -1).expand(-1, windows.target.shape[1], -1)
        found = scaling.unstandardize_target(ends, windows.series).double()
        return cls(found[..., 0], found[..., 1] - found[..., 0], scaling.transform)

    def __call__(self, quantiles: Array) -> Array:
        """Raw quantiles [n, P, Q] of the first n windows in these units."""
        return np.asarray(self._in_double(torch.from_numpy(quantiles)), dtype=np.float32)

    def resolution(self, quantiles: Array) -> npt.NDArray[np.float64]:
        """What one unit in the last place of raw quantiles [n, P, Q] of the first n windows is in these units.

        A level that is large against the scale of its window leaves a forecast few digits of its own.
        """
        raw = torch.from_numpy(quantiles).double()
        apart = torch.from_numpy(np.spacing(np.abs(quantiles))).double()
        return np.asarray(np.abs(self._in_double(raw + apart) - self._in_double(raw)))

    def _in_double(self, quantiles: Tensor) -> npt.NDArray[np.float64]:
        count = len(quantiles)
        center, scale = self.center[:count].unsqueeze(-1), self.scale[:count].unsqueeze(-1)
        return np.asarray(((self.transform.apply(quantiles) - center) / scale).numpy())


def compare(sessions: Mapping[str, ForecastSession], run: RunFolder, windows: Batch, seconds: float) -> Comparison:
    """Forecast the run's check windows with everyone concerned.

    Args:
        sessions: of the file, by how onnxruntime runs it; the first as users do.
        run: the run that it was exported from.
        windows: the run's check windows.
        seconds: after about this time no further block of 64 windows is begun; the first always is.

    Raises:
        RunFolderError: the run folder is damaged or holds no check windows.
    """
    if not len(windows.target):
        raise RunFolderError("the run holds no check windows", where=str(run.path), next_step="Train again")
    file = next(iter(sessions.values()))
    scaling = run.load_preprocessing().scaling()
    fp32_model = run.load_fp32_model()
    fp32, reference = _torch_models(file.metadata, run, fp32_model, scaling)
    order = torch.from_numpy(spread_order(len(windows.target)))
    answers: list[tuple[Array, ...]] = []
    end = time.monotonic() + seconds
    for rows in order.split(LARGE_BATCH):
        if answers and time.monotonic() > end:
            break
        inputs = window_inputs(windows, rows.repeat(LARGE_BATCH)[:LARGE_BATCH], file.metadata)
        everyone: list[Callable[[Inputs], Array]] = [reference, fp32, *(one.forecast for one in sessions.values())]
        answers.append(tuple(forecast(inputs)[: len(rows)] for forecast in everyone))
    by_model = [np.concatenate(blocks) for blocks in zip(*answers, strict=True)]
    compared = order[: len(by_model[0])]
    return Comparison(
        reference=by_model[0],
        fp32=by_model[1],
        file=dict(zip(sessions, by_model[2:], strict=True)),
        small={size: _in_batches(file, windows, compared, size) for size in SMALL_BATCHES},
        batch_mates_change=_batch_mates_change(file, windows, compared),
        explanations=_explanations(file, reference, window_inputs(windows, compared[:LARGE_BATCH], file.metadata)),
        target=windows.target[compared],
        units=NetworkUnits.of(fp32_model, scaling, windows.windows(compared)),
    )


def window_inputs(windows: Batch, rows: Tensor, metadata: ModelMetadata) -> Inputs:
    """The file's inputs for some rows of raw windows, whose categories are codes already.

    Raises:
        DataError: a code is not finite.
    """
    inputs: Inputs = {}
    for group in metadata.schema.groups:
        values = getattr(windows, group.name)[rows].numpy()
        if group.real:
            inputs[group.real_input] = np.ascontiguousarray(values[..., : len(group.real)])
        if group.category:
            inputs[group.category_input] = _codes(values[..., len(group.real) :], group)
    if metadata.series is not None:
        inputs[SERIES_INPUT] = windows.series[rows].numpy()
    return inputs


def _codes(values: Array, group: Group) -> npt.NDArray[np.int64]:
    finite = np.isfinite(values)
    if not finite.all():
        column = group.category[int(np.argwhere(~finite)[0][-1])]
        raise DataError(
            f"category column '{column}' holds a code that is NaN or infinite",
            allowed="whole numbers from 0",
            next_step="Restore the run folder from a copy, or train again",
        )
    return values.astype(np.int64)


class _TorchForecaster:
    """A torch model that takes and returns what the file does."""

    def __init__(self, forecaster: RawForecaster) -> None:
        self._forecaster = forecaster.eval()

    def __call__(self, inputs: Inputs) -> Array:
        return self.said(inputs)[OUTPUT]

    @torch.no_grad()
    def said(self, inputs: Inputs) -> dict[str, Array]:
        """Quantiles and the weights that explain them, by the name that a file's output has."""
        tensors = [torch.from_numpy(inputs[spec.name]) for spec in self._forecaster.specs]
        return {name: np.asarray(value.numpy()) for name, value in self._forecaster.said(*tensors)._asdict().items()}


def _torch_models(
    metadata: ModelMetadata, run: RunFolder, fp32_model: TemporalFusionTransformer, scaling: Scaling
) -> tuple[_TorchForecaster, _TorchForecaster]:
    fp32 = _TorchForecaster(RawForecaster(fp32_model, scaling, metadata))
    if metadata.kind == "fp32":
        return fp32, fp32
    return fp32, _TorchForecaster(RawForecaster(run.load_qat_model(), scaling, metadata))


def _in_batches(file: ForecastSession, windows: Batch, rows: Tensor, size: int) -> Array:
    few = rows[:_SMALL_BATCH_ROWS]
    parts = [few[start : start + size] for start in range(0, len(few), size)]
    return np.concatenate([file.forecast(window_inputs(windows, part, file.metadata)) for part in parts])


def _explanations(file: ForecastSession, reference: _TorchForecaster, inputs: Inputs) -> dict[str, tuple[Array, Array]]:
    if not file.metadata.explained:
        return {}
    expected, found = reference.said(inputs), file.explain(inputs)
    return {name: (expected[name], weights) for name, weights in found.items() if name != OUTPUT}


def _batch_mates_change(file: ForecastSession, windows: Batch, rows: Tensor) -> float:
    inputs = window_inputs(windows, rows.repeat(3)[:3], file.metadata)
    extreme = {name: array.copy() for name, array in inputs.items()}
    for array in extreme.values():
        if array.dtype == np.float32:
            array[1:] *= _EXTREME
    return float(np.abs(file.forecast(inputs)[0] - file.forecast(extreme)[0]).max())
