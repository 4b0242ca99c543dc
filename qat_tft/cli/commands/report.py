"""`qat-tft report`: the results of a run at a glance, and a plot of one of its forecasts."""

from pathlib import Path
from typing import Annotated

import typer

from qat_tft.cli import console


def report(
    run: Annotated[
        str | None,
        typer.Argument(help="Run: a name under the runs folder, or a path. Default: the latest."),
    ] = None,
    runs_dir: Annotated[str, typer.Option("--runs-dir", help="Folder that holds the runs.")] = "runs",
    picture: Annotated[
        str | None,
        typer.Option(
            "--picture",
            help="PNG file to plot a forecast to. Default: forecast.png of the run.",
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show q-risk against the seasonal naive forecast, memory saved, file sizes and the check; plot a forecast."""
    from qat_tft.cli.display.forecast_picture import draw_run
    from qat_tft.runs import layout
    from qat_tft.runs.folder import RunFolder
    from qat_tft.runs.report import RunReport

    folder = RunFolder.find(run, runs_dir)
    drawn = draw_run(folder, Path(picture) if picture else folder.path / layout.PICTURE)
    console.emit(RunReport.of(folder, drawn), json=json)
