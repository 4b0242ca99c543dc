"""Where the figures of a run go: metrics.jsonl, one JSON object a line, and TensorBoard when it is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qat_tft.errors import RunFolderError, cannot_write
from qat_tft.runs import layout


class MetricsLog:
    """Appends to metrics.jsonl of a run folder; a context manager, so that the file is closed on errors.

    Args:
        folder: the run folder.
        keep_bytes: what stands after these bytes is dropped: lines of steps that are repeated.

    Raises:
        RunFolderError: the file cannot be written, or has fewer bytes than are to be kept.
    """

    def __init__(self, folder: Path, *, keep_bytes: int = 0) -> None:
        self._path = folder / layout.METRICS
        with self._reporting():
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
            self._keep(keep_bytes)
            self._board = _tensorboard(folder / layout.TENSORBOARD)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is None:
            return
        if error is not None:  # that one is told
            with suppress(OSError):
                self._board.close()
            return
        with self._reporting():
            self._board.close()

    def synced(self) -> int:
        """Return the number of bytes written, once all of them are on the disk.

        Raises:
            RunFolderError: the file system refuses.
        """
        with self._reporting():
            os.fsync(self._file.fileno())
            return self._path.stat().st_size

    def write(self, record: dict[str, Any]) -> None:
        """Append one line; numbers of a record with a `step` also go to TensorBoard, under its `phase`.

        Raises:
            RunFolderError: the file system refuses.
        """
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with self._reporting():
            while line:  # a disk that is nearly full takes a part
                line = line[self._file.write(line) :]
            if self._board is not None and "step" in record:
                for name, value in record.items():
                    if isinstance(value, float):
                        self._board.add_scalar(f"{record['phase']}/{name}", value, record["step"])

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


def _tensorboard(folder: Path) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
