"""A backtest of a run: its FP32 and INT8 file beside the naive forecasts, from rolling origins over a span of time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.data.panel import Panel
from qat_tft.data.reading.parquet import ReadingProgress
from qat_tft.data.scaling import Scaling
from qat_tft.data.split import Part, Split
from qat_tft.data.time.season import LAST_VALUE
from qat_tft.data.windows import Batch, Windows
from qat_tft.errors import ConfigError, DataError, some_of
from qat_tft.evaluation.backtest_report import BacktestReport
from qat_tft.evaluation.forecast_table import ForecastFile, ForecastRows
from qat_tft.evaluation.naive import SeasonalNaive, in_sample_error, season_of
from qat_tft.evaluation.names import LAST, NAIVE
from qat_tft.evaluation.rolling_origins import ForecastFunction, ModelScores, RollingOrigins, Track
from qat_tft.evaluation.window_forecasts import even_indices, raw_quantiles
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.runs.data import load_panel_for, split_of
from qat_tft.runs.folder import RunFolder


@dataclass(frozen=True)
class Span:
    """Which origins a backtest rolls over; what is None follows from the run.

    Attributes:
        since: time of the first target; by default where the test part begins.
        until: time that the targets lie before; by default where the test part ends.
        stride: rows from one origin of a series to the next; by default the horizon.
        most: most origins, evenly spaced; by default all.
    """

    since: str | None = None
    until: str | None = None
    stride: int | None = None
    most: int | None = None


def backtest_run(
    run: RunFolder,
    span: Span,
    *,
    files: Sequence[str | Path] = (),
    out: Path | None = None,
    threads: int | None = None,
    track: Track = lambda batches, _: batches,
    reading: ReadingProgress | None = None,
) -> BacktestReport:
    """Forecast from every origin of a span with the models of a run and with the naive forecasts.

    Several ranks share the origins, and rank 0 writes the forecasts.

    Args:
        run: a finished run. Its FP32 and INT8 file where they were exported; without them the models in torch.
        span: the origins.
        files: Parquet files with the columns of the run's schema; by default the data of the run.
        out: Parquet file that keeps every forecast.
        threads: of onnxruntime; by default it decides.
        track: shows progress.
        reading: is told how far reading the rows has come.

    Raises:
        UserError: the run, its files, the data or the span cannot be used, or `out` cannot be written.
    """
    ranks.join("cpu")
    with ranks.together():
        config = run.load_config()
        paths, panel = load_panel_for(run, files, reading=reading)
        setting = _Setting.of(panel, config, span)
    scale = in_sample_error(panel, setting.in_sample, setting.season)
    origins = RollingOrigins(
        setting.windows, setting.indices, config.model.quantiles, scale, config.training.batch_size
    )
    forecasts = {**_models(run, threads), **setting.naive()}
    rows = ForecastRows.of(panel, paths) if out else None
    with ForecastFile(out) if out and ranks.is_first() else nullcontext() as file:
        scores = origins.score(forecasts, rows=rows, out=file, track=track)
    return setting.report(run.name, scores, scale, out)


@dataclass(frozen=True)
class _Setting:
    """What a backtest goes by.

    Attributes:
        config: of the run.
        windows: of the span; those at `indices` are forecast.
        stride: rows from one origin of a series to the next.
        season: rows of one season.
        in_sample: int64 [S], the rows before which naive errors are taken.
        notes: on span and stride.
    """

    config: RunConfig
    windows: Windows
    indices: Tensor
    stride: int
    season: int
    in_sample: Tensor
    notes: tuple[str, ...]

    @classmethod
    def of(cls, panel: Panel, config: RunConfig, span: Span) -> _Setting:
        split, stride = split_of(config.data, panel), span.stride or config.model.horizon
        windows = _windows(panel, config, split, span, stride)
        indices = even_indices(len(windows), span.most or len(windows))
        season = config.data.season or season_of(panel)
        first = int(panel.time[windows.origins(indices) + 1].min())
        in_sample, of_rows = _in_sample(panel, split, first)
        notes = (*_seen(panel, split, first), *of_rows, *_one_phase(stride, season))
        return cls(config, windows, indices, stride, season, in_sample, notes)

    def naive(self) -> dict[str, ForecastFunction]:
        """The naive forecasts, fitted."""
        seasons = {NAIVE: self.season} | ({LAST: LAST_VALUE} if self.season != LAST_VALUE else {})
        panel, horizon, levels = self.windows.panel, self.config.model.horizon, self.config.model.quantiles
        return {
            name: _NaiveForecast(
                SeasonalNaive.fit(panel, self.in_sample, season=rows, horizon=horizon, levels=levels), horizon
            )
            for name, rows in seasons.items()
        }

    def report(self, run: str, scores: dict[str, ModelScores], scale: Tensor, out: Path | None) -> BacktestReport:
        panel = self.windows.panel
        times = panel.time[self.windows.origins(self.indices)]
        places = torch.unique(self.windows.series_of(self.indices)).tolist()
        return BacktestReport(
            run=run,
            source=panel.source,
            first_origin=panel.time_text(int(times.min())),
            last_origin=panel.time_text(int(times.max())),
            stride=self.stride,
            windows=len(self.indices),
            levels=self.config.model.quantiles,
            season=self.season,
            scores=scores,
            series={place: panel.series_name(place) for place in places},
            notes=(*panel.notes, *self.windows.notes, *self.notes, *_unscaled(panel, scale, places)),
            out=out,
        )


def _windows(panel: Panel, config: RunConfig, split: Split, span: Span, stride: int) -> Windows:
    since = split.test_from if span.since is None else _instant(panel, "--from", span.since)
    until = split.test_until if span.until is None else _instant(panel, "--until", span.until)
    if since >= until:
        raise ConfigError(
            f"--from {panel.time_text(since)} is not before --until {panel.time_text(until)}",
            where=panel.source,
            allowed=f"times from {panel.time_text(int(panel.time.min()))} to {panel.time_text(int(panel.time.max()))}",
        )
    try:
        return Windows(
            panel,
            history=config.model.history,
            horizon=config.model.horizon,
            split=Split(since, since, until),
            part=Part.TEST,
            stride=stride,
        )
    except DataError as problem:  # its next step is about training
        next_step = "Move --from or --until, or choose other data with --parquet-file."
        raise DataError(problem.what, where=problem.where, allowed=problem.allowed, next_step=next_step) from None


def _instant(panel: Panel, option: str, text: str) -> int:
    try:
        return panel.parse_time(text)
    except ValueError:
        first, last = panel.time_text(int(panel.time.min())), panel.time_text(int(panel.time.max()))
        raise ConfigError(
            f"{option} {text} is not a time of this data", where=panel.source, allowed=f"such as {first} to {last}"
        ) from None


def _in_sample(panel: Panel, split: Split, first: int) -> tuple[Tensor, list[str]]:
    """Return the row after the last training row of each series; without any, the row of the first target."""
    ends = panel.first_at(panel.series_start, split.validation_from)
    if bool((ends > panel.series_start[:-1]).any()):
        return ends, []
    note = "These data have no training rows of the run: naive errors come from the rows before the span."
    return panel.first_at(panel.series_start, first), [note]


def _seen(panel: Panel, split: Split, first: int) -> list[str]:
    if first >= split.test_from:
        return []
    begin = panel.time_text(split.test_from)
    return [f"The span begins before the test part ({begin}): the models have seen rows of it."]


def _unscaled(panel: Panel, scale: Tensor, places: list[int]) -> list[str]:
    without = [panel.series_name(place) for place in places if not float(scale[place]) > 0]
    if not without:
        return []
    return [f"MASE leaves out {len(without)} series without a change on training rows: {some_of(without)}."]


def _one_phase(stride: int, season: int) -> list[str]:
    if season == LAST_VALUE or stride % season:
        return []
    return [
        f"With a stride of {stride} rows, all origins of a series fall on the same point of its season "
        f"of {season} rows: --stride {stride + 1} would cover the whole season."
    ]


def _models(run: RunFolder, threads: int | None) -> dict[str, ForecastFunction]:
    models: dict[str, ForecastFunction] = {}
    scaling = run.load_preprocessing().scaling()
    if (run.onnx_file("fp32")).is_file():
        models["fp32"] = _FileForecast(run.onnx_file("fp32"), threads)
    else:
        models["fp32"] = _TorchForecast(run.load_fp32_model(), scaling)
    if run.integer_file.is_file():
        models["int8"] = _FileForecast(run.integer_file, threads)
    elif run.has_qat_weights:
        models["qat"] = _TorchForecast(run.load_qat_model(), scaling)
    return models


@dataclass(frozen=True)
class _NaiveForecast:
    naive: SeasonalNaive
    horizon: int

    def __call__(self, batch: Batch, first_rows: Tensor) -> Tensor:
        return self.naive.forecast(first_rows, self.horizon)


class _FileForecast:
    def __init__(self, path: Path, threads: int | None) -> None:
        self._file = ForecastSession(path, threads=threads)

    def __call__(self, batch: Batch, first_rows: Tensor) -> Tensor:
        inputs = window_inputs(batch, torch.arange(len(batch.target)), self._file.metadata)
        return torch.from_numpy(self._file.finite_forecast(inputs))


@dataclass(frozen=True)
class _TorchForecast:
    model: nn.Module
    scaling: Scaling

    @torch.no_grad()
    def __call__(self, batch: Batch, first_rows: Tensor) -> Tensor:
        return raw_quantiles(self.model, self.scaling, batch)
