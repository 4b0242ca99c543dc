"""Explanations of any windows: selection weights and attention of whatever says them, gathered and written.

Source: Lim et al. (2021), section 7. Legend: B windows of a batch, N windows, C weights of one window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from qat_tft.data.reading.files.find import Paths
from qat_tft.data.window_values import require_values
from qat_tft.data.windows import Batch, Windows
from qat_tft.evaluation.forecast_table import ForecastFile, ForecastRows
from qat_tft.evaluation.window_forecasts import even_indices
from qat_tft.model.tft import Forecast
from qat_tft.report.evidence import condensed, present_steps, view_of
from qat_tft.report.explanations import TITLES, Explanations, GroupImportance, explain
from qat_tft.report.weights import WeightCells, id_columns
from qat_tft.schema import GroupName

MOST_WINDOWS = 512
"""How many windows are explained unless more are asked for."""
_MOST_WEIGHTS = 2**27  # of all windows together, where they are aggregated: half a GiB
_BATCH = 32

Detail = Literal["all", "series", "windows"]
"""Over what weights are aggregated: all windows, those of each series, or nothing."""


@dataclass(frozen=True)
class Explained:
    """What is explained.

    Attributes:
        title: what people call it, such as "FP32 model of run mine".
        model: what the file of weights calls it: "fp32", "qat" or "int8".
        windows: raw.
        paths: the files that they were read from.
        variables: of each group, in the order of its weights.
        says: forecast and weights of raw windows.
        run: name of the run; None for a file by itself.
        file: the ONNX file; None for a model of a run.
    """

    title: str
    model: str
    windows: Windows
    paths: Paths
    variables: Mapping[GroupName, tuple[str, ...]]
    says: Callable[[Batch], Forecast]
    run: str | None = None
    file: Path | None = None


@dataclass(frozen=True)
class ExplanationReport:
    """What `qat-tft explain` found.

    Attributes:
        title: what was explained, such as "FP32 model of run mine".
        run: name of the run; None where a file was explained by itself.
        file: the ONNX file; None where a model of a run was explained.
        model: "fp32", "qat", or "int8" of a file.
        source: the data.
        windows: how many windows were explained, of how many there are.
        explanations: aggregated over all of them.
        out: the Parquet file, None without one.
        notes: what a user should know about the data.
    """

    title: str
    run: str | None
    file: Path | None
    model: str
    source: str
    windows: tuple[int, int]
    explanations: Explanations
    out: Path | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        attention = self.explanations.attention[0]
        return {
            "run": self.run,
            "file": str(self.file) if self.file else None,
            "model": self.model,
            "source": self.source,
            "windows": self.windows[0],
            "windows_of_the_data": self.windows[1],
            "selection": {
                group.group: {
                    one.variable: {"mean": spread.mean, "q0.1": spread.low, "q0.9": spread.high}
                    for one in group.variables
                    for spread in one.weights.values()
                }
                for group in self.explanations.groups
            },
            "attention": [
                {"position": lag, "mean": mean, "q0.1": low, "q0.9": high}
                for lag, mean, low, high in zip(
                    attention.lags, attention.mean, attention.low, attention.high, strict=True
                )
            ],
            "out": str(self.out) if self.out else None,
            "notes": [*self.notes],
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return a table of each group's variables, and sentences on attention, windows and the file."""
        return [*map(self._group, self.explanations.groups), *(Text(line) for line in self._lines())]

    def _group(self, group: GroupImportance) -> Table:
        table = Table("variable", "mean", "P10", "P90", title=f"{TITLES[group.group]}: selection weight over windows")
        for one in group.variables:
            (spread,) = one.weights.values()
            table.add_row(one.variable, *(f"{figure:.1%}" for figure in (spread.mean, spread.low, spread.high)))
        for column in table.columns[1:]:
            column.justify = "right"
        return table

    def _lines(self) -> list[str]:
        steps = ", ".join(str(lag) for lag in self.explanations.attention[0].highest())
        used, there = self.windows
        return [
            f"Of the history, the steps {steps} get most attention; 0 is the last one known.",
            f"{self.title} over {used:,} of {there:,} windows of {self.source}.",
            *self.notes,
            *([f"Weights: {self.out}"] if self.out else []),
        ]


def explain_windows(
    explained: Explained, *, detail: Detail = "all", most: int = MOST_WINDOWS, out: Path | None = None
) -> ExplanationReport:
    """Explain forecasts of windows.

    Args:
        explained: windows, and what says something of them.
        detail: over what the weights in `out` are aggregated.
        most: most windows, evenly spaced; fewer where their weights would not fit into memory together.
        out: Parquet file for the weights.

    Raises:
        UserError: the windows cannot be used, or `out` cannot be written.
    """
    windows = explained.windows
    cells = WeightCells.of(explained.variables, history=windows.history, horizon=windows.horizon)
    held = most if detail == "windows" else max(1, min(most, _MOST_WEIGHTS // cells.columns.num_rows))
    indices = even_indices(len(windows), held)
    job = _Job(explained, cells)
    with ForecastFile(out, "explanations") if out else nullcontext() as file:
        rows = ForecastRows.of(windows.panel, explained.paths) if out else None
        parts, weights = job.run_over(indices, rows, file if detail == "windows" else None, keep=bool(out))
        if rows is not None and file is not None and detail != "windows":
            job.add_aggregates(rows, file, indices, weights, by_series=detail == "series")
    view = view_of(explained.model, explained.model, parts)
    return ExplanationReport(
        title=explained.title,
        run=explained.run,
        file=explained.file,
        model=explained.model,
        source=windows.panel.source,
        windows=(len(indices), len(windows)),
        explanations=explain([view], explained.variables, windows.history),
        out=out,
        notes=(*windows.panel.notes, *windows.notes),
    )


@dataclass(frozen=True)
class _Job:
    """What runs over the windows."""

    explained: Explained
    cells: WeightCells

    def run_over(
        self, indices: Tensor, rows: ForecastRows | None, file: ForecastFile | None, *, keep: bool
    ) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        """Return what each batch says, condensed, and all weights [N, C]; none where they go into the file at once."""
        windows, kind = self.explained.windows, self.explained.model
        parts, kept = [], [torch.empty(0, self.cells.columns.num_rows)]
        for some in indices.split(_BATCH):
            batch, origins = windows[some], windows.origins(some)
            require_values(windows.panel, batch, origins + 1 - windows.history)
            said, present = self.explained.says(batch), present_steps(batch, windows.panel.schema)
            parts.append(condensed(said, present))
            if rows is not None and file is not None:
                weights = self.cells.weights(said, present)
                series = windows.series_of(some).numpy()
                file.add(self.cells.every(rows, kind, series, origins.numpy(), weights))
            elif keep:
                kept.append(self.cells.weights(said, present))
        return parts, torch.cat(kept)

    def add_aggregates(
        self, rows: ForecastRows, file: ForecastFile, indices: Tensor, weights: Tensor, *, by_series: bool
    ) -> None:
        """Write the weights [N, C] of the windows at `indices` aggregated over all of them, or series by series."""
        kind = self.explained.model
        if not by_series:
            file.add(self.cells.aggregated(kind, weights, {}))
            return
        series = self.explained.windows.series_of(indices)
        for one in torch.unique(series):
            ids = id_columns(rows, one.unsqueeze(0).numpy())
            file.add(self.cells.aggregated(kind, weights[series == one], ids))
