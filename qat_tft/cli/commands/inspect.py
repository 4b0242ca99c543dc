"""`qat-tft inspect`: what a Parquet file holds, and a schema to start from."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.display.work_progress import WorkDisplay
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json


def inspect(
    file: Annotated[list[str], typer.Argument(help="Parquet file, a folder of them, or a URL; repeatable.")],
    time: Annotated[str | None, typer.Option("--time", help="Time column. Default: proposed.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Column to forecast. Default: proposed.")] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Columns that together identify a series, separated by commas; '' for a single series. "
            "Default: proposed.",
            metavar="COLUMNS",
        ),
    ] = None,
    write_schema: Annotated[
        str | None,
        typer.Option(
            "--write-schema", help="Write the proposed schema to this file. Default: not written.", metavar="FILE"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show columns, types, ranges, gaps, series and frequency, and propose a schema.

    Rows, ranges and counts cover the whole file. The schema is a draft: review it before training, above all which
    column is the target and which columns are really known in advance.
    """
    from qat_tft.data.roles.inspection import inspect_file

    ids = None if id is None else [name.strip() for name in id.split(",") if name.strip()]
    with WorkDisplay(json=json) as shown:
        paths = file[0] if len(file) == 1 else file
        inspection = inspect_file(paths, time=time, target=target, ids=ids, told=shown.part)
    written = None if write_schema is None else inspection.write_schema(write_schema)
    console.emit(inspection, json=json)
    if written is not None:
        console.note(f"Schema written to {written}")
        files = [word for one in file for word in ("--parquet-file", one)]
        training = command("train", *files, "--schema", str(written), "--use-qat")
        say_next(f"read {written}, above all which column is the target, then {training}", json=json)
    elif inspection.schema is not None:
        say_next(f"{command('inspect', *file, '--write-schema', 'schema.toml')} writes the proposal", json=json)
