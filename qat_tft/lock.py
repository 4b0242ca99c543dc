"""Locks of files and folders that end with the process that holds them: nothing is left of a killed one."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

if sys.platform != "win32":
    import fcntl


_POLL = 0.1
"""Seconds between two looks at a lock that another process holds."""


class Held(Enum):
    """Who holds a lock after it was asked for."""

    OURS = "this process"
    ANOTHERS = "another process, or the file was removed meanwhile"
    NOBODYS = "nobody can: this system or file system has no such locks"


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of a file, which is made for that and gone afterwards.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        path.touch()
        with suppress(FileNotFoundError):  # whoever had it has just removed it
            hold = Hold(path)
            if hold.held is not Held.ANOTHERS:
                break
            hold.close()
        time.sleep(_POLL)
    with hold:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Hold:
    """A file or folder whose lock this process asks for and keeps until it is closed; a context manager.

    It is that of `flock` on the file or folder itself, so nothing is written, read-only places have it too, and it goes
    along when they are renamed. Windows and some network file systems have none: nobody is kept away there.

    Args:
        path: an existing file or folder.

    Attributes:
        held: who holds the lock.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        if sys.platform == "win32":
            self._descriptor, self.held = None, Held.NOBODYS
            return
        self._descriptor: int | None = os.open(path, os.O_RDONLY)
        try:
            self.held = _ask_for(self._descriptor, path)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _ask_for(descriptor: int, path: Path) -> Held:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Held.ANOTHERS
    except OSError:  # a network file system without locks, or with locks for writers only
        return Held.NOBODYS
    try:
        same = os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        same = False
    return Held.OURS if same else Held.ANOTHERS
