"""`qat-tft check`: is an ONNX file the model that was validated?"""

from pathlib import Path
from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, RunsDir
from qat_tft.cli.options.run_names import finished_runs
from qat_tft.errors import CheckFailed


def check(
    model: Annotated[
        Path | None,
        typer.Argument(help="ONNX file, or a run's folder. Default: the INT8 file of the run, else its FP32 file."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Run the file was exported from: a name or a path. Default: the folder of MODEL, else the latest.",
            autocompletion=finished_runs,
        ),
    ] = None,
    runs_dir: RunsDir = "runs",
    seconds: Annotated[
        float,
        typer.Option(min=0.0, help="Start no further block of 64 windows after this many seconds."),
    ] = 10.0,
    layers: Annotated[bool, typer.Option("--layers", help="Show every quantized layer, worst first.")] = False,
    json: Json = False,
) -> None:
    """Run a file in onnxruntime on the run's real test windows and compare it with the trained model.

    It covers names, shapes, types, values at batch 1, 3 and 64 with optimizations on and off, each layer by itself,
    other runtimes, q-risk, bytes, integer operators and latency. The report is also written to check.json in the run
    folder. Exit code 1: the check failed.
    """
    from qat_tft.export.verify.check import check_model, file_at, find_export
    from qat_tft.export.verify.check_report import Detailed
    from qat_tft.runs.folder import RunFolder

    folder = RunFolder.find(run, runs_dir) if run is not None or model is None else None
    if model is None:
        assert folder is not None
        model = find_export(folder)
    model = file_at(model)
    console.note(f"Checking {model}")
    with WorkDisplay(json=json) as shown:
        report = check_model(model, folder, seconds=seconds, told=shown.stage)
    console.emit(Detailed(report) if layers else report, json=json)
    if report.unkept:
        console.note(f"The report is not kept: {report.unkept}.")
    if report.passed:
        forecasting = command("predict", str(model), "--parquet-file", "FILE")
        say_next(f"{forecasting} forecasts the steps after the last rows of FILE", json=json)
        return
    if not layers:
        say_next(f"{command('check', str(model), '--layers')} shows each layer, the worst first", json=json)
    if json:  # standard output holds one object, and it has the reasons
        raise typer.Exit(CheckFailed.exit_code)
    report.require_passed()
