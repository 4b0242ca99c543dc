"""`qat-tft runs`: the runs there are, and `qat-tft runs rm`, which removes some."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, RunsDir, runs_dir_option
from qat_tft.cli.options.run_names import every_run
from qat_tft.errors import ConfigError

if TYPE_CHECKING:
    from qat_tft.runs.listing import RunListing

runs = typer.Typer(invoke_without_command=True)


@runs.callback()
def listed(context: typer.Context, *, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """List the runs: state, data, q-risk of FP32 and QAT beside the strongest simple forecast, check, size, age.

    `qat-tft runs rm NAME` removes runs.
    """
    if context.invoked_subcommand is not None:
        return
    from qat_tft.runs.listing import list_runs

    found = list_runs(Path(runs_dir))
    console.emit(found, json=json)
    say_next(_after(found, runs_dir), json=json)


@runs.command("rm")
def remove(
    context: typer.Context,
    *,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Runs to remove.", autocompletion=every_run)],
    runs_dir: Annotated[str | None, runs_dir_option()] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove runs with all their files; what trackers keep beside the runs stays.

    A run that another process is writing to is refused. If the latest run goes, the newest one that is left becomes it.
    """
    above = context.parent.params if context.parent is not None else {}
    json = json or bool(above.get("json"))
    if not yes and (json or not sys.stdin.isatty()):
        raise ConfigError("removing runs has to be confirmed, and there is no terminal to ask", next_step="Add --yes")
    from qat_tft.runs.removal import remove_runs

    root = Path(runs_dir if runs_dir is not None else above.get("runs_dir") or "runs")
    console.emit(remove_runs(root, names, lambda paths: yes or _agreed(paths)), json=json)
    say_next(f"{command('runs', runs_dir=str(root))} lists those that are left", json=json)


def _after(found: "RunListing", runs_dir: str) -> str:
    """Say what is to be done about the newest run."""
    if not found.runs:
        return f"{command('train', '--use-qat', runs_dir=runs_dir)} trains one on the embedded data"
    newest = found.runs[0]
    if newest.state == "interrupted":
        return f"{command('train', '--resume', newest.name, runs_dir=runs_dir)} goes on with {newest.name}"
    return f"{command('report', '--open', run=newest.name, runs_dir=runs_dir)} shows {newest.name}"


def _agreed(paths: Sequence[Path]) -> bool:
    return typer.confirm(f"Remove {', '.join(map(str, paths))}?", err=True)
