"""Files that are never half-written: a temporary name while they are made, their own once they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; on leaving, that file takes the name, and after an error it is gone.

    Whatever had the name before stays until then.

    Raises:
        OSError: the file system refuses to rename; errors of writing pass through as they are.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
