"""Which files a path means, and the columns that the names of folders give them: ``store=7/part-0.parquet``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from qat_tft.errors import DataError
from qat_tft.texts import require_regular

SUFFIXES = (".parquet", ".parq", ".pq")
"""What the names of Parquet files in a folder end with, in letters of either case."""

_NULL_KEY = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NUMBER = 18  # digits that int64 holds whatever they are

Keys = Mapping[str, str | None]
"""Columns that the folders above a file give it, and their values; None for a null."""


def find_files(path: str | Path | Sequence[str | Path]) -> tuple[str, tuple[Path, ...]]:
    """What messages call this path, and its files in the order in which they are read.

    Args:
        path: a file, a folder, or a list of both. Of a folder every Parquet file below it, by name; what begins
            with ``_`` or ``.`` is left out, as Spark and Dask mean it.

    Raises:
        DataError: nothing is there, or it cannot be read.
    """
    if isinstance(path, str | Path):
        return str(path), tuple(_below(Path(path)))
    if not path:
        raise DataError("the list of Parquet files is empty", next_step="Name at least one file.")
    files = tuple(file for one in path for file in _below(Path(one)))
    return (str(path[0]) if len(path) == 1 else f"{len(files)} Parquet files"), files


def folder_keys(path: Path) -> dict[str, str | None]:
    """Keys and values of the folders in a path: those of ``data/year=2024/month=3/part.parquet`` are two."""
    pairs = (folder.partition("=") for folder in path.parts[:-1])
    texts = {unquote(key): unquote(value) for key, equals, value in pairs if equals and key}
    return {key: None if value == _NULL_KEY else value for key, value in texts.items()}


def key_types(keys: Sequence[Keys]) -> dict[str, pa.DataType]:
    """Type of each key: whole numbers or booleans if all of its values are written like one, else text.

    A number with leading zeros is text, since ``007`` and ``7`` are two names.
    """
    values: dict[str, list[str]] = {}
    for one in keys:
        for key, value in one.items():
            values.setdefault(key, []).extend([value] if value is not None else [])
    return {key: _type(texts) for key, texts in values.items()}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every failure to read a file into one DataError."""
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


def _below(path: Path) -> list[Path]:
    with reading(path):
        if not path.is_dir():
            return [path]
        inside = sorted(file for file in path.rglob("*") if _is_data(file.relative_to(path)) and file.is_file())
        list(path.iterdir())  # rglob passes over a folder that it may not read; this does not
    if not inside:
        raise DataError(
            f"the folder holds no {SUFFIXES[0]} file", where=str(path), next_step="Name a Parquet file or its folder."
        )
    return inside


def _is_data(inside: Path) -> bool:
    hidden = any(part.startswith(("_", ".")) for part in inside.parts)
    return not hidden and inside.suffix.lower() in SUFFIXES


def _type(texts: list[str]) -> pa.DataType:
    if texts and all(text in ("true", "false") for text in texts):
        return pa.bool_()
    return pa.int64() if all(map(_is_whole, texts)) else pa.string()


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(text) < _LONGEST_NUMBER and str(int(text)) == text


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
