"""A temporary folder for what a check has runtimes write, and one error where it takes nothing."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qat_tft.errors import OnnxFileError


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder that is gone at the end, with whatever it holds.

    Raises:
        OnnxFileError: the file system refuses to make it, or refuses what is written in the block.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except OSError as failure:
        raise OnnxFileError(
            f"a check cannot write its temporary files: {failure.strerror or failure}",
            where=tempfile.gettempdir(),
            next_step="Free some space there, or name another folder with TMPDIR.",
        ) from None
