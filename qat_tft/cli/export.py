"""`qat-tft export`: a run's ONNX files."""

from typing import Annotated

import typer

from qat_tft.cli import console


def export(
    run: Annotated[
        str | None,
        typer.Argument(help="Run to export: a name under the runs folder, or a path. Default: the latest."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write model.int8.onnx.")] = False,
    runs_dir: Annotated[str, typer.Option("--runs-dir", help="Folder of all runs.")] = "runs",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write [bold]model.fp32.onnx[/] and, with --int8, [bold]model.int8.onnx[/] into a run folder.

    Nothing but the run folder is needed. Raw values go in and raw quantiles come out of both files.
    """
    from qat_tft.export.graph import export_run
    from qat_tft.training.run_folder import RunFolder

    folder = RunFolder.find(run, runs_dir)
    console.note(f"Exporting {folder.path}")
    console.emit(export_run(folder, int8=int8), json=json)
