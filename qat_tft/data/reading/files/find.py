"""Which files a path or URL means."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qat_tft.data.reading.files.data_file import DataFile, LocalFile
from qat_tft.data.reading.files.failures import reading
from qat_tft.data.reading.files.http_file import HttpFile
from qat_tft.data.reading.files.object_store import ObjectStore
from qat_tft.data.reading.files.url import WEB, Url, is_url
from qat_tft.errors import DataError

Paths = str | Path | Sequence[str | Path]
"""A file, a folder, a URL of either, or a list of them. A URL is text: ``Path`` would take slashes out of it."""

SUFFIXES = (".parquet", ".parq", ".pq")
"""What the names of Parquet files in a folder end with, in letters of either case."""


@dataclass(frozen=True)
class Files:
    """Files in the order in which they are read.

    Attributes:
        label: what messages call them: the file, or the folder or list.
        each: all of them.
    """

    label: str
    each: tuple[DataFile, ...]


def find_files(paths: Paths) -> Files:
    """The files that are meant.

    Args:
        paths: of a folder every Parquet file below it, by name; what begins with ``_`` or ``.`` is left out, as
            Spark and Dask mean it. A URL of a web server is one file, since it lists none.

    Raises:
        DataError: nothing is there, it cannot be read or listed, or a URL is none that can be read.
    """
    stores: dict[str, ObjectStore] = {}  # one for each bucket
    if isinstance(paths, str | Path):
        return Files(str(paths), tuple(_below(paths, stores)))
    if not paths:
        raise DataError("the list of Parquet files is empty", next_step="Name at least one file.")
    files = tuple(file for one in paths for file in _below(one, stores))
    return Files(str(paths[0]) if len(paths) == 1 else f"{len(files)} Parquet files", files)


def _below(path: str | Path, stores: dict[str, ObjectStore]) -> Sequence[DataFile]:
    if not is_url(str(path)):
        return _in_folder(Path(path))
    url = Url.parse(str(path))
    if url.scheme in WEB:
        return [HttpFile(url)]
    with reading(url.text):
        bucket = f"{url.scheme}://{url.bucket}"
        store = stores.get(bucket) or ObjectStore.of(url)
        stores[bucket] = store
        single = store.find(url)
        if single is not None:
            return [single]
        inside = [file for name, file in store.below(url) if is_data(name.split("/"))]
    return _some(inside, url.text)


def _in_folder(path: Path) -> Sequence[DataFile]:
    with reading(str(path)):
        if not path.is_dir():
            return [LocalFile(path)]
        inside = sorted(file for file in path.rglob("*") if is_data(file.relative_to(path).parts) and file.is_file())
        list(path.iterdir())  # rglob passes over a folder that it may not read; this does not
    return _some([LocalFile(file) for file in inside], str(path))


def _some(files: Sequence[DataFile], where: str) -> Sequence[DataFile]:
    if not files:
        raise DataError(
            f"the folder holds no {SUFFIXES[0]} file", where=where, next_step="Name a Parquet file or its folder."
        )
    return files


def is_data(parts: Sequence[str]) -> bool:
    """Whether a file is read with its folder: names from the folder down to the file."""
    hidden = any(part.startswith(("_", ".")) for part in parts)
    return not hidden and parts[-1].lower().endswith(SUFFIXES)
