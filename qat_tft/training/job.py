"""A whole run: data, FP32 training, calibration, quantization-aware training, evaluation, run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.profiling.step_simulator import decide_mode
from qat_tft.runs import files, layout
from qat_tft.runs.build import accelerator_for, refuse_too_large, refuse_unknown_layers
from qat_tft.runs.data import load_data, load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema
from qat_tft.tracking.tracking import require_trackers
from qat_tft.training.constant_columns import refuse_constant_columns
from qat_tft.training.frame_choice import fit_frame, several_series
from qat_tft.training.phases import FP32, RunPhases
from qat_tft.training.progress import Progress, Silent
from qat_tft.training.state import load_state


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder and its results."""

    folder: RunFolder
    results: RunResults


def train(
    config: RunConfig,
    schema: Schema | None = None,
    *,
    runs_dir: str | Path = "runs",
    name: str | None = None,
    progress: Progress | None = None,
) -> FinishedRun:
    """Train as configured and leave a finished run folder.

    Args:
        config: every setting; without Parquet files the embedded bike rentals are used.
        schema: roles of the columns; None only for the embedded bike rentals.
        runs_dir: where run folders stand.
        name: of the run; by default the time.
        progress: receives the reports; by default nobody.

    Raises:
        UserError: data, schema, configuration or run folder cannot be used; the loss became non-finite.
        Interrupted: Ctrl-C; `resume` goes on.
    """
    accelerator_for(config.training)  # refuses a device that is not there before anything is written
    require_trackers(config.training.track)
    progress = progress or Silent()
    data = load_data(config.data, config.model, schema, reading=progress.reading)
    refuse_constant_columns(data)
    if config.model.seasonal_difference:
        raise ConfigError(
            f"model.seasonal_difference {config.model.seasonal_difference} is how earlier versions carried a season "
            "past the network",
            where="the configuration",
            allowed="0",
            next_step="Leave it out; model.linear_path seasonal-naive forecasts from the value one season before",
        )
    refuse_too_large(config.model, data.preprocessing.group_sizes(data.schema))
    fitted = fit_frame(data, config)
    config = config.with_frame(linear_path=fitted.choice(config.model), scale_input=several_series(data))
    config = config.with_products(config.quantization.products_at(config.model.hidden))
    if config.data.validation_from is None:
        config = config.with_split(*map(data.panel.time_text, (data.split.validation_from, data.split.test_from)))
    if config.quantization.use_qat:
        refuse_unknown_layers(config, data.preprocessing.group_sizes(data.schema))
    if config.training.checkpoint_mode == "auto":
        config, reason = decide_mode(config, data.preprocessing.group_sizes(data.schema))
        progress.note(reason)
    folder = RunFolder.create(runs_dir, name, lambda new: new.write_setup(config, data.declared, data.preprocessing))
    with folder.held():
        return FinishedRun(folder, RunPhases(config, data, fitted, folder, progress, None).finish())


def resume(runs_dir: str | Path = "runs", name: str | None = None, *, progress: Progress | None = None) -> FinishedRun:
    """Resume an unfinished run exactly: it ends with the weights it would have had without the interruption.

    Args:
        runs_dir: where run folders stand.
        name: of the run; by default the unfinished run that was written to last.
        progress: receives the reports; by default nobody.

    Raises:
        UserError: there is no such run, another process is working on it, its files are damaged, or its data have
            changed since.
        Interrupted: Ctrl-C again.
    """
    folder = RunFolder.unfinished(runs_dir, name)
    with folder.held():
        return _resumed(folder, progress or Silent())


def _resumed(folder: RunFolder, progress: Progress) -> FinishedRun:
    config = folder.load_config()
    require_trackers(config.training.track)
    data = load_data_of(folder, reading=progress.reading)
    state = folder.path / layout.STATE
    saved = load_state(state) if state.exists() else None
    if saved is not None and saved.position.data_digest != data.digest():
        raise RunFolderError(
            "the data have changed since this run was interrupted",
            where=str(folder.path),
            next_step="Restore the Parquet files, or start a new run",
        )
    levels = len(config.model.quantiles)
    found = (*saved.position.q_risk.values(), *saved.position.coverage.values()) if saved is not None else ()
    if any(len(figures) != levels for figures in found):
        raise RunFolderError(
            "the saved state has results of other quantiles", where=str(state), next_step=files.RESTORE
        )
    return FinishedRun(folder, RunPhases(config, data, fit_frame(data, config), folder, progress, saved).finish())


def quantize(
    run: RunFolder,
    config: RunConfig,
    *,
    runs_dir: str | Path = "runs",
    name: str | None = None,
    progress: Progress | None = None,
) -> FinishedRun:
    """Quantize the floating-point model of a finished run anew, into a run of its own.

    Args:
        run: whose data, schema, statistics and floating-point weights the new one has.
        config: its configuration but for the quantization, with quantization-aware training.
        runs_dir: where the new run folder stands.
        name: of the new run; by default the time.
        progress: receives the reports; by default nobody.

    Raises:
        UserError: the run, its data or the configuration cannot be used.
        Interrupted: Ctrl-C; `resume` goes on.
    """
    require_trackers(config.training.track)
    weights = run.load_fp32_model().state_dict()
    data = load_data_of(run)
    config = config.with_products(config.quantization.products_at(config.model.hidden))
    refuse_unknown_layers(config, data.preprocessing.group_sizes(data.schema))

    def write(new: RunFolder) -> None:
        new.write_setup(config, data.declared, data.preprocessing)
        new.write_weights(FP32, weights)

    folder = RunFolder.create(runs_dir, name, write)
    with folder.held():
        phases = RunPhases(config, data, fit_frame(data, config), folder, progress or Silent(), None)
        return FinishedRun(folder, phases.finish())
