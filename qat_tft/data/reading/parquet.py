"""Read Parquet files into a Panel: checked, sorted, one shared float32 buffer, in blocks of bounded memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import NO_PREPARATION, Preparation
from qat_tft.data.reading import cache as caching
from qat_tft.data.reading.derived import fill_in
from qat_tft.data.reading.duplicates import without_duplicates
from qat_tft.data.reading.files.find import Paths, find_files
from qat_tft.data.reading.fingerprint import fingerprint
from qat_tft.data.reading.gap_policy import prepare_gaps
from qat_tft.data.reading.keys import read_keys
from qat_tft.data.reading.refusals import refuse_missing
from qat_tft.data.reading.rows import read_rows
from qat_tft.data.reading.source import Planned, Source, open_source
from qat_tft.data.reading.storage import Memory, Storage, as_tensor
from qat_tft.errors import DataError
from qat_tft.schema import Schema

MAPPED_BYTES = 2**28
"""Panels of at least so many bytes live in mapped files instead of memory."""

ReadingProgress = Callable[[int, int], None]
"""Is told how many of how many rows have been read."""


def read_panel(
    path: Paths,
    schema: Schema,
    preparation: Preparation = NO_PREPARATION,
    *,
    checked: bool = True,
    future: Paths | None = None,
    cache: Path | None = None,
    progress: ReadingProgress | None = None,
) -> Panel:
    """Read the columns that a schema names, sorted by series and time.

    What it takes of memory does not grow with the rows: a large panel (``MAPPED_BYTES``) lives in mapped files.

    Args:
        path: a Parquet file, a folder of such files, a URL of either or a list of them. Rows may stand in any order,
            and the files may differ in the width of numbers, the unit of time, and in columns that some of them lack.
        schema: the roles of the columns; other columns are not read.
        preparation: what to do with duplicates, gaps and missing values, and which columns to derive.
        checked: refuse missing values that no policy allows, infinities and numbers that float32 does not tell apart.
            For training; a forecast needs no more than its own windows, which ``require_values`` checks.
        future: files with rows to forecast, of which only the time, the ids, the known and the static columns are read:
            what they plan never replaces what was measured. Goes with ``checked=False``.
        cache: folder that keeps large panels, so that the next reading of the same files is at once; None keeps
            nothing.
        progress: is told the rows read, of twice the rows there are, since keys and values are read apart.

    Returns:
        The panel, raw; its schema is ``preparation.effective_schema``. A null in a category column, and every
        category of a file that lacks the column, is the category ``<null>``. A missing value that is allowed is
        NaN: ``filling.with_fills`` tells what stands in for it. A static real column has the one value that its
        series has anywhere, or NaN.

    Raises:
        DataError: a file that cannot be read, no rows, a value of a type that its role does not take, a null or
            NaN in a real column without a policy, an infinity, a (series, time) that occurs twice or a time step
            without a row where that is not allowed, a static column that changes within a series. The message
            names the file, the column and the first rows.
        SchemaError: a column that no file has, with close matches, or a derived one that they have.
    """
    files, kept = find_files(path), None
    key = caching.Key(files, schema, preparation)
    if cache is not None and checked:
        kept = caching.find_kept(cache, key)
        if kept.panel is not None:
            return kept.panel
    source = open_source(files, None if future is None else Planned(future, _planned_columns(schema)))
    for column in schema.used_columns:
        source.types(column)  # every missing column is found before anything large is read
    if source.rows == 0:
        raise DataError("there are no rows", where=source.label)
    effective = preparation.effective_schema(schema)
    if source.rows * effective.group("historical").size * np.dtype(np.float32).itemsize < MAPPED_BYTES:
        return _read(source, schema, preparation, Memory(), checked, progress)

    def read(storage: Storage) -> Panel:
        return _read(source, schema, preparation, storage, checked, progress)

    if cache is None or kept is None:
        return caching.read_without_keeping(read)
    return caching.read_and_keep(cache, key, read, kept)


def _read(
    source: Source,
    schema: Schema,
    preparation: Preparation,
    storage: Storage,
    checked: bool,
    progress: ReadingProgress | None,
) -> Panel:
    advance = _counter(progress, 2 * source.rows)
    effective = preparation.effective_schema(schema)
    keys = read_keys(source, schema, storage, advance, preparation.time)
    rows = read_rows(source, schema, effective, keys, storage, advance, checked=checked)
    pa.default_memory_pool().release_unused()  # nothing more is read, and what it holds would stay with the process
    rows = without_duplicates(rows, preparation.duplicates, source, effective, keys)
    rows, stretches, preparation = prepare_gaps(rows, preparation, source, effective, keys, storage)
    if checked:
        refuse_missing(rows, preparation, source, effective, keys)
    rows = fill_in(rows, preparation, effective, keys, where=source.label)
    panel = Panel(
        schema=effective,
        values=as_tensor(rows.values),
        static=torch.from_numpy(rows.static),
        time=as_tensor(rows.time),
        series_start=torch.from_numpy(rows.starts),
        series_ids=keys.series_ids,
        series_code=torch.zeros(len(keys.series_ids), dtype=torch.int64),
        time_kind=keys.kind,
        time_zone=keys.zone,
        dictionaries=rows.dictionaries,
        source=source.label,
        notes=(*_lacking(source, schema), *rows.notes),
        preparation=preparation,
        largest=rows.largest,
        stretch_start=None if stretches is None else torch.from_numpy(stretches),
        checked=checked,
    )
    return replace(panel, fingerprint=fingerprint(panel)) if checked else panel


def _planned_columns(schema: Schema) -> tuple[str, ...]:
    return (schema.time, *schema.id, *schema.known.names, *schema.static.names)


def _counter(progress: ReadingProgress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    return advance


def _lacking(source: Source, schema: Schema) -> list[str]:
    notes = []
    for column in schema.used_columns:
        planned = source.paths[len(source.paths) - source.planned :]
        files = [file for file in source.without(column) if file not in planned]  # those need not have it
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            notes.append(f"column '{column}' is read as missing in {files[0]}{more}, which lack it.")
    return notes
