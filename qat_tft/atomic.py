"""Files and folders that are never half-made: a temporary name while they are made, their own once they are whole.

A temporary one is called `.NAME.XXXXXXXX.tmp` and locked by the process that makes it: what a killed process left can
be told from what another one is about to finish, and is removed.
"""

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from qat_tft.lock import Held, Hold

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
_ABANDONED = 86_400
"""Seconds after which a temporary file belongs to nobody where there are no locks to tell."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give an empty file beside `path` to write to; on leaving, it takes the name, and after an error it is gone.

    Whatever had the name before stays until then. The content is on the disk before it has the name, so that neither
    a killed process nor a power cut leaves half a file.

    Raises:
        OSError: the file system refuses to make, sync or rename the file; errors of writing pass through as they are.
    """
    with written_together(path) as (temporary,):
        yield temporary


@contextmanager
def written_together(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """As `written_whole`, for files of which none takes its name before all of them are whole and on the disk."""
    with ExitStack() as stack:
        temporaries = tuple(stack.enter_context(_temporary(path, _new_file)) for path in paths)
        yield temporaries
        for temporary in temporaries:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        for temporary, path in zip(temporaries, paths, strict=True):
            os.replace(temporary, path)


def _new_file(path: Path) -> None:
    path.touch(exist_ok=False)


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path` to fill; on leaving, it takes the name, and after an error it is gone.

    Raises:
        FileExistsError: a file or a folder that is not empty has the name by then.
        OSError: the file system refuses to make or rename the folder; errors of filling it pass through as they are.
    """
    with _temporary(path, Path.mkdir) as temporary:
        yield temporary
        try:
            temporary.rename(path)
        except OSError as failure:
            if failure.errno in _TAKEN:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            raise


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path`, for this user alone; on leaving it is gone, with whatever it holds.

    Raises:
        OSError: the file system refuses to make the folder.
    """
    with _temporary(path, lambda temporary: temporary.mkdir(0o700)) as temporary:
        yield temporary


def remove_at_once(path: Path) -> None:
    """Remove a folder: its name is gone at once, and what a killed process leaves of it, `remove_abandoned` removes.

    Raises:
        OSError: the file system refuses.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    path.rename(temporary)
    shutil.rmtree(temporary)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of processes that are gone; what cannot be removed stays.

    Args:
        folder: where they stand.
        name: the name that they were to have; None: any.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            found = _TEMPORARY.fullmatch(path.name)
            if found and name in (None, found[1]):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError), Hold(path) as hold:
        old = hold.held is Held.NOBODYS and time.time() - path.stat().st_mtime > _ABANDONED
        if hold.held is Held.OURS or old:
            _remove(path)


@contextmanager
def _temporary(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new temporary file or folder, locked; it is removed on leaving unless it has got another name."""
    remove_abandoned(path.parent, path.name)
    temporary, hold = _made_and_held(path, make)
    try:
        yield temporary
    finally:
        hold.close()
        _remove(temporary)


def _made_and_held(path: Path, make: Callable[[Path], None]) -> tuple[Path, Hold]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        make(temporary)
        with suppress(FileNotFoundError):  # another process found it before it was locked, and took it for abandoned
            hold = Hold(temporary)
            if hold.held is not Held.ANOTHERS:
                return temporary, hold
            hold.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
