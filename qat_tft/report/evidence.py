"""What the models of a run say about windows of its test part: forecasts, and the weights that explain them.

Legend: N windows, T history, F horizon, S = T + F, Q quantiles, V variables of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qat_tft.data.panel import name_series
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.evaluation.names import integer_name
from qat_tft.evaluation.window_forecasts import evaluating, even_indices
from qat_tft.evaluation.window_history import season_repeated, target_history
from qat_tft.model.tft import Forecast, steps_present
from qat_tft.runs.build import variables_by_group
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import GroupName, Schema

MOST_WINDOWS = 128
"""How many windows a report looks at: evenly spaced ones where a run has kept more."""
_BATCH = 32


@dataclass(frozen=True)
class ModelView:
    """What one model says of the windows.

    Attributes:
        kind: "fp32" or "int8", which is how a report colours it.
        label: what it is called.
        quantiles: [N, F, Q] in the target's own unit.
        selection: group to [N, V], the mean of its selection weights over the steps that are no padding.
        attention: [N, S], the mean over the forecast steps.
    """

    kind: str
    label: str
    quantiles: Tensor
    selection: dict[GroupName, Tensor]
    attention: Tensor


@dataclass(frozen=True)
class FileForecasts:
    """The integer file of a run, as what forecasts.

    Attributes:
        name: of the file.
        versions: package to the version that wrote it.
        forecast: raw quantiles [B, F, Q] of raw windows, in a runtime for ONNX files.
    """

    name: str
    versions: Mapping[str, str]
    forecast: Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Evidence:
    """The windows of a report and what is said of them.

    Attributes:
        windows: raw.
        kept: how many windows the run has kept, of which these are some.
        series: name of each window's series.
        simple: [N, F], the last season of each window repeated.
        views: FP32 first, then the quantization-aware model where there is one: the quantiles of its file where that
            was exported, and the weights of the model in torch.
        variables: group to the names of its variables, in the order of the weights.
        low_bits: layer to the bits of its weight, where they are fewer than eight.
    """

    windows: Batch
    kept: int
    series: tuple[str, ...]
    simple: Tensor
    views: tuple[ModelView, ...]
    variables: dict[GroupName, tuple[str, ...]]
    low_bits: dict[str, int]

    @property
    def last(self) -> ModelView:
        """The view of the last model that was trained."""
        return self.views[-1]


def gather_evidence(
    run: RunFolder, season: int, most: int = MOST_WINDOWS, file: FileForecasts | None = None
) -> Evidence:
    """Run the models of a finished run over windows that it has kept.

    Args:
        run: finished.
        season: rows of one season of the simple forecast.
        most: windows to look at.
        file: the run's integer file; without it the quantization-aware model forecasts in torch.

    Raises:
        RunFolderError: the run folder is damaged.
        UserError: the file is.
    """
    kept = run.load_check_windows()
    windows = kept.windows(even_indices(len(kept.target), most))
    preprocessing, schema = run.load_preprocessing(), run.load_effective_schema()
    scaling = preprocessing.scaling()
    views = [_view("fp32", "FP32", run.load_fp32_model(), scaling, windows, schema)]
    low_bits: dict[str, int] = {}
    if run.has_qat_weights:
        quantized = run.load_qat_model()
        low_bits = quantized.low_bits()
        view = _view("int8", integer_name(run.weight_bits), quantized, scaling, windows, schema)
        views.append(view if file is None else replace(view, quantiles=_forecast(file, windows)))
    horizon = windows.target.shape[1]
    histories = (target_history(schema, one) for one in windows.historical)
    return Evidence(
        windows=windows,
        kept=len(kept.target),
        series=tuple(_series_name(schema, preprocessing.series, code) for code in windows.series.tolist()),
        simple=torch.stack([torch.tensor(season_repeated(one, horizon, season)) for one in histories]),
        views=tuple(views),
        variables=variables_by_group(run.load_config().model, schema),
        low_bits=low_bits,
    )


def explained(model: nn.Module, scaling: Scaling, batch: Batch) -> Forecast:
    """Return what a model says of raw windows: quantiles in the target's unit, and weights."""
    forecast: Forecast = model(*scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series))
    return forecast._replace(quantiles=scaling.unscale_target(forecast.quantiles, batch.series))


def _view(kind: str, label: str, model: nn.Module, scaling: Scaling, windows: Batch, schema: Schema) -> ModelView:
    parts = []
    with evaluating(model):
        for first in range(0, len(windows.target), _BATCH):
            batch = windows.windows(slice(first, first + _BATCH))
            parts.append(condensed(explained(model, scaling, batch), present_steps(batch, schema)))
    return view_of(kind, label, parts)


def _forecast(file: FileForecasts, windows: Batch) -> Tensor:
    batches = torch.arange(len(windows.target)).split(_BATCH)
    return torch.cat([file.forecast(windows.windows(some)) for some in batches])


def view_of(kind: str, label: str, parts: Sequence[tuple[Tensor, ...]]) -> ModelView:
    """Return what a model says of all batches, from what `condensed` gives for each."""
    quantiles, static, historical, future, attention = (torch.cat(part) for part in zip(*parts, strict=True))
    selection: dict[GroupName, Tensor] = {"static": static, "historical": historical, "future": future}
    return ModelView(kind, label, quantiles, selection, attention)


def present_steps(batch: Batch, schema: Schema) -> Tensor:
    """Return bool [B, T]: which steps of the histories are no padding."""
    place = schema.group("historical").present
    every = torch.ones(batch.historical.shape[:2], dtype=torch.bool)
    return every if place is None else steps_present(batch.historical, place)


def condensed(said: Forecast, present: Tensor) -> tuple[Tensor, ...]:
    """Return quantiles, the weights of the three groups and the attention, each a mean over its steps.

    `present` is bool [B, T]: steps that are padding count nowhere.
    """
    there = present.float()
    historical = (said.historical_weights * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True)
    return said.quantiles, said.static_weights, historical, said.future_weights.mean(1), said.attention.mean(1)


def _series_name(schema: Schema, known: tuple[tuple[str, ...], ...], code: int) -> str:
    return name_series(schema.id, known[code - 1]) if code else "a series not seen in training"
