"""A backtest: forecasts of several models from the same rolling origins, scored per step, per series and overall.

Legend: B windows of a batch, F horizon, Q quantiles, S series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from qat_tft import ranks
from qat_tft.data.window_values import require_values
from qat_tft.data.windows import Batch, Windows
from qat_tft.errors import DataError
from qat_tft.evaluation.forecast_table import MODEL_COLUMN, ForecastFile, ForecastRows
from qat_tft.evaluation.scores import Scores, Tally

ForecastFunction = Callable[[Batch, Tensor], Tensor]
"""Raw quantiles [B, F, Q] of a batch of windows; the second argument holds the rows of their first targets, [B]."""
Track = Callable[[Iterable[Tensor], int], Iterable[Tensor]]
"""Passes on some batches while it shows how far they are; the second argument is their number."""


@dataclass(frozen=True)
class ModelScores:
    """What one model scored: over everything, per horizon step [F] and per series of the panel [S]."""

    overall: Scores
    steps: list[Scores]
    series: list[Scores]


@dataclass(frozen=True)
class RollingOrigins:
    """The windows of a backtest and what their forecasts are measured by.

    Attributes:
        windows: of the span.
        indices: int64, the windows that are forecast, ascending.
        levels: quantiles, ascending.
        scale: float64 [S], what errors of each series are scaled by (`in_sample_error`).
        batch_size: windows forecast at once; nothing else of the forecasts stays in memory.
    """

    windows: Windows
    indices: Tensor
    levels: tuple[float, ...]
    scale: Tensor
    batch_size: int

    def score(
        self,
        forecasts: Mapping[str, ForecastFunction],
        *,
        rows: ForecastRows | None = None,
        out: ForecastFile | None = None,
        track: Track = lambda batches, _: batches,
    ) -> dict[str, ModelScores]:
        """Let every model forecast every window.

        Args:
            forecasts: name of a model to what forecasts for it.
            rows: names the rows of the file; None without `out`.
            out: receives one row per origin, series, step and model: the columns of `ForecastRows.table`, the
                target under its own name and ``forecast_model``.
            track: shows progress.

        Raises:
            DataError: a value that a model reads is missing, a forecast is not finite, or the file cannot be written.
        """
        tallies = {name: self._tallies() for name in forecasts}
        batches = self.indices.split(self.batch_size)
        for indices, forecast in zip(track(batches, len(batches)), self._forecasts(forecasts, batches), strict=True):
            targets, series = self.windows.target_rows(indices), self.windows.series_of(indices)
            target = self.windows.panel.target[targets]
            for name, quantiles in forecast.items():
                self._count(tallies[name], series, quantiles, target)
                if rows is not None and out is not None:
                    out.add(self._table(rows, name, series, targets, quantiles, target))
        return {
            name: ModelScores(steps.overall(), steps.scores(), series.scores())
            for name, (steps, series) in tallies.items()
        }

    def _forecasts(
        self, forecasts: Mapping[str, ForecastFunction], batches: Sequence[Tensor]
    ) -> Iterator[dict[str, Tensor]]:
        """Yield what each model forecasts for one batch after the other; several ranks take one batch each in turn."""
        for first in range(0, len(batches), ranks.world()):
            turn = batches[first : first + ranks.world()]
            with ranks.together():
                own = self._forecast(forecasts, turn[ranks.rank()]) if ranks.rank() < len(turn) else {}
            if ranks.world() == 1:
                yield own
                continue
            sizes = [len(indices) for indices in turn]
            wholes = ranks.joined([*own.values()], sizes + [0] * (ranks.world() - len(sizes)))
            for each in zip(*(whole.split(sizes) for whole in wholes), strict=True):
                yield dict(zip(forecasts, each, strict=True))

    def _forecast(self, forecasts: Mapping[str, ForecastFunction], indices: Tensor) -> dict[str, Tensor]:
        batch = self.windows[indices]
        targets, series = self.windows.target_rows(indices), self.windows.series_of(indices)
        require_values(self.windows.panel, batch, targets[:, 0] - self.windows.history)
        found = {}
        for name, forecast in forecasts.items():
            found[name] = forecast(batch, targets[:, 0]).detach().cpu()
            self._require_finite(name, found[name], targets, series)
        return found

    def _tallies(self) -> tuple[Tally, Tally]:
        cells = self.windows.horizon, len(self.windows.panel.series_ids)
        return Tally(cells[0], self.levels), Tally(cells[1], self.levels)

    def _count(self, tallies: tuple[Tally, Tally], series: Tensor, quantiles: Tensor, target: Tensor) -> None:
        horizon = target.shape[1]
        steps = torch.arange(horizon).repeat(len(target))
        owners = series.repeat_interleave(horizon)
        for tally, cells in zip(tallies, (steps, owners), strict=True):
            tally.add(cells, quantiles.flatten(0, 1), target.flatten(), self.scale[owners])

    def _require_finite(self, name: str, quantiles: Tensor, targets: Tensor, series: Tensor) -> None:
        broken = torch.nonzero(~torch.isfinite(quantiles).all(-1).all(-1)).flatten()
        if not len(broken):
            return
        panel, first = self.windows.panel, int(broken[0])
        raise DataError(
            f"the forecast of {name} is not finite for {panel.series_name(int(series[first]))} from "
            f"{panel.time_text(int(panel.time[targets[first, 0]]))} onward",
            where=panel.source,
            next_step="Look for extreme values in the rows before it.",
        )

    def _table(
        self, rows: ForecastRows, name: str, series: Tensor, targets: Tensor, quantiles: Tensor, target: Tensor
    ) -> pa.Table:
        actual = pa.array(target.flatten().numpy(), from_pandas=True)  # a missing target becomes a null
        more = {MODEL_COLUMN: pa.repeat(name, len(actual)), rows.panel.schema.target: actual}
        return rows.table(series.numpy(), targets[:, 0].numpy() - 1, quantiles.numpy(), self.levels, more)
