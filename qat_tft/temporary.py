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
        UserError: there is no place for it.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="qat-tft-", dir=parent)
    except OSError as failure:
        raise UserError(
            f"no folder for temporary files: {failure.strerror or failure}",
            next_step="Set the environment variable TMPDIR to a folder that may be written to",
        ) from None
    with folder as path:
        yield Path(path)
