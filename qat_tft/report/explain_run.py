"""The explanations of a run: its selection weights and its attention over windows of any rows.

Source: Lim et al. (2021), section 7. Legend: B windows of a batch, N windows, C weights of one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from qat_tft.config.run import RunConfig
from qat_tft.data.panel import Panel
from qat_tft.data.split import Part
from qat_tft.data.window_values import require_values
from qat_tft.data.windows import Windows
from qat_tft.errors import RunFolderError
from qat_tft.evaluation.forecast_table import ForecastFile, ForecastRows
from qat_tft.evaluation.names import TITLES as MODEL_TITLES
from qat_tft.evaluation.window_forecasts import evaluating, even_indices
from qat_tft.report.evidence import GROUPS, condensed, explained, present_steps, variables_of, view_of
from qat_tft.report.explanations import TITLES, Explanations, GroupImportance, explain
from qat_tft.report.weights import WeightCells, id_columns
from qat_tft.runs.data import load_panel_for, split_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind

MOST_WINDOWS = 512
"""How many windows are explained unless more are asked for."""
_MOST_WEIGHTS = 2**27  # of all windows together, where they are aggregated: half a GiB
_BATCH = 32

Detail = Literal["all", "series", "windows"]
"""Over what weights are aggregated: all windows, those of each series, or nothing."""


@dataclass(frozen=True)
class ExplanationReport:
    """What `qat-tft explain` found.

    Attributes:
        run: name of the run.
        model: "fp32" or "qat".
        source: the data.
        windows: how many windows were explained, of how many there are.
        explanations: aggregated over all of them.
        out: the Parquet file, None without one.
        notes: what a user should know about the data.
    """

    run: str
    model: WeightsKind
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
        model = MODEL_TITLES[self.model]
        return [
            f"Of the history, the steps {steps} get most attention; 0 is the last one known.",
            f"{model} model of run {self.run} over {used:,} of {there:,} windows of {self.source}.",
            *self.notes,
            *([f"Weights: {self.out}"] if self.out else []),
        ]


def explain_run(
    run: RunFolder,
    *,
    files: Sequence[str | Path] = (),
    model: WeightsKind | None = None,
    detail: Detail = "all",
    most: int = MOST_WINDOWS,
    out: Path | None = None,
) -> ExplanationReport:
    """Explain forecasts of a run, in torch.

    Args:
        run: finished.
        files: Parquet files with the columns of the run; by default its own data, of which the test part counts.
        model: whose weights; by default those of the last model that was trained.
        detail: over what the file's weights are aggregated.
        most: most windows, evenly spaced; fewer where their weights would not fit into memory together.
        out: Parquet file for the weights.

    Raises:
        UserError: the run, its files or the data cannot be used, it has no such model, or `out` cannot be written.
    """
    config = run.load_config()
    kind: WeightsKind = model or ("qat" if run.has_qat_weights else "fp32")
    explaining = _load(run, kind)
    paths, panel = load_panel_for(run, files)
    windows = _windows(config, panel, whole=bool(files))
    variables = {name: variables_of(config.model, panel.schema, name) for name in GROUPS}
    cells = WeightCells.of(variables, history=config.model.history, horizon=config.model.horizon)
    held = most if detail == "windows" else max(1, min(most, _MOST_WEIGHTS // cells.columns.num_rows))
    indices = even_indices(len(windows), held)
    job = _Job(windows, explaining, run, kind, cells)
    with ForecastFile(out, "explanations") if out else nullcontext() as file:
        rows = ForecastRows.of(panel, paths) if out else None
        parts, weights = job.run_over(indices, rows, file if detail == "windows" else None, keep=bool(out))
        if rows is not None and file is not None and detail != "windows":
            job.add_aggregates(rows, file, indices, weights, by_series=detail == "series")
    return ExplanationReport(
        run=run.name,
        model=kind,
        source=panel.source,
        windows=(len(indices), len(windows)),
        explanations=explain([view_of(kind, kind, parts)], variables, config.model.history),
        out=out,
        notes=(*panel.notes, *windows.notes),
    )


def _windows(config: RunConfig, panel: Panel, *, whole: bool) -> Windows:
    """Return the windows of a whole panel, or of its test part."""
    history, horizon = config.model.history, config.model.horizon
    if whole:
        return Windows(panel, history=history, horizon=horizon)
    return Windows(panel, history=history, horizon=horizon, split=split_of(config.data, panel), part=Part.TEST)


def _load(run: RunFolder, kind: WeightsKind) -> nn.Module:
    if kind == "qat" and not run.has_qat_weights:
        raise RunFolderError(
            "this run has no quantization-aware model",
            where=str(run.path),
            next_step=f"Explain --model fp32, or make one with `qat-tft quantize {run.name}`",
        )
    return run.load_qat_model() if kind == "qat" else run.load_fp32_model()


@dataclass(frozen=True)
class _Job:
    """What runs over the windows."""

    windows: Windows
    model: nn.Module
    run: RunFolder
    kind: WeightsKind
    cells: WeightCells

    def run_over(
        self, indices: Tensor, rows: ForecastRows | None, file: ForecastFile | None, *, keep: bool
    ) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        """Return what each batch says, condensed, and all weights [N, C]; none where they go into the file at once."""
        scaling, panel = self.run.load_preprocessing().scaling(), self.windows.panel
        parts, kept = [], [torch.empty(0, self.cells.columns.num_rows)]
        with evaluating(self.model):
            for some in indices.split(_BATCH):
                batch, origins = self.windows[some], self.windows.origins(some)
                require_values(panel, batch, origins + 1 - self.windows.history)
                said, present = explained(self.model, scaling, batch), present_steps(batch, panel.schema)
                parts.append(condensed(said, present))
                if rows is not None and file is not None:
                    series = self.windows.series_of(some).numpy()
                    weights = self.cells.weights(said, present)
                    file.add(self.cells.every(rows, self.kind, series, origins.numpy(), weights))
                elif keep:
                    kept.append(self.cells.weights(said, present))
        return parts, torch.cat(kept)

    def add_aggregates(
        self, rows: ForecastRows, file: ForecastFile, indices: Tensor, weights: Tensor, *, by_series: bool
    ) -> None:
        """Write the weights [N, C] of the windows at `indices` aggregated over all of them, or series by series."""
        if not by_series:
            file.add(self.cells.aggregated(self.kind, weights, {}))
            return
        series = self.windows.series_of(indices)
        for one in torch.unique(series):
            ids = id_columns(rows, one.unsqueeze(0).numpy())
            file.add(self.cells.aggregated(self.kind, weights[series == one], ids))
