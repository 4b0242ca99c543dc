"""Parquet files as one table, read column by column; every failure to read is one DataError."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qat_tft.errors import DataError, SchemaError

_NAMED_ROWS = 5
_NAMED_COLUMNS = 12


@dataclass(frozen=True)
class Source:
    """One or several Parquet files whose rows stand one after the other.

    Attributes:
        label: what messages call it: the file, or the folder or list.
        paths: the files, in the order in which they are read.
        footers: metadata of each file, read once.
        schemas: Arrow schema of each file.
        starts: int64 [files + 1], first row of each file in the whole.
    """

    label: str
    paths: tuple[Path, ...]
    footers: tuple[pq.FileMetaData, ...]
    schemas: tuple[pa.Schema, ...]
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
        """Type of a column in each file; SchemaError with close matches if one lacks it."""
        found = []
        for path, schema in zip(self.paths, self.schemas, strict=True):
            places = schema.get_all_field_indices(column)
            if not places:
                raise _no_such_column(column, path, schema.names)
            if len(places) > 1:
                raise DataError(
                    f"{len(places)} columns are called '{column}'",
                    where=str(path),
                    next_step="Give each column its own name.",
                )
            found.append(schema.field(places[0]).type)
        return tuple(found)

    def column(self, name: str) -> list[pa.ChunkedArray]:
        """Read one column: one array per file."""
        self.types(name)
        arrays = []
        for path, footer in zip(self.paths, self.footers, strict=True):
            with _reading(path), pq.ParquetFile(path, metadata=footer) as file:
                arrays.append(file.read(columns=[name]).column(name))
        return arrays

    def locate(self, rows: npt.NDArray[np.int64]) -> str:
        """Name the first few of these rows: ``rows 3, 8 and 120 more (counted from 0)``."""
        named = np.sort(rows)[:_NAMED_ROWS]
        files = np.searchsorted(self.starts, named, side="right") - 1
        if len(self.paths) == 1:
            text = ", ".join(str(row) for row in named)
        else:
            places = zip(named, files, strict=True)
            text = ", ".join(f"{row - self.starts[file]} of {self.paths[file]}" for row, file in places)
        rest = len(rows) - len(named)
        more = f" and {rest:,} more" if rest else ""
        return f"row{'s' if len(rows) > 1 else ''} {text}{more} (counted from 0)"


def open_source(path: str | Path | Sequence[str | Path]) -> Source:
    """Find the files and read their footers.

    Args:
        path: a Parquet file, a folder (every ``.parquet`` file below it, by name) or a list of files.

    Raises:
        DataError: nothing is there, it cannot be read, or it is not Parquet.
    """
    label, paths = _files(path)
    footers, schemas = [], []
    for path_of_file in paths:
        with _reading(path_of_file), pq.ParquetFile(path_of_file) as file:
            footers.append(file.metadata)
            schemas.append(file.schema_arrow)
    starts = np.cumsum([0, *(footer.num_rows for footer in footers)], dtype=np.int64)
    return Source(label, paths, tuple(footers), tuple(schemas), starts)


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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path), next_step="Check the path.") from None
    except PermissionError:
        raise DataError("no permission to read it", where=str(path), next_step="Check its access rights.") from None
    except pa.ArrowInvalid as error:
        raise DataError(
            f"this is not a complete Parquet file: {_first_line(error)}",
            where=str(path),
            allowed="Parquet; for example pandas writes it with DataFrame.to_parquet",
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"the file cannot be read: {_first_line(error)}",
            where=str(path),
            next_step="Check that it was written to its end.",
        ) from None


def _no_such_column(column: str, path: Path, names: list[str]) -> SchemaError:
    close = difflib.get_close_matches(column, names, n=3, cutoff=0.5)
    folded = [name for name in names if name.casefold() == column.casefold()]
    matches = list(dict.fromkeys(folded + close))
    shown = ", ".join(f"'{name}'" for name in names[:_NAMED_COLUMNS])
    more = f" and {len(names) - _NAMED_COLUMNS} more" if len(names) > _NAMED_COLUMNS else ""
    return SchemaError(
        f"there is no column '{column}'",
        where=str(path),
        allowed=f"{shown}{more}" if names else "the file has no columns",
        next_step=f"Did you mean {' or '.join(repr(name) for name in matches)}?" if matches else "",
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
