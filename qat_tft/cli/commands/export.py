"""`qat-tft export`: a run's ONNX files."""

from typing import Annotated, Literal

import typer

from qat_tft.cli import console
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, Run, RunsDir
from qat_tft.cli.options.settings import choices_of
from qat_tft.errors import ConfigError


def export(
    run: Run = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write the file of integers, such as model.int8.onnx.")
    ] = False,
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
    store: Annotated[
        Literal["packed", "int8"],
        typer.Option(
            help="How weights of fewer than 8 bits are stored. packed: in as many, which needs onnxruntime 1.23 for 4 "
            "bits and 1.24 for 2; int8: in 8, for older ones.",
        ),
    ] = "packed",
    weight_bits: Annotated[
        int | None,
        typer.Option(
            help="Bits that the run must have been trained for; another number is refused. Default: whatever it was "
            "trained for.",
            metavar="8|4|2",
        ),
    ] = None,
    with_explanations: Annotated[
        bool,
        typer.Option(
            "--with-explanations",
            help="Add outputs to the files: the selection weights of variables and the attention to steps, which "
            "`qat-tft explain FILE` reads. Forecasts are the same bits.",
        ),
    ] = False,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Write [bold]model.fp32.onnx[/] and, with --int8, the file of integers into a run folder.

    That is [bold]model.int8.onnx[/], or [bold]model.int4.onnx[/] or [bold]model.int2.onnx[/] where the run was trained
    with weights of so few bits. Only the run folder is needed. All files take raw values and return raw quantiles.
    """
    from qat_tft.export.build.run_export import export_run
    from qat_tft.runs.folder import RunFolder

    if not int8 and (target is not None or lstm != "weights" or store != "packed" or weight_bits is not None):
        raise ConfigError(
            "--target, --lstm, --store and --weight-bits apply to the file of integers", next_step="Add --int8"
        )
    folder = RunFolder.find(run, runs_dir)
    console.note(f"Exporting {folder.path}")
    with WorkDisplay(json=json) as shown:
        result = export_run(
            folder,
            int8=int8,
            target=target,
            lstm=lstm,
            store=store,
            weight_bits=weight_bits,
            with_explanations=with_explanations,
            told=shown.stage,
        )
    console.emit(result, json=json)
    checking = command("check", *(() if run is None else ("--run", run)), runs_dir=runs_dir)
    say_next(f"{checking} compares the file with the trained model", json=json)
