"""`qat-tft sensitivity`: which layers cost forecast quality in INT8."""

from enum import StrEnum
from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, Run, RunsDir
from qat_tft.cli.options.settings import share
from qat_tft.errors import CheckFailed


class Grouping(StrEnum):
    """What is measured together."""

    LAYER = "layer"
    SEGMENT = "segment"


def sensitivity(
    run: Run = None,
    runs_dir: RunsDir = "runs",
    by: Annotated[
        Grouping, typer.Option("--by", help="Measure each layer, or each segment as a whole.")
    ] = Grouping.LAYER,
    windows: Annotated[
        int,
        typer.Option("--windows", min=1, help="Maximum number of validation windows per measurement, evenly spaced."),
    ] = 1024,
    max_drop: Annotated[
        str | None,
        typer.Option(
            "--max-drop",
            help="Leave as few layers in floating point as keep the mean q-risk within this share above FP32's.",
            metavar="SHARE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Rank layers by how much rounding each one alone costs in q-risk on validation windows.

    With --max-drop 0.5%, a choice of layers to leave in floating point is made and measured. For a quantization-aware
    run it is written to config.toml (quantization.float_layers), and `qat-tft export` and `check` follow it. Exit
    code 1: no choice stays within the share.
    """
    drop = share(max_drop, "--max-drop")
    from qat_tft.runs.folder import RunFolder
    from qat_tft.runs.sensitivity import analyse

    folder = RunFolder.find(run, runs_dir)
    with WorkDisplay(json=json) as shown:
        found = analyse(folder, by=by.value, windows=windows, max_drop=drop, told=shown.part, reading=shown.reading)
    console.emit(found, json=json)
    if drop is not None and found.choice is None:
        if json:  # standard output holds one object, and it says so
            raise typer.Exit(CheckFailed.exit_code)
        raise CheckFailed(f"no choice of layers in floating point stays within --max-drop {max_drop}")
    if found.float_layers and not found.trained:
        console.note(f"Train with: qat-tft train --use-qat --float-layers {','.join(found.float_layers)}")
    elif found.float_layers is not None and found.trained:
        console.note(f"Written to {folder.path / 'config.toml'}. Export again: qat-tft export {folder.path} --int8")
    elif drop is None:
        choosing = command("sensitivity", "--max-drop", "0.5%", run=run, runs_dir=runs_dir)
        say_next(f"{choosing} leaves the costliest in floating point", json=json)
