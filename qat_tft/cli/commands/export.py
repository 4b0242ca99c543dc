"""`qat-tft export`: a run's ONNX files."""

from typing import Annotated, Literal

import typer

from qat_tft.cli import console
from qat_tft.cli.options.common import Json, Run, RunsDir
from qat_tft.cli.options.settings import choices_of
from qat_tft.errors import ConfigError


def export(
    run: Run = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write model.int8.onnx.")] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Target machine of the INT8 file. Default: the one the model was trained for; any other must allow "
            "the model's ranges.",
            metavar=choices_of("quantization.target"),
        ),
    ] = None,
    lstm: Annotated[
        Literal["weights", "dynamic"],
        typer.Option(
            help="LSTM of the INT8 file. weights: 8-bit weights, floating-point cell, exact. dynamic (x86 and "
            "x86-vnni): onnxruntime's integer LSTM, less exact; the rows of a batch influence each other.",
        ),
    ] = "weights",
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Write [bold]model.fp32.onnx[/] and, with --int8, [bold]model.int8.onnx[/] into a run folder.

    Only the run folder is needed. Both files take raw values and return raw quantiles.
    """
    from qat_tft.export.build.run_export import export_run
    from qat_tft.runs.folder import RunFolder

    if not int8 and (target is not None or lstm != "weights"):
        raise ConfigError("--target and --lstm apply to the INT8 file", next_step="Add --int8")
    folder = RunFolder.find(run, runs_dir)
    console.note(f"Exporting {folder.path}")
    console.emit(export_run(folder, int8=int8, target=target, lstm=lstm), json=json)
