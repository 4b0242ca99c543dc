"""`qat-tft backtest`: forecasts of a run from rolling origins, scored against the naive forecasts."""

from pathlib import Path
from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Run, RunsDir


def backtest(
    run: Run = None,
    parquet_file: Annotated[
        list[str] | None,
        typer.Option(
            "--parquet-file",
            help="Parquet file, folder or URL with the columns of the run; repeatable. Default: the data of the run.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="Time of the first target. Default: start of the test part.", metavar="TIME"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="First time after the last target. Default: end of the test part.", metavar="TIME"),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Rows from one origin of a series to the next. Default: the horizon.")
    ] = None,
    max_windows: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of origins over all series, evenly spaced. Default: all.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Parquet file to write every forecast to, with its target. Default: none."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of onnxruntime threads. Default: onnxruntime decides.")
    ] = None,
    runs_dir: RunsDir = "runs",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every step and series.")] = False,
) -> None:
    """Forecast from rolling origins with the FP32 and the INT8 file of a run, and score them against naive forecasts.

    q-risk, MAE, MASE, bias and coverage: overall, by step of the horizon and by series. Without exported files the
    models run in torch. Windows are processed in batches, so memory does not grow with their number.
    """
    from qat_tft.export.inference.run_backtest import Span, backtest_run
    from qat_tft.runs.folder import RunFolder

    folder = RunFolder.find(run, runs_dir)
    console.note(f"Backtesting {folder.path}")
    span = Span(since, until, stride, max_windows)
    with WorkDisplay(json=json) as shown:
        report = backtest_run(
            folder,
            span,
            files=parquet_file or (),
            out=out,
            threads=threads,
            track=shown.batches,
            reading=shown.reading,
        )
    console.emit(report, json=json)
    page = command("report", "--open", run=run, runs_dir=runs_dir)
    say_next(f"{page} shows the forecasts of the run and what they rest on", json=json)
