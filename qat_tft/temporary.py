"""Folders for files that nobody keeps."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qat_tft.errors import UserError


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Give an empty folder that is gone on leaving.

    Args:
        parent: where it is made; by default where the system keeps such folders, or the current folder.

    Raises:
        UserError: there is no place for it, or it does not take what the block writes.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="qat-tft-", dir=parent)
    except OSError as failure:
        raise _no_place(failure) from None
    with folder as path:
        try:
            yield Path(path)
        except OSError as failure:
            raise UserError(
                f"cannot write temporary files: {failure.strerror or failure}",
                where=path,
                next_step="Free some space there, or set the environment variable TMPDIR to another folder",
            ) from None


def temporary_place() -> Path:
    """Return where the system keeps temporary files, or the current folder; UserError if none can be written to."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as failure:
        raise _no_place(failure) from None


def _no_place(failure: OSError) -> UserError:
    return UserError(
        f"no folder for temporary files: {failure.strerror or failure}",
        next_step="Set the environment variable TMPDIR to a folder that may be written to",
    )
