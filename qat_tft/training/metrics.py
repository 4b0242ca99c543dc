"""Where the figures of a run go: metrics.jsonl, one JSON object a line, and the trackers of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qat_tft.errors import RunFolderError, cannot_write
from qat_tft.runs import layout
from qat_tft.tracking.tracking import Tracking


class MetricsLog:
    """Appends to metrics.jsonl of a run folder; a context manager, so that the file is closed on errors.

    Args:
        folder: the run folder.
        keep_bytes: what stands after these bytes is dropped: lines of steps that are repeated.
        tracking: gets every line as well.

    Raises:
        RunFolderError: the file cannot be written, or has fewer bytes than are to be kept.
    """

    def __init__(self, folder: Path, *, keep_bytes: int = 0, tracking: Tracking | None = None) -> None:
        self._path = folder / layout.METRICS
        self._tracking = tracking
        with self._reporting():
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
            self._keep(keep_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def synced(self) -> int:
        """Return the number of bytes written, once all of them are on the disk.

        Raises:
            RunFolderError: the file system refuses.
        """
        with self._reporting():
            os.fsync(self._file.fileno())
            return self._path.stat().st_size

    def write(self, record: dict[str, Any]) -> None:
        """Append one line, and hand it to the trackers.

        Raises:
            RunFolderError: the file system refuses.
        """
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with self._reporting():
            while line:  # a disk that is nearly full takes a part
                line = line[self._file.write(line) :]
        if self._tracking is not None:
            self._tracking.line(record)

    def _keep(self, size: int) -> None:
        if (there := self._path.stat().st_size) < size:
            self._file.close()
            raise RunFolderError(
                f"{there} bytes, but the run had written {size} when its state was saved",
                where=str(self._path),
                next_step="Restore the folder from a copy, or start a new run",
            )
        self._file.truncate(size)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            way_on = "Free some space there, then resume with `qat-tft train --resume`"
            raise cannot_write("", str(self._path), failure, way_on) from None


class NoMetrics(MetricsLog):
    """Writes nothing: on ranks that leave it to rank 0."""

    def __init__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def synced(self) -> int:
        """Return that nothing is written."""
        return 0

    def write(self, record: dict[str, Any]) -> None:
        """Drop the line."""
