"""`qat-tft sample-data`: data to try things on."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json


def sample_data(
    out: Annotated[
        str, typer.Option("--out", help="Parquet file to write; its schema is written next to it.", metavar="FILE")
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="tft225: simulated futures bars, 5 static, 210 observed and 10 known columns. "
            "rentals: the embedded hourly bike rentals (CC BY 4.0).",
            metavar="tft225|rentals",
        ),
    ] = "tft225",
    rows: Annotated[
        int | None,
        typer.Option(
            help="Total number of rows over the four contracts; tft225 only. Default: 20000.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    json: Json = False,
) -> None:
    """Write sample data and its schema.

    The bars of tft225 are random numbers that behave like a market's; the file says so in its metadata.
    """
    from qat_tft.data.sample.samples import describe_sample, write_sample

    console.emit(describe_sample(write_sample(preset, rows, out, overwrite=overwrite)), json=json)
    say_next(f"{command('train', '--parquet-file', out, '--use-qat')} finds the schema beside the file", json=json)
