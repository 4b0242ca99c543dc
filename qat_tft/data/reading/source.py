"""Parquet files as one table, read in blocks of rows or column by column."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qat_tft.data.reading.files.data_file import DataFile, State, for_each, unchanged
from qat_tft.data.reading.files.failures import reading
from qat_tft.data.reading.files.find import Files, Paths, find_files
from qat_tft.data.reading.files.partitions import Keys, folder_keys, key_types
from qat_tft.errors import DataError, SchemaError, some_of

_NAMED_ROWS = 5
_NAMED_COLUMNS = 12
_BLOCK_VALUES = 2**21
"""Most values of a block: 16 MiB of eight bytes each."""
_BUFFER = 2**20
"""Bytes of a column that are read at once where its row group is too large to be fetched ahead."""
_FETCHED = 2**28
"""Most bytes of a row group that are fetched ahead of their decoding."""
_MICROSECONDS = np.iinfo(np.int64).max // 1000  # that 64-bit nanoseconds represent


@dataclass
class Rows:
    """Rows to be named in a message: the first few and how many there are."""

    first: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, rows: npt.NDArray[np.int64]) -> None:
        """Take in further rows of the source."""
        self.first = sorted([*self.first, *np.sort(rows)[:_NAMED_ROWS].tolist()])[:_NAMED_ROWS]
        self.count += len(rows)

    @classmethod
    def of(cls, rows: npt.NDArray[np.int64]) -> "Rows":
        """All of these rows."""
        found = cls()
        found.add(rows)
        return found


@dataclass(frozen=True)
class Source:
    """One or several Parquet files whose rows stand one after the other.

    Attributes:
        label: what messages call it: the file, or the folder or list.
        paths: the files, in the order in which they are read.
        states: the state in which each file's metadata were read.
        footers: metadata of each file, read once.
        schemas: Arrow schema of each file, the keys of its folders (``year=2024``) included.
        partitions: the values of those keys for each file.
        starts: int64 [files + 1], first row of each file in the whole.
        planned: number of files, the last ones, whose rows are planned.
    """

    label: str
    paths: tuple[DataFile, ...]
    states: tuple[State, ...]
    footers: tuple[pq.FileMetaData, ...]
    schemas: tuple[pa.Schema, ...]
    partitions: tuple[Keys, ...]
    starts: npt.NDArray[np.int64]
    planned: int = 0

    @property
    def rows(self) -> int:
        """Rows of all files together."""
        return int(self.starts[-1])

    @property
    def measured_rows(self) -> int:
        """Rows of the files that are not planned; the others stand after them."""
        return int(self.starts[-1 - self.planned])

    @property
    def names(self) -> tuple[str, ...]:
        """Column names of the first file and, after them, those that only later files have."""
        return tuple(dict.fromkeys(name for schema in self.schemas for name in schema.names))

    def types(self, column: str) -> tuple[pa.DataType, ...]:
        """Type of a column in each file, null where a file lacks it; SchemaError with close matches if all do."""
        found = []
        for path, schema in zip(self.paths, self.schemas, strict=True):
            places = schema.get_all_field_indices(column)
            if len(places) > 1:
                raise DataError(
                    f"{len(places)} columns are called '{column}'",
                    where=str(path),
                    next_step="Give each column its own name.",
                )
            found.append(schema.field(places[0]).type if places else pa.null())
        if len(self.without(column)) == len(self.paths):
            raise _no_such_column(column, self.paths[0], self.schemas[0].names)
        return tuple(found)

    def without(self, column: str) -> tuple[DataFile, ...]:
        """The files that lack a column."""
        return tuple(path for path, schema in zip(self.paths, self.schemas, strict=True) if column not in schema.names)

    def require(self, column: str) -> None:
        """Refuse a column that one of the files lacks, with a SchemaError that names the file."""
        self.types(column)
        for path, schema in zip(self.paths, self.schemas, strict=True):
            if column not in schema.names:
                raise _no_such_column(column, path, schema.names)

    def column(self, name: str) -> list[pa.ChunkedArray]:
        """Read one column: one array per file, of nulls where a file lacks it."""
        arrays: list[list[pa.Array]] = [[] for _ in self.paths]
        for first, block in self.blocks([name]):
            arrays[int(np.searchsorted(self.starts, first, side="right")) - 1].append(block[name])
        types = self.types(name)
        return [pa.chunked_array(one, None if one else type_) for one, type_ in zip(arrays, types, strict=True)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """All rows in order, some at a time: the number of the first one, and an array per column.

        A block holds about 2 million values, whatever the row groups of the files.
        """
        size = max(1, _BLOCK_VALUES // max(1, len(columns)))
        for place, start in enumerate(self.starts[:-1].tolist()):
            stored = [name for name in columns if name in self.schemas[place].names]
            stored = [name for name in stored if name not in self.partitions[place]]
            for first, batch in self._batches(place, stored, size):
                count = min(size, self.footers[place].num_rows - first) if batch is None else batch.num_rows
                arrays = {name: batch.column(name) for name in stored} if batch is not None else {}
                for name in columns:
                    if name not in arrays:
                        arrays[name] = self._constant(place, name, count)
                yield start + first, arrays

    def _batches(self, place: int, columns: list[str], size: int) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        # First row of each batch of a file and the batch; None for it where nothing is to be read from the file.
        path, footer = self.paths[place], self.footers[place]
        if not columns:
            yield from ((first, None) for first in range(0, footer.num_rows, size))
            return
        first, unit = 0, self._int96_unit(place, columns, size)
        with self._reader(place, unit, columns) as file:
            for groups in _together(footer, size):
                # A reader keeps what it has read of every row group: few at a time, or it ends up with the whole file.
                for batch in file.iter_batches(size, row_groups=groups, columns=columns):
                    for array in batch.columns:
                        _valid(array)
                    yield first, batch
                    first += batch.num_rows
        _require_rows(path, first, footer.num_rows)

    @contextmanager
    def _reader(self, place: int, int96: str | None, columns: list[str]) -> Iterator[pq.ParquetFile]:
        file, footer = self.paths[place], self.footers[place]
        # Fetched ahead, all ranges of a row group are asked for at once, which hides how long a store takes to answer.
        ahead = max(_stored_bytes(footer, columns), default=0) <= _FETCHED
        with (
            unchanged(file, self.states[place]),
            reading(str(file)),
            file.opened() as opened,
            pq.ParquetFile(
                opened.content,
                metadata=footer,
                pre_buffer=ahead,
                buffer_size=0 if ahead else _BUFFER,
                coerce_int96_timestamp_unit=int96,
            ) as parquet,
        ):
            yield parquet

    def _int96_unit(self, place: int, columns: list[str], size: int) -> str | None:
        # Old times of 96 bits read as nanoseconds overflow without a word: year 9999 becomes 1816. Where one does, they
        # are read as microseconds, which hold it, so that it is refused like any other.
        old = sorted(_stored_as_int96(self.footers[place]).intersection(columns))
        if not old:
            return None
        with self._reader(place, "us", old) as file:
            for batch in file.iter_batches(size, columns=old):
                for times in batch.columns:
                    largest = pc.max(pc.abs(times.cast(pa.int64()))).as_py()
                    if largest is not None and largest > _MICROSECONDS:
                        return "us"
        return None

    def _constant(self, place: int, name: str, rows: int) -> pa.Array:
        value = self.partitions[place].get(name)
        type_ = self.types(name)[place]
        return pa.repeat(pa.scalar(value).cast(type_), rows) if value is not None else pa.nulls(rows, type_)

    def locate(self, rows: Rows) -> str:
        """Name the first few of these rows: ``rows 3, 8 and 120 more (counted from 0)``."""
        named = np.array(rows.first)
        files = np.searchsorted(self.starts, named, side="right") - 1
        if len(self.paths) == 1:
            text = ", ".join(str(row) for row in named)
        else:
            places = zip(named, files, strict=True)
            text = ", ".join(f"{row - self.starts[file]} of {self.paths[file]}" for row, file in places)
        rest = rows.count - len(named)
        more = f" and {rest:,} more" if rest else ""
        return f"row{'s' if rows.count > 1 else ''} {text}{more} (counted from 0)"


@dataclass(frozen=True)
class Planned:
    """Files that hold rows to forecast: what is planned, not what was measured.

    Attributes:
        path: as ``open_source`` takes it.
        columns: what is read of them, if it is there.
    """

    path: Paths
    columns: Collection[str]


def open_source(path: Paths | Files, planned: Planned | None = None) -> Source:
    """Find the files and read their footers. Files without rows say nothing, unless no file has any.

    Args:
        path: a Parquet file, a folder (every Parquet file below it, by name), a URL of either or a list of them, or
            files that were found before. Folders in the path of a file that are called ``key=value`` give it a
            column ``key``.
        planned: files whose rows stand after all others.

    Raises:
        DataError: nothing is there, it cannot be read, or it is not Parquet.
    """
    found = path if isinstance(path, Files) else find_files(path)
    paths, measured = found.each, len(found.each)
    if planned is not None:
        paths = (*paths, *find_files(planned.path).each)
    types = key_types([folder_keys(file.parts) for file in paths])
    opened = for_each(paths, lambda file: _open_file(file, types))
    if planned is not None:
        opened[measured:] = [one.only(planned.columns) for one in opened[measured:]]
    read = [place for place, one in enumerate(opened) if one.footer.num_rows] or list(range(len(opened)))
    files = [opened[place] for place in read]
    return Source(
        found.label,
        tuple(one.path for one in files),
        tuple(one.state for one in files),
        tuple(one.footer for one in files),
        tuple(one.schema for one in files),
        tuple(one.keys for one in files),
        np.cumsum([0, *(one.footer.num_rows for one in files)], dtype=np.int64),
        sum(place >= measured for place in read),
    )


@dataclass(frozen=True)
class _File:
    path: DataFile
    state: State
    footer: pq.FileMetaData
    schema: pa.Schema
    keys: Keys

    def only(self, columns: Collection[str]) -> "_File":
        fields = [field for field in self.schema if field.name in columns]
        return _File(self.path, self.state, self.footer, pa.schema(fields), self.keys)


def _open_file(path: DataFile, types: dict[str, pa.DataType]) -> _File:
    with reading(str(path)), path.opened() as opened, pq.ParquetFile(opened.content) as file:
        state, footer, schema = opened.state, file.metadata, file.schema_arrow
        _require_rows(path, _rows_of_groups(footer), footer.num_rows)
    # A column of the file itself is worth more than the name of its folder.
    own = {key: value for key, value in folder_keys(path.parts).items() if key not in schema.names}
    for key in own:
        schema = schema.append(pa.field(key, types[key]))
    return _File(path, state, footer, schema, own)


def _together(footer: pq.FileMetaData, size: int) -> Iterator[list[int]]:
    """Row groups of a file in order, neighbours together as long as they hold no more than ``size`` rows."""
    groups: list[int] = []
    rows = 0
    for group in range(footer.num_row_groups):
        count = footer.row_group(group).num_rows
        if groups and rows + count > size:
            yield groups
            groups, rows = [], 0
        groups.append(group)
        rows += count
    if groups:
        yield groups


def _stored_bytes(footer: pq.FileMetaData, columns: list[str]) -> Iterator[int]:
    """Compressed bytes of some columns in each row group."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        parts = map(group.column, range(group.num_columns))
        yield sum(part.total_compressed_size for part in parts if part.path_in_schema.partition(".")[0] in columns)


def _stored_as_int96(footer: pq.FileMetaData) -> set[str]:
    return {column.path for column in footer.schema if column.physical_type == "INT96"}


def _valid(array: pa.Array) -> None:
    """Refuse an array whose texts are not UTF-8, which Parquet promises and nothing checks, with ArrowInvalid."""
    type_ = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        array.validate(full=True)


def _rows_of_groups(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))


def _require_rows(path: DataFile, found: int, promised: int) -> None:
    """Refuse a file whose footer contradicts its content: what follows counts on the number of rows."""
    if found != promised or promised < 0:
        raise DataError(
            f"this is a damaged Parquet file: its footer says {promised:,} rows and it holds {found:,}",
            where=str(path),
            next_step="Write it again.",
        )


def _no_such_column(column: str, path: DataFile, names: list[str]) -> SchemaError:
    close = difflib.get_close_matches(column, names, n=3, cutoff=0.5)
    folded = [name for name in names if name.casefold() == column.casefold()]
    matches = list(dict.fromkeys(folded + close))
    shown = some_of([f"'{name}'" for name in names], _NAMED_COLUMNS)
    return SchemaError(
        f"there is no column '{column}'",
        where=str(path),
        allowed=shown if names else "the file has no columns",
        next_step=f"Did you mean {' or '.join(repr(name) for name in matches)}?" if matches else "",
    )
