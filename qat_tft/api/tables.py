"""Tables in memory on their way into a Parquet file: whatever speaks Arrow's PyCapsule interface, batch by batch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from qat_tft.api.wording import TRAINING, in_python
from qat_tft.atomic import scratch_folder, written_whole
from qat_tft.config.run import OWN_TABLE
from qat_tft.data.reading.source import open_source
from qat_tft.errors import DataError, SchemaError, cannot_write
from qat_tft.temporary import temporary_folder

_GROUP_ROWS = 2**17
_GROUP_BYTES = 2**27
"""Most of a table that waits in memory for being written, where the table is not there as a whole."""
_OF_ARROW = re.compile(r"Conversion failed for column (.+) with type (.+)", re.DOTALL)
_TAKEN = (
    "paths or URLs of Parquet files, or a table with Arrow's PyCapsule interface: of pandas 2.2 or later, polars, "
    "pyarrow, DuckDB and others"
)


class ArrowStream(Protocol):
    """A table that is handed over batch by batch."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a PyCapsule with a C stream of struct arrays."""
        ...


class ArrowBatch(Protocol):
    """A table that is handed over in one piece."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return two PyCapsules, with the schema and with one struct array."""
        ...


Table = ArrowStream | ArrowBatch
Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Table
"""Rows: a Parquet file, a folder, a URL of either or a list of them, or a table in memory."""


def is_table(data: object) -> TypeGuard[Table]:
    """Whether these data are a table in memory."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def name_of_table(argument: str) -> str:
    """Return what messages call a table in memory."""
    return f"the table given as `{argument}`"


def paths_of(data: object) -> tuple[str, ...]:
    """Return the paths and URLs that data are which are no table in memory.

    Raises:
        DataError: they are something else, or none.
    """
    named = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(named, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in named):
        way_on = "Call collect() first." if hasattr(data, "collect") else ""  # as lazy tables have it
        raise DataError(f"the data are of type {type(data).__name__}", allowed=_TAKEN, next_step=way_on)
    if not named:
        raise DataError("the list of Parquet files is empty", next_step="Name at least one file.")
    return tuple(os.fspath(one) for one in named)


@contextmanager
def as_files(**given: Data | None) -> Iterator[dict[str, tuple[str, ...]]]:
    """Give the paths of data by the name of their argument; tables in memory are files until the block ends.

    Errors from within are in the words of Python and call such a file the table that it holds.

    Raises:
        UserError: data are neither paths nor a table, a table cannot be written, or the error from within.
    """
    tables = {name: data for name, data in given.items() if is_table(data)}
    places: dict[str, str] = {}
    with ExitStack() as stack:
        stack.enter_context(in_python(places=places))
        folder = stack.enter_context(temporary_folder()) if tables else Path()
        files = {name: folder / f"{name}.parquet" for name in tables}
        places.update({str(file): name_of_table(name) for name, file in files.items()})
        for name, table in tables.items():
            write_table(table, files[name])
        rest = {name: paths_of(data) for name, data in given.items() if data is not None and name not in tables}
        yield {**rest, **{name: (str(file),) for name, file in files.items()}}


@contextmanager
def as_own_file(table: Table, runs_dir: Path) -> Iterator[Path]:
    """Give a file of a table, beside the runs, one of which can take it; it is gone when the block ends.

    So is a folder for runs that was made for it and stayed empty. Errors from within call the file the table.

    Raises:
        UserError: the table cannot be written, or the error from within.
    """
    new, places = not runs_dir.exists(), dict[str, str]()
    with ExitStack() as stack:
        stack.enter_context(in_python(ways=TRAINING, places=places, given=()))
        if new:
            stack.callback(_remove_if_empty, runs_dir)
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(scratch_folder(runs_dir / "table")) / OWN_TABLE
            places[str(file)] = "the table"
            write_table(table, file)
        except OSError as failure:
            way_on = "Free some space there, or choose another --runs-dir"
            raise cannot_write(" the table", str(runs_dir), failure, way_on) from None
        yield file


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def write_table(table: Table, path: Path) -> None:
    """Write a table as a Parquet file, whole or not at all; a stream that can be read once is read once.

    Raises:
        DataError: it is no table, cannot be handed over, or has a column that Parquet does not hold.
        OSError: the file system refuses.
    """
    with _opened(table) as reader, written_whole(path) as unfinished:
        schema = pa.schema(
            [field.with_type(_stored_type(field.type)) for field in reader.schema], reader.schema.metadata
        )
        nothing = schema.empty_table()
        with _naming_column(nothing), pq.ParquetWriter(unfinished, schema) as writer:
            for rows in _groups(reader, schema):
                with _naming_column(rows):
                    writer.write_table(rows, row_group_size=_GROUP_ROWS)


def require_columns(file: str, columns: Sequence[str]) -> None:
    """Refuse a table without one of these columns, with a word on the index that pandas has beside its columns.

    Raises:
        SchemaError: as `Source.require`.
    """
    source = open_source(file)
    for column in columns:
        try:
            source.require(column)
        except SchemaError as error:
            if b"pandas" not in (pq.read_schema(file).metadata or {}):
                raise
            hint = f"If it stands in the index, call reset_index() and name the column '{column}'."
            raise SchemaError(
                error.what, where=error.where, allowed=error.allowed, next_step=f"{error.next_step} {hint}".strip()
            ) from None


def _opened(table: Table) -> pa.RecordBatchReader:
    try:
        if hasattr(table, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(table)
        batch = pa.record_batch(table)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except Exception as failure:  # whatever the library that the table is of raises
        raise _not_handed_over(table, failure) from failure


def _not_handed_over(table: Table, failure: Exception) -> DataError:
    kind = type(table).__name__
    texts = [str(part) for part in failure.args] or [type(failure).__name__]
    for found in filter(None, map(_OF_ARROW.fullmatch, texts)):
        mixed = "values that have no common type" if found[2] == "object" else "values of a type that Arrow has not"
        return DataError(
            f"column '{found[1]}' of the {kind} holds {mixed} ({_first_line(texts[0])})",
            next_step="Give the column one type, such as with astype(str) or astype(float), or leave it out.",
        )
    if "non-struct" in texts[0]:
        return DataError(f"the data are one column, a {kind}", allowed=_TAKEN)
    return DataError(
        f"the {kind} cannot be handed over as an Arrow table: {_first_line(texts[0])}",
        next_step="Convert the columns that this is about, rename them, or leave them out.",
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _groups(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows, many together, in the types in which they are stored."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in _batches(reader):
        columns = [_stored(*pair) for pair in zip(batch.columns, schema.types, strict=True)]
        waiting.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        size += waiting[-1].nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as failure:
            raise DataError(f"the rows cannot be read to their end: {_first_line(str(failure))}") from failure
        yield batch


def _stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored, where pyarrow writes another one to Parquet than it has."""
    if pt.is_run_end_encoded(type_):
        return type_.value_type
    if pt.is_dictionary(type_) and pt.is_string_view(type_.value_type):  # categories of polars
        return pa.dictionary(type_.index_type, pa.string(), type_.ordered)
    return type_


def _stored(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    if pt.is_run_end_encoded(column.type):
        return pc.run_end_decode(column)
    values = column.dictionary.cast(pa.string())
    return pa.DictionaryArray.from_arrays(column.indices, values, ordered=type_.ordered)


@contextmanager
def _naming_column(rows: pa.Table) -> Iterator[None]:
    """Let an error of writing these rows name the column that is not written by itself either."""
    try:
        yield
    except pa.ArrowException:
        for place, field in enumerate(rows.schema):
            try:
                pq.write_table(rows.select([place]), pa.BufferOutputStream())
            except pa.ArrowException as failure:
                raise DataError(
                    f"column '{field.name}' is {field.type}, which Parquet files do not hold "
                    f"({_first_line(str(failure))})",
                    next_step="Convert it to another type, or leave it out.",
                ) from None
        raise
