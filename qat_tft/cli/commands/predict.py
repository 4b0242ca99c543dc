"""`qat-tft predict`: forecasts from an ONNX file and a Parquet file."""

from pathlib import Path
from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json


def predict(
    model: Annotated[
        Path, typer.Argument(help="ONNX file written by `qat-tft export`, or the folder of a run that has one.")
    ],
    parquet_file: Annotated[
        list[str],
        typer.Option(
            "--parquet-file",
            help="Parquet file, folder or URL with the training data's columns; repeatable.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write.")] = Path("forecasts.parquet"),
    origin: Annotated[
        str | None,
        typer.Option(
            help="Time of the last row used as history. Default: the latest possible, per series.", metavar="TIME"
        ),
    ] = None,
    future_file: Annotated[
        str | None,
        typer.Option(
            "--future-file",
            metavar="FILE",
            help="Parquet file, folder or URL with the rows to forecast: time, id and known columns. "
            "Default: the last rows of the data, those without a target.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of onnxruntime threads. Default: onnxruntime decides.")
    ] = None,
    json: Json = False,
) -> None:
    """Forecast the next steps of every series in a Parquet file, with onnxruntime.

    The last rows of a series may lack the target and the observed columns: they are the steps to forecast, unless a
    second file has them. A model that knows only the calendar of the future, or nothing, needs no such rows.
    """
    from qat_tft.export.inference.predict import forecast_parquet
    from qat_tft.export.inference.predict_report import write_predictions
    from qat_tft.export.inference.session import ForecastSession
    from qat_tft.export.verify.check import file_at

    file = ForecastSession(file_at(model), threads=threads)
    paths = parquet_file[0] if len(parquet_file) == 1 else parquet_file
    predictions = forecast_parquet(file, paths, origin=origin, future=future_file)
    console.emit(write_predictions(predictions, out), json=json)
    say_next(f"{command('backtest')} says how good such forecasts were at earlier times", json=json)
