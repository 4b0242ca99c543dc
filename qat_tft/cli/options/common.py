"""The argument and the options that most commands have."""

from typing import Annotated, Any

import typer

from qat_tft.cli.options.run_names import finished_runs


def runs_dir_option(*, panel: str | None = None) -> Any:
    """Return `--runs-dir`, for a command that shows it in a panel."""
    return typer.Option("--runs-dir", help="Folder that holds the runs.", metavar="FOLDER", rich_help_panel=panel)


def json_option(*, panel: str | None = None) -> Any:
    """Return `--json`, for a command that shows it in a panel."""
    return typer.Option("--json", help="Print one JSON object.", rich_help_panel=panel)


Run = Annotated[
    str | None,
    typer.Argument(
        help="Run: a name under the runs folder, or a path. Default: the latest.", autocompletion=finished_runs
    ),
]
RunsDir = Annotated[str, runs_dir_option()]
Json = Annotated[bool, json_option()]
