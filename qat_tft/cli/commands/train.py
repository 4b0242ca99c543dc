"""`qat-tft train`: train a model, quantization-aware if asked, and leave a run folder."""

from typing import Annotated, Any

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import say_next
from qat_tft.cli.options.common import json_option, runs_dir_option
from qat_tft.cli.options.run_names import unfinished_runs
from qat_tft.cli.options.settings import with_settings
from qat_tft.config.data import DataConfig
from qat_tft.config.names import Given
from qat_tft.errors import ConfigError
from qat_tft.profiling.heap import merge_freed_blocks

_RUN = "Run"


def _role(name: str, what: str, *, metavar: str = "COLUMNS") -> Any:
    return typer.Option(name, help=what, rich_help_panel=DataConfig.title, show_default=False, metavar=metavar)


@with_settings(first="data.parquet_files")
def train(
    *,
    name_to_resume: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="With --resume: the run to resume.",
            show_default=False,
            autocompletion=unfinished_runs,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            help="Schema in TOML; `qat-tft inspect FILE --write-schema` proposes one.",
            rich_help_panel=DataConfig.title,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    time: Annotated[str | None, _role("--time", "Time column, instead of a schema.", metavar="COLUMN")] = None,
    target: Annotated[str | None, _role("--target", "Column to forecast.", metavar="COLUMN")] = None,
    id: Annotated[str | None, _role("--id", "Columns that together identify a series.")] = None,
    static: Annotated[
        str | None,
        _role("--static", "Columns constant per series; `name:category` or `name:real` sets the kind."),
    ] = None,
    known: Annotated[str | None, _role("--known", "Columns also known for future steps.")] = None,
    observed: Annotated[str | None, _role("--observed", "Columns known up to the present.")] = None,
    given: Given,
    runs_dir: Annotated[str, runs_dir_option(panel=_RUN)] = "runs",
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Name of the run. Default: the current time.", rich_help_panel=_RUN, show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume an interrupted run: NAME, or the latest one.", rich_help_panel=_RUN),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="Settings in TOML, such as a run's config.toml; options given here take precedence.",
            rich_help_panel=_RUN,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, json_option(panel=_RUN)] = False,
) -> None:
    """Train a Temporal Fusion Transformer and write its run folder.

    Without any option it trains on the embedded hourly bike rentals in Washington, D.C.
    """
    named = {"time": time, "target": target, "id": id, "static": static, "known": known, "observed": observed}
    roles = {role: columns for role, columns in named.items() if columns is not None}
    if name_to_resume is not None and not resume:
        raise ConfigError(
            f"unexpected argument {name_to_resume!r}",
            next_step="Add --resume to resume the run of that name; give a data file with --parquet-file",
        )
    merge_freed_blocks()
    from qat_tft.cli import train_run as training

    if resume:
        training.refuse_changes([*given, *roles], schema=schema, config=config, name=name)
        result = training.go_on(runs_dir, name_to_resume)
    else:
        result = training.start(given, roles, schema_file=schema, config_file=config, runs_dir=runs_dir, name=name)
    console.emit(result, json=json)
    say_next(result.next_step(runs_dir), json=json)
