"""A file that holds rows, on this machine or elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qat_tft.errors import DataError
from qat_tft.texts import require_regular

_AT_ONCE = 16
"""Requests to stores that wait at the same time."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class State:
    """What tells the content of a file from a later one under the same name.

    Attributes:
        size: bytes.
        modified: nanoseconds, or 0 where a server does not say.
        etag: a store's own mark of the content, or "".
    """

    size: int
    modified: int
    etag: str = ""


@dataclass(frozen=True)
class Opened:
    """An open file: ``content`` is what ``pyarrow.parquet.ParquetFile`` reads from."""

    content: Any
    state: State


class DataFile(ABC):
    """One file; ``str()`` of it is what messages call it.

    Its methods raise what the system or the store says; ``failures.reading`` turns that into a message.
    """

    remote = True
    """Whether every read is a request to another machine."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """The names of its folders and its own."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The same for the same file, however it was named."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Opened]:
        """Open it to read ranges of it; nothing else is fetched."""

    @abstractmethod
    def state(self) -> State:
        """Its state now."""


@dataclass(frozen=True)
class LocalFile(DataFile):
    """A file of this machine."""

    path: Path
    remote = False

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        """As of the path that was given."""
        return self.path.parts

    @property
    def identity(self) -> str:
        """Its path without links."""
        return str(self.path.resolve())

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Leave the opening to Arrow; OSError where it is no regular file."""
        require_regular(self.path)
        yield Opened(str(self.path), self.state())

    def state(self) -> State:
        """Size and time of modification."""
        stat = self.path.stat()
        return State(stat.st_size, stat.st_mtime_ns)


@contextmanager
def unchanged(file: DataFile, state: State) -> Iterator[None]:
    """Refuse what was read in the block if a remote file is not in this state, be it damaged or seemingly whole.

    Raises:
        DataError: it has changed, or the block raises one.
    """
    try:
        yield
    except DataError:
        _require(file, state)
        raise
    _require(file, state)


def for_each(files: Sequence[DataFile], function: Callable[[DataFile], _Found]) -> list[_Found]:
    """What a function makes of each file, in their order; some at a time where each call waits for another machine."""
    if len(files) < 2 or not any(file.remote for file in files):
        return [function(file) for file in files]
    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as threads:
        return list(threads.map(function, files))


def _require(file: DataFile, state: State) -> None:
    if file.remote and file.state() != state:
        raise DataError(
            "the object changed while it was read",
            where=str(file),
            next_step="Read it again once nothing writes to it, or write each version under a name of its own.",
        )
