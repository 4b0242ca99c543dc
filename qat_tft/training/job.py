"""A whole run: data, FP32 training, calibration, quantization-aware training, evaluation, run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.launch import launched
from qat_tft.profiling.step_simulator import decide_mode
from qat_tft.runs import files, layout
from qat_tft.runs.build import accelerator_for, refuse_too_large, refuse_unknown_layers
from qat_tft.runs.data import RunData, load_data, load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema
from qat_tft.tracking.tracking import require_trackers
from qat_tft.training.agreement import (
    agreed,
    begin,
    begun_by_this_launcher,
    refuse_idle_ranks,
    require_same_options,
    require_same_rows,
)
from qat_tft.training.constant_columns import refuse_constant_columns
from qat_tft.training.frame_choice import FittedFrame, fit_frame, several_series
from qat_tft.training.onlooker import OnlookersFolder
from qat_tft.training.phases import FP32, RunPhases
from qat_tft.training.progress import Progress, Silent
from qat_tft.training.state import SavedState, load_state


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
    table: Path | None = None,
) -> FinishedRun:
    """Train as configured and leave a finished run folder.

    Args:
        config: every setting; without Parquet files the embedded bike rentals are used.
        schema: roles of the columns; None only for the embedded bike rentals.
        runs_dir: where run folders stand.
        name: of the run; by default the time.
        progress: receives the reports; by default nobody.
        table: the one Parquet file of the configuration, if the run folder is to hold it.

    Raises:
        UserError: data, schema, configuration or run folder cannot be used; the loss became non-finite.
        Interrupted: Ctrl-C; `resume` goes on.
    """
    device = accelerator_for(config.training).device  # refuses one that is not there before anything is written
    config = config.with_selection_chunks(device.type)
    require_trackers(config.training.track)
    progress = _told_on_rank_0(progress)
    if (begun := begun_by_this_launcher(runs_dir)) is not None:
        return _gone_on_after_restart(begun, progress)
    require_same_options(config, schema)
    with ranks.together():
        refuse_idle_ranks(config.training.batch_size)
        # Prepared rows are kept by the path of their file, which the run's own has not yet.
        settings = config.data if table is None else config.data.model_copy(update={"cache": False})
        data = load_data(settings, config.model, schema, reading=progress.reading)
        config = config if table is None else config.with_own_table()
        fitted, config = _decided(config, data, progress)
    config = agreed(config)
    require_same_rows(data)
    folder = begin(runs_dir, name, lambda new: new.write_setup(config, data.declared, data.preprocessing, table))
    with folder.held():
        return FinishedRun(folder, RunPhases(config, data, fitted, folder, progress, None).finish())


def _decided(config: RunConfig, data: RunData, progress: Progress) -> tuple[FittedFrame, RunConfig]:
    """Return what was fitted for the model's frame, and the configuration with all that the rows decide."""
    refuse_constant_columns(data)
    if config.model.seasonal_difference:
        raise ConfigError(
            f"model.seasonal_difference {config.model.seasonal_difference} is how earlier versions carried a season "
            "past the network",
            where="the configuration",
            allowed="0",
            next_step="Leave it out; model.linear_path seasonal-naive forecasts from the value one season before",
        )
    sizes = data.preprocessing.group_sizes(data.schema)
    refuse_too_large(config.model, sizes)
    fitted = fit_frame(data, config)
    config = config.with_frame(linear_path=fitted.choice(config.model), scale_input=several_series(data))
    config = config.with_products(config.quantization.products_at(config.model.hidden))
    if config.data.validation_from is None:
        config = config.with_split(*map(data.panel.time_text, (data.split.validation_from, data.split.test_from)))
    if config.quantization.use_qat:
        refuse_unknown_layers(config, sizes)
    if config.training.checkpoint_mode == "auto":
        own_share = config.with_batch_size(ranks.largest_share(config.training.batch_size))
        decided, reason = decide_mode(own_share, sizes)
        config = decided.with_batch_size(config.training.batch_size)
        progress.note(reason)
    return fitted, config


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
    progress = _told_on_rank_0(progress)
    return _gone_on(RunFolder.unfinished(runs_dir, name), progress)


def _gone_on_after_restart(begun: RunFolder, progress: Progress) -> FinishedRun:
    progress.note(f"Started again by its launcher: going on with {begun.name}")
    return _gone_on(begun, progress)


def _gone_on(found: RunFolder, progress: Progress) -> FinishedRun:
    folder = found if launched().is_first else OnlookersFolder(found.path)
    with folder.held():
        accelerator_for(folder.load_config().training)
        return FinishedRun(folder, _resumed(folder, progress).finish())


def _resumed(folder: RunFolder, progress: Progress) -> RunPhases:
    with ranks.together():
        config, data, saved = _found_of(folder, progress)
    require_same_rows(data)
    if saved is not None and saved.position.ranks != ranks.world():
        before = ranks.named(saved.position.ranks)
        note = "batches stay as large, dropout draws other masks"
        progress.note(f"The run was trained by {before} and goes on with {ranks.named()}: {note}")
    return RunPhases(config, data, fit_frame(data, config), folder, progress, saved)


def _found_of(folder: RunFolder, progress: Progress) -> tuple[RunConfig, RunData, SavedState | None]:
    """Return configuration, rows and state of an unfinished run."""
    config = folder.load_config()
    refuse_idle_ranks(config.training.batch_size)
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
    return config, data, saved


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
    device = accelerator_for(config.training).device
    config = config.with_selection_chunks(device.type).with_qat_selection_chunk(device.type)
    require_trackers(config.training.track)
    progress = _told_on_rank_0(progress)
    if (begun := begun_by_this_launcher(runs_dir)) is not None:
        return _gone_on_after_restart(begun, progress)
    require_same_options(config, None)
    with ranks.together():
        refuse_idle_ranks(config.training.batch_size)
        weights = run.load_fp32_model().state_dict()
        data = load_data_of(run)
        config = config if run.table is None else config.with_own_table()
        config = config.with_products(config.quantization.products_at(config.model.hidden))
        refuse_unknown_layers(config, data.preprocessing.group_sizes(data.schema))
    require_same_rows(data)

    def write(new: RunFolder) -> None:
        new.write_setup(config, data.declared, data.preprocessing, run.table)
        new.write_weights(FP32, weights)

    folder = begin(runs_dir, name, write)
    with folder.held():
        return FinishedRun(folder, RunPhases(config, data, fit_frame(data, config), folder, progress, None).finish())


def _told_on_rank_0(progress: Progress | None) -> Progress:
    return progress if progress is not None and launched().is_first else Silent()
