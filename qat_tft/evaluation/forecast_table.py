"""Forecasts as rows of a table, one for each series, origin and step, and the Parquet file that they go into.

Legend: N windows, F horizon, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qat_tft.atomic import written_whole
from qat_tft.data.panel import Panel
from qat_tft.data.reading.columns import in_type
from qat_tft.data.reading.files.find import Paths
from qat_tft.data.reading.source import open_source
from qat_tft.data.reading.times import written_times
from qat_tft.data.time.written import WrittenTimes
from qat_tft.errors import DataError

ORIGIN_COLUMN = "forecast_origin"
STEP_COLUMN = "forecast_step"
MODEL_COLUMN = "forecast_model"
_GROUP_ROWS = 2**17  # rows of one row group of the file

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ForecastRows:
    """Names the rows of forecasts over a panel.

    Attributes:
        panel: what was forecast.
        id_types: type of each id column in the files, in which the ids leave again, so that forecasts can be
            joined with the data.
        times: likewise for the time column.
    """

    panel: Panel
    id_types: tuple[pa.DataType, ...]
    times: WrittenTimes

    @classmethod
    def of(cls, panel: Panel, paths: Paths) -> ForecastRows:
        """Take the types of the id columns and of the time column from the first of the panel's files."""
        source = open_source(paths)
        types = tuple(source.types(column)[0] for column in panel.schema.id)
        return cls(panel, types, written_times(source, panel.schema.time))

    def table(
        self,
        series: Rows,
        origins: Rows,
        quantiles: npt.NDArray[np.float32],
        levels: tuple[float, ...],
        more: Mapping[str, pa.Array] | None = None,
    ) -> pa.Table:
        """Return N x F rows: ids, ``forecast_origin``, the time of the step, ``forecast_step``, ``more``, quantiles.

        Args:
            series: [N], place of each window's series in the panel.
            origins: [N], row of the panel that is the last one of each window's history; F rows follow it.
            quantiles: [N, F, Q], raw.
            levels: the Q quantiles; 0.1 becomes the column ``q0.1``.
            more: further columns of N x F values.
        """
        panel, horizon = self.panel, quantiles.shape[1]
        window = np.repeat(np.arange(len(series)), horizon)
        columns: dict[str, pa.Array] = {}
        for place, (column, type_) in enumerate(zip(panel.schema.id, self.id_types, strict=True)):
            names = pa.array([panel.series_ids[one][place] for one in series.tolist()], pa.string())
            columns[column] = in_type(names.take(pa.array(window)), type_)
        columns[ORIGIN_COLUMN] = self.times.array(panel.time.numpy()[origins[window]], panel.time_kind)
        coming = origins[:, None] + np.arange(1, horizon + 1)  # [N, F]
        columns[panel.schema.time] = self.times.array(panel.time.numpy()[coming.reshape(-1)], panel.time_kind)
        columns[STEP_COLUMN] = pa.array(np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(series)))
        columns |= more or {}
        for place, level in enumerate(levels):
            columns[f"q{level:g}"] = pa.array(quantiles[..., place].reshape(-1))
        return pa.table(columns)


class ForecastFile:
    """A Parquet file that tables of forecasts, or of `what` else, are added to; a row group at most waits in memory.

    A context manager: the file appears at `path` when the block ends without an error, or not at all.

    Raises:
        DataError: on entering, adding and leaving, if the place cannot be written to.
    """

    def __init__(self, path: Path, what: str = "forecasts") -> None:
        self._path, self._what = path, what
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._closing = ExitStack()

    def __enter__(self) -> ForecastFile:
        """Find out that the place can be written to before any work is done."""
        with self._reporting():
            self._unfinished = self._closing.enter_context(written_whole(self._path))
            self._unfinished.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the file its name, or remove it after an error."""
        if error is not None:
            with suppress(OSError):  # closing writes a footer, and a full disk is told already
                self._closing.__exit__(kind, error, traceback)
            return
        with self._reporting(), self._closing:
            self._flush()

    def add(self, table: pa.Table) -> None:
        """Add rows; every table has the same columns."""
        self._waiting.append(table)
        if sum(waiting.num_rows for waiting in self._waiting) >= _GROUP_ROWS:
            with self._reporting():
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._unfinished, table.schema)
            self._closing.callback(self._writer.close)
        self._writer.write_table(table)
        self._waiting = []

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"the {self._what} cannot be written: {error.strerror or error}",
                where=str(self._path),
                next_step="Choose a file in a writable folder with --out.",
            ) from None
