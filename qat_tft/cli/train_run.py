"""What `qat-tft train` does once its options are read: start or resume a run, show it, export if asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from qat_tft import ranks
from qat_tft.cli import console
from qat_tft.cli.display.training_progress import TrainingDisplay
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command
from qat_tft.config.names import configuration, every_setting, naming_options
from qat_tft.config.run import RunConfig, demo_settings, read_config_file
from qat_tft.data.roles.choice import Roles, choose_schema, schema_beside
from qat_tft.data.sample.samples import embedded_rentals
from qat_tft.errors import ConfigError
from qat_tft.export.build.export_report import ExportResult
from qat_tft.export.build.run_export import export_run
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema
from qat_tft.training import job
from qat_tft.training.interrupt import Interrupted

_INTERRUPTED = 130


@dataclass(frozen=True)
class Trained:
    """A finished run, and its export where one was asked for."""

    run: job.FinishedRun
    export: ExportResult | None

    def to_json(self) -> dict[str, Any]:
        """Return the results of the run, its folder and its export."""
        value = {"folder": str(self.run.folder.path), **self.run.results.to_json()}
        return {**value, "export": self.export.to_json()} if self.export else value

    def tables(self) -> Sequence[RenderableType]:
        """Return the tables of the results and of the export."""
        return [
            *self.run.results.tables(),
            f"Run folder: {self.run.folder.path}",
            *(self.export.tables() if self.export else ()),
        ]

    def next_step(self, runs_dir: str) -> str:
        """Say what comes after a run that is now the latest: its check, its files, or the page that shows it."""
        if self.export is not None:
            return f"{command('check', runs_dir=runs_dir)} compares the file with the trained model"
        page = f"{command('report', '--open', runs_dir=runs_dir)} shows the results"
        if self.run.folder.has_qat_weights:
            return f"{page}, {command('export', '--int8', runs_dir=runs_dir)} writes the INT8 file"
        return f"{page}, {command('quantize', runs_dir=runs_dir)} trains the model for integers"


def start(
    given: dict[str, Any],
    roles: dict[str, str],
    *,
    schema_file: str | None,
    config_file: str | None,
    runs_dir: str,
    name: str | None,
) -> Trained:
    """Train a new run from options and an optional configuration file.

    Raises:
        UserError: an option, file or value cannot be used.
        Exit: with 130, after Ctrl-C.
    """
    base = read_config_file(config_file) if config_file else {}
    if not config_file and "data.parquet_files" not in given:
        base = demo_settings(given)
        console.note(f"No --parquet-file: embedded bike rentals, with {_listed(base)} unless given")
    with naming_options(given if config_file else every_setting()):
        config = configuration(given, base, where=config_file or "the options")
        config = config.located(Path(config_file).parent) if config_file else config
        schema = _schema(config, Roles(**roles), schema_file, config_file)
        return _shown(lambda display: job.train(config, schema, runs_dir=runs_dir, name=name, progress=display))


def go_on(runs_dir: str, name: str | None) -> Trained:
    """Resume an interrupted run with the settings it was started with.

    Raises:
        UserError: there is no such run, or its files or data cannot be used.
        Exit: with 130, after Ctrl-C.
    """
    return _shown(lambda display: job.resume(runs_dir, name, progress=display))


def quantize(given: dict[str, Any], run: str | None, *, runs_dir: str, name: str | None) -> Trained:
    """Quantize a finished run anew with other settings.

    Raises:
        UserError: an option, the run or its data cannot be used.
        Exit: with 130, after Ctrl-C.
    """
    folder = RunFolder.find(run, runs_dir)
    console.note(f"Quantizing the FP32 model of {folder.path}")
    with naming_options(every_setting()):
        config = folder.load_config().requantized(given, where="the options")
        return _shown(lambda display: job.quantize(folder, config, runs_dir=runs_dir, name=name, progress=display))


def refuse_changes(settings: Sequence[str], *, schema: str | None, config: str | None, name: str | None) -> None:
    """Refuse options that would change a run which is resumed.

    Raises:
        ConfigError: one was given.
    """
    files = {"--schema": schema, "--config": config, "--name": name}
    changes = [*settings, *(option for option, value in files.items() if value is not None)]
    if changes:
        raise ConfigError(
            f"a resumed run keeps its settings, so {', '.join(changes)} cannot be given",
            allowed="--runs-dir and --json with --resume",
            next_step="Start a new run to change settings",
        )


def _shown(run: Callable[[TrainingDisplay], job.FinishedRun]) -> Trained:
    try:
        with TrainingDisplay() as display:
            finished = run(display)
    except Interrupted as stop:
        console.note(f"Interrupted, state saved. Resume with `qat-tft train --resume {stop.name}`.")
        raise typer.Exit(_INTERRUPTED) from None
    if not ranks.is_first():  # which exports, if that was asked for
        return Trained(finished, None)
    if not finished.folder.load_config().quantization.use_int8:
        return Trained(finished, None)
    console.note("Exporting the ONNX files")
    with WorkDisplay(json=False) as shown:
        return Trained(finished, export_run(finished.folder, int8=True, told=shown.stage))


def _listed(settings: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{key} {value}" for part in settings.values() for key, value in part.items())


def _schema(config: RunConfig, roles: Roles, schema_file: str | None, config_file: str | None) -> Schema | None:
    files = config.data.parquet_files or (str(embedded_rentals()[0]),)
    chosen = choose_schema(files, roles, Path(schema_file) if schema_file else schema_beside(files, config_file))
    if chosen is None:
        return None
    if config.data.parquet_files or roles.given:
        console.note(chosen.note)
    return chosen.schema
