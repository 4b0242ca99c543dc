"""`qat-tft report`: the results of a run at a glance, and a plot of one of its forecasts."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.options.common import Json, Run, RunsDir


def report(
    run: Run = None,
    runs_dir: RunsDir = "runs",
    picture: Annotated[
        str | None,
        typer.Option(
            "--picture",
            help="PNG file to plot a forecast to. Default: forecast.png of the run.",
            metavar="FILE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show q-risk against the seasonal naive forecast, memory saved, file sizes and the check; plot a forecast."""
    from qat_tft.cli.display.forecast_picture import draw_run
    from qat_tft.errors import PictureError
    from qat_tft.runs import layout
    from qat_tft.runs.folder import RunFolder
    from qat_tft.runs.report import RunReport

    folder = RunFolder.find(run, runs_dir)
    found, drawn = RunReport.of(folder), None  # read before anything is written
    try:
        drawn = draw_run(folder, Path(picture) if picture else folder.path / layout.PICTURE)
    except PictureError as failure:
        if picture:
            raise
        console.note(f"No forecast is plotted: {failure} --picture FILE plots it elsewhere.")
    console.emit(replace(found, picture=drawn), json=json)
