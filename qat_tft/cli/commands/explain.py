"""`qat-tft explain`: which variables and which steps of the past the forecasts of a run rest on."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, Run, RunsDir


def explain(
    run: Run = None,
    parquet_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--parquet-file",
            help="Parquet file or folder with the columns of the run; repeatable. Default: the test part of its data.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Parquet file to write every weight to. Default: none.")
    ] = None,
    model: Annotated[
        Literal["fp32", "qat"] | None,
        typer.Option("--model", help="Model to explain. Default: the last one that was trained.", show_default=False),
    ] = None,
    windows: Annotated[
        bool, typer.Option("--windows", help="Write the weights of every window instead of their aggregates.")
    ] = False,
    by_series: Annotated[
        bool, typer.Option("--by-series", help="Aggregate the weights of each series by itself.")
    ] = False,
    max_windows: Annotated[int, typer.Option(min=1, help="Maximum number of windows, evenly spaced.")] = 512,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Show the weights of variables and past steps in the forecasts of a run, and write each of them to a file.

    Selection weights say how much of a forecast passes through each variable at each step, attention to which steps
    each forecast step looks (Lim et al. 2021, section 7). The file has a row for each weight: its mean, standard
    deviation and quantiles over windows, or with --windows its value in each window. Computed in torch.
    """
    from qat_tft.errors import ConfigError
    from qat_tft.report.explain_run import explain_run
    from qat_tft.runs.folder import RunFolder

    if windows and by_series:
        raise ConfigError("--windows and --by-series are given together", allowed="one of them")
    if (windows or by_series) and out is None:
        option = "--windows" if windows else "--by-series"
        raise ConfigError(f"{option} has no file to write to", next_step="Name one with --out")
    folder = RunFolder.find(run, runs_dir)
    report = explain_run(
        folder,
        files=parquet_file or (),
        model=model,
        detail="windows" if windows else "series" if by_series else "all",
        most=max_windows,
        out=out,
    )
    console.emit(report, json=json)
    page = command("report", "--open", run=run, runs_dir=runs_dir)
    say_next(f"{page} draws these weights beside the forecasts", json=json)
