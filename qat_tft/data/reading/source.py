"""Parquet files as one table, read in blocks of rows or column by column; every failure to read is one DataError."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qat_tft.errors import DataError, SchemaError, some_of
from qat_tft.texts import require_regular

Array = TypeVar("Array", pa.Array, pa.ChunkedArray)

_NAMED_ROWS = 5
_NAMED_COLUMNS = 12
_BLOCK_VALUES = 2**21
"""Most values of a block: 16 MiB of eight bytes each."""
_BUFFER = 2**20
"""Bytes of a file that are read at once, instead of a whole row group's."""
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NUMBER = 18  # digits that int64 holds whatever they are


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
        footers: metadata of each file, read once.
        schemas: Arrow schema of each file, the keys of its folders (``year=2024``) included.
        partitions: the values of those keys for each file.
        starts: int64 [files + 1], first row of each file in the whole.
    """

    label: str
    paths: tuple[Path, ...]
    footers: tuple[pq.FileMetaData, ...]
    schemas: tuple[pa.Schema, ...]
    partitions: tuple[Mapping[str, str | None], ...]
    starts: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows of all files together."""
        return int(self.starts[-1])

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

    def without(self, column: str) -> tuple[Path, ...]:
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
        types = self.types(name)
        arrays = []
        for place, (path, footer) in enumerate(zip(self.paths, self.footers, strict=True)):
            if name in self.partitions[place] or pa.types.is_null(types[place]):
                arrays.append(pa.chunked_array([self._constant(place, name, footer.num_rows)]))
                continue
            with _reading(path), pq.ParquetFile(path, metadata=footer) as file:
                array = _valid(file.read(columns=[name]).column(name))
            _require_rows(path, len(array), footer.num_rows)
            arrays.append(array)
        return arrays

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
        first = 0
        with _reading(path), pq.ParquetFile(path, metadata=footer, buffer_size=_BUFFER) as file:
            for groups in _together(footer, size):
                # A reader keeps what it has read of every row group: few at a time, or it ends up with the whole file.
                for batch in file.iter_batches(size, row_groups=groups, columns=columns):
                    for array in batch.columns:
                        _valid(array)
                    yield first, batch
                    first += batch.num_rows
        _require_rows(path, first, footer.num_rows)

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


def open_source(path: str | Path | Sequence[str | Path]) -> Source:
    """Find the files and read their footers.

    Args:
        path: a Parquet file, a folder (every ``.parquet`` file below it, by name) or a list of files. Folders below
            it that are called ``key=value`` give their files a column ``key``, of whole numbers if all values are.

    Raises:
        DataError: nothing is there, it cannot be read, or it is not Parquet.
    """
    label, paths = _files(path)
    partitions = _partitions(label, paths)
    footers, schemas = [], []
    for path_of_file in paths:
        with _reading(path_of_file), pq.ParquetFile(path_of_file) as file:
            footers.append(file.metadata)
            schemas.append(file.schema_arrow)
        _require_rows(path_of_file, _rows_of_groups(footers[-1]), footers[-1].num_rows)
    starts = np.cumsum([0, *(footer.num_rows for footer in footers)], dtype=np.int64)
    schemas = [
        _with_keys(schema, values, _key_types(partitions)) for schema, values in zip(schemas, partitions, strict=True)
    ]
    partitions = [  # a column of the file itself is worth more than the name of its folder
        {key: value for key, value in values.items() if key not in footer.schema.names}
        for values, footer in zip(partitions, footers, strict=True)
    ]
    return Source(label, paths, tuple(footers), tuple(schemas), tuple(partitions), starts)


def _files(path: str | Path | Sequence[str | Path]) -> tuple[str, tuple[Path, ...]]:
    if not isinstance(path, str | Path):
        files = tuple(Path(file) for file in path)
        if not files:
            raise DataError("the list of Parquet files is empty", next_step="Name at least one file.")
        return (str(files[0]) if len(files) == 1 else f"{len(files)} Parquet files"), files
    path = Path(path)
    with _reading(path):
        if not path.is_dir():
            return str(path), (path,)
        inside = sorted(
            file
            for file in path.rglob("*.parquet")
            if not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
        )
        list(path.iterdir())  # rglob passes over a folder that it may not read; this does not
    if not inside:
        raise DataError(
            "the folder holds no .parquet file", where=str(path), next_step="Name a Parquet file or its folder."
        )
    return str(path), tuple(inside)


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


def _partitions(label: str, paths: tuple[Path, ...]) -> list[dict[str, str | None]]:
    # Keys and values of the folders between the named folder and each file: year=2024/month=3/part.parquet.
    root = Path(label)
    found: list[dict[str, str | None]] = []
    for path in paths:
        folders = path.relative_to(root).parts[:-1] if path.is_relative_to(root) and path != root else ()
        pairs = (folder.partition("=") for folder in folders)
        texts = {unquote(key): unquote(value) for key, equals, value in pairs if equals and key}
        found.append({key: None if value == _NULL_PARTITION else value for key, value in texts.items()})
    return found


def _key_types(partitions: list[dict[str, str | None]]) -> dict[str, pa.DataType]:
    values: dict[str, list[str]] = {}
    for one in partitions:
        for key, value in one.items():
            values.setdefault(key, []).extend([value] if value is not None else [])
    return {key: pa.int64() if all(map(_is_whole, texts)) else pa.string() for key, texts in values.items()}


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < _LONGEST_NUMBER


def _with_keys(schema: pa.Schema, values: Mapping[str, str | None], types: Mapping[str, pa.DataType]) -> pa.Schema:
    for key in values:
        if key not in schema.names:
            schema = schema.append(pa.field(key, types[key]))
    return schema


def _valid(array: Array) -> Array:
    """Return an array whose texts are UTF-8, which Parquet promises and nothing checks; else ArrowInvalid."""
    type_ = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        array.validate(full=True)
    return array


def _rows_of_groups(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))


def _require_rows(path: Path, found: int, promised: int) -> None:
    """Refuse a file whose footer contradicts its content: what follows counts on the number of rows."""
    if found != promised or promised < 0:
        raise DataError(
            f"this is a damaged Parquet file: its footer says {promised:,} rows and it holds {found:,}",
            where=str(path),
            next_step="Write it again.",
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if not path.is_dir():
            require_regular(path)
        yield
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path), next_step="Check the path.") from None
    except PermissionError:
        raise DataError("no permission to read it", where=str(path), next_step="Check its permissions.") from None
    except pa.ArrowInvalid as error:
        raise DataError(
            f"this is not a complete Parquet file: {_first_line(error)}",
            where=str(path),
            allowed="Parquet; for example pandas writes it with DataFrame.to_parquet",
        ) from None
    except (UnicodeDecodeError, OverflowError, IndexError) as error:  # out of a damaged footer
        raise DataError(
            f"this is a damaged Parquet file: {_first_line(error)}", where=str(path), next_step="Write it again."
        ) from None
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise DataError(
            f"the file cannot be read: {_first_line(error)}",
            where=str(path),
            next_step="Check that it was written completely.",
        ) from None


def _no_such_column(column: str, path: Path, names: list[str]) -> SchemaError:
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
