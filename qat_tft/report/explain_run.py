"""The explanations of a run: its selection weights and its attention over windows of any rows, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from qat_tft.config.run import RunConfig
from qat_tft.data.panel import Panel
from qat_tft.data.scaling import Scaling
from qat_tft.data.split import Part
from qat_tft.data.windows import Batch, Windows
from qat_tft.errors import RunFolderError
from qat_tft.evaluation.names import TITLES
from qat_tft.evaluation.window_forecasts import evaluating
from qat_tft.model.tft import Forecast
from qat_tft.report.evidence import explained
from qat_tft.report.explain_windows import MOST_WINDOWS, Detail, Explained, ExplanationReport, explain_windows
from qat_tft.runs.build import variables_by_group
from qat_tft.runs.data import load_panel_for, split_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind


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
        detail: over what the weights in `out` are aggregated.
        most: most windows, evenly spaced; fewer where their weights would not fit into memory together.
        out: Parquet file for the weights.

    Raises:
        UserError: the run, its files or the data cannot be used, it has no such model, or `out` cannot be written.
    """
    return explain_windows(explained_run(run, files=files, model=model), detail=detail, most=most, out=out)


def explained_run(run: RunFolder, *, files: Sequence[str | Path] = (), model: WeightsKind | None = None) -> Explained:
    """Return what of a run is to explain; arguments and errors are those of `explain_run`."""
    config = run.load_config()
    kind: WeightsKind = model or ("qat" if run.has_qat_weights else "fp32")
    says = _TorchModel(_load(run, kind), run.load_preprocessing().scaling())
    paths, panel = load_panel_for(run, files)
    return Explained(
        title=f"{TITLES[kind]} model of run {run.name}",
        model=kind,
        windows=_windows(config, panel, whole=bool(files)),
        paths=paths,
        variables=variables_by_group(config.model, panel.schema),
        says=says,
        run=run.name,
    )


@dataclass(frozen=True)
class _TorchModel:
    model: nn.Module
    scaling: Scaling

    def __call__(self, batch: Batch) -> Forecast:
        with evaluating(self.model):
            return explained(self.model, self.scaling, batch)


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
