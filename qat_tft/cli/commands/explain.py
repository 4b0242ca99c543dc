"""`qat-tft explain`: which variables and which steps of the past the forecasts of a run or a file rest on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, RunsDir
from qat_tft.cli.options.run_names import finished_runs

if TYPE_CHECKING:
    from qat_tft.report.explain_windows import Explained


def explain(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Run: a name under the runs folder, or a path; or an ONNX file that was exported with "
            "--with-explanations. Default: the latest run.",
            autocompletion=finished_runs,
        ),
    ] = None,
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
    deviation and quantiles over windows, or with --windows its value in each window. Weights of a run are computed in
    torch, those of an ONNX file in onnxruntime.
    """
    from qat_tft.errors import ConfigError
    from qat_tft.report.explain_run import explained_run
    from qat_tft.report.explain_windows import explain_windows
    from qat_tft.runs.folder import RunFolder

    if windows and by_series:
        raise ConfigError("--windows and --by-series are given together", allowed="one of them")
    if (windows or by_series) and out is None:
        option = "--windows" if windows else "--by-series"
        raise ConfigError(f"{option} has no file to write to", next_step="Name one with --out")
    if run is not None and run.endswith(".onnx"):
        subject = _of_file(Path(run), parquet_file or [], model)
    else:
        subject = explained_run(RunFolder.find(run, runs_dir), files=parquet_file or (), model=model)
    detail: Literal["all", "series", "windows"] = "windows" if windows else "series" if by_series else "all"
    console.emit(explain_windows(subject, detail=detail, most=max_windows, out=out), json=json)
    if subject.run is not None:
        page = command("report", "--open", run=run, runs_dir=runs_dir)
        say_next(f"{page} draws these weights beside the forecasts", json=json)


def _of_file(path: Path, files: list[Path], model: str | None) -> "Explained":
    """Return what an ONNX file is to explain, by itself: no run folder is needed."""
    from qat_tft.errors import ConfigError
    from qat_tft.evaluation.names import integer_name
    from qat_tft.export.inference.explain_file import FileModel, windows_for
    from qat_tft.export.inference.session import ForecastSession
    from qat_tft.report.explain_windows import Explained

    if model is not None:
        raise ConfigError("--model is given beside an ONNX file, which is one model", next_step="Leave it out")
    file = ForecastSession(path)
    file.require_explanations()
    if not files:
        raise ConfigError(
            "an ONNX file is given without data to explain", where=str(path), next_step="Name them with --parquet-file"
        )
    metadata, paths = file.metadata, [str(one) for one in files]
    kind = "FP32" if metadata.kind == "fp32" else integer_name(metadata.bits)
    return Explained(
        title=f"{kind} file {path}",
        model=metadata.kind,
        windows=windows_for(file, paths[0] if len(paths) == 1 else paths),
        paths=paths[0] if len(paths) == 1 else paths,
        variables={group.name: tuple(metadata.explained.get(group.name, ())) for group in metadata.schema.groups},
        says=FileModel(file),
        file=path,
    )
