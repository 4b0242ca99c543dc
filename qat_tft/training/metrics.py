"""Where the figures of a run go: metrics.jsonl, one JSON object a line, and TensorBoard when it is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qat_tft.errors import RunFolderError
from qat_tft.runs import layout


class MetricsLog:
    """Appends to metrics.jsonl of a run folder; a context manager, so that the file is closed on errors.

    Args:
        folder: the run folder.
        keep_bytes: what stands after these bytes is dropped: lines of steps that are repeated.
    """

    def __init__(self, folder: Path, *, keep_bytes: int = 0) -> None:
        self._path = folder / layout.METRICS
        try:
            self._file = open(self._path, "ab")  # noqa: SIM115 - closed in __exit__
            self._file.truncate(min(keep_bytes, self.length))
        except OSError as failure:
            raise _cannot_write(self._path, failure) from None
        self._board = _tensorboard(folder / layout.TENSORBOARD)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    @property
    def length(self) -> int:
        """Bytes written, all of them on disk."""
        return self._path.stat().st_size

    def write(self, record: dict[str, Any]) -> None:
        """Append one line; numbers of a record with a `step` also go to TensorBoard, under its `phase`.

        Raises:
            RunFolderError: the file system refuses.
        """
        try:
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as failure:
            raise _cannot_write(self._path, failure) from None
        if self._board is not None and "step" in record:
            for name, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{record['phase']}/{name}", value, record["step"])


def _tensorboard(folder: Path) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def _cannot_write(path: Path, failure: OSError) -> RunFolderError:
    return RunFolderError(
        f"cannot write: {failure.strerror}",
        where=str(path),
        next_step="Free some space there, then resume with `qat-tft train --resume`",
    )
