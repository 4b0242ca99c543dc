"""`qat-tft report`: the results of a run at a glance, a plot of one of its forecasts, and a page that says it all."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json, Run, RunsDir
from qat_tft.cli.options.run_names import finished_runs

if TYPE_CHECKING:
    from qat_tft.runs.folder import RunFolder
    from qat_tft.runs.report import RunReport


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
    out: Annotated[
        str | None,
        typer.Option("--out", help="HTML file to write the page to. Default: report.html of the run.", metavar="FILE"),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            help="Two runs to put side by side instead, into compare.html of the runs folder or --out.",
            metavar="RUN RUN",
            autocompletion=finished_runs,
        ),
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Show q-risk, memory saved, file sizes and the check; plot a forecast; write a page with all of it.

    The page is one HTML file that needs no network: the answer first, then forecasts, quality, explanations by
    selection weights and attention, what integers cost, and a model card. It takes nothing but the run folder. Of a run
    that is not finished, it holds the losses so far, data and options, and the command that goes on.
    """
    if compare is not None:
        _compare(run, picture, compare, runs_dir, out, opened=opened, json=json)
        return
    from qat_tft.cli.display.forecast_picture import draw_run, exported, forecasts_of
    from qat_tft.cli.display.pages import shown_in_browser, written_page
    from qat_tft.errors import PictureError, UnwritableError
    from qat_tft.report.content import collect
    from qat_tft.report.page import run_page
    from qat_tft.runs import layout
    from qat_tft.runs.folder import RunFolder
    from qat_tft.runs.report import RunReport

    begun = None if run is None or picture is not None else RunFolder.begun(run, runs_dir)
    if begun is not None:
        _report_unfinished(begun, out, opened=opened, json=json)
        return
    folder = RunFolder.find(run, runs_dir)
    found, drawn, file = RunReport.of(folder), None, exported(folder)  # read before anything is written
    try:
        drawn = draw_run(folder, Path(picture) if picture else folder.path / layout.PICTURE, file)
    except (PictureError, UnwritableError) as failure:
        if picture:
            raise
        console.note(f"No forecast is plotted: {failure} --picture FILE plots it elsewhere.")
    page = written_page(
        lambda: run_page(collect(folder, forecasts_of(file))), Path(out) if out else None, folder.path / layout.PAGE
    )
    console.emit(replace(found, picture=drawn, page=page), json=json)
    if opened and page is not None:
        shown_in_browser(page)
    say_next(_after(found, run, runs_dir, opened=opened), json=json)


def _report_unfinished(folder: "RunFolder", out: str | None, *, opened: bool, json: bool) -> None:
    """Show what there is of a run that is not finished."""
    from qat_tft.cli.display.pages import shown_in_browser, written_page
    from qat_tft.report.page import unfinished_page
    from qat_tft.report.unfinished import collect_unfinished
    from qat_tft.runs import layout

    found = collect_unfinished(folder)
    page = written_page(lambda: unfinished_page(found), Path(out) if out else None, folder.path / layout.PAGE_SO_FAR)
    console.emit(found.with_page(page), json=json)
    if opened and page is not None:
        shown_in_browser(page)


def _after(found: "RunReport", run: str | None, runs_dir: str, *, opened: bool) -> str:
    """Say what a run lacks first, and where everything is there, how it is looked at or used."""
    from qat_tft.runs import layout

    files = [name for kind, name in layout.ONNX.items() if kind != "fp32" and name in found.sizes]
    quantized = layout.WEIGHTS["qat"] in found.sizes
    if layout.ONNX["fp32"] not in found.sizes or (quantized and not files):
        words = ("export", "--int8") if quantized else ("export",)
        return f"{command(*words, run=run, runs_dir=runs_dir)} writes what this run lacks, its ONNX files"
    if found.check is None:
        checking = command("check", *(() if run is None else ("--run", run)), runs_dir=runs_dir)
        return f"{checking} compares the file with the trained model"
    if not opened:
        return f"{command('report', '--open', run=run, runs_dir=runs_dir)} shows the page in the browser"
    file = str(found.folder / (files[0] if files else layout.ONNX["fp32"]))
    return f"{command('predict', file, '--parquet-file', 'FILE')} forecasts the steps after the last rows of FILE"


def _compare(
    run: str | None,
    picture: str | None,
    compared: tuple[str, str],
    runs_dir: str,
    out: str | None,
    *,
    opened: bool,
    json: bool,
) -> None:
    """Put two runs side by side."""
    from qat_tft.cli.display.forecast_picture import exported, forecasts_of
    from qat_tft.cli.display.pages import shown_in_browser, written_page
    from qat_tft.errors import ConfigError
    from qat_tft.report.comparison import compare_runs
    from qat_tft.report.page import comparison_page
    from qat_tft.runs import layout
    from qat_tft.runs.folder import RunFolder

    if run is not None or picture is not None:
        other = "a run" if run is not None else "--picture"
        raise ConfigError(f"{other} is given beside --compare", next_step="Leave it out, or --compare")
    first, second = (RunFolder.find(one, runs_dir) for one in compared)
    found = compare_runs(first, second, lambda one: forecasts_of(exported(one)))
    usual = Path(runs_dir) / layout.COMPARISON
    page = written_page(lambda: comparison_page(found), Path(out) if out else None, usual)
    console.emit(found.with_page(page), json=json)
    if opened and page is not None:
        shown_in_browser(page)
    if not opened:
        pages = command("report", "--compare", *compared, "--open", runs_dir=runs_dir)
        say_next(f"{pages} shows them in the browser", json=json)
