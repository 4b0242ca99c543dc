"""A table of forecasts: how its first rows look on a terminal, and how it is written."""

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import RenderableType
from rich.table import Table

from qat_tft.evaluation.forecast_table import ORIGIN_COLUMN, STEP_COLUMN, ForecastFile

_SHOWN_ROWS = 6


@dataclass(frozen=True)
class Predictions:
    """Forecasts as one table, a row per series and step.

    Attributes:
        table: the id columns, ``forecast_origin`` (time of the last row that the forecast knows), the time
            column (of the step), ``forecast_step`` from 1, and one column per quantile: ``q0.1`` ...
        series: number of series forecast.
        notes: what was skipped or read as unknown; one sentence each.
        path: where the table was written; None before.
    """

    table: pa.Table
    series: int
    notes: tuple[str, ...]
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only; the forecasts themselves are in the file."""
        return {
            "out": str(self.path),
            "series": self.series,
            "rows": self.table.num_rows,
            "columns": self.table.column_names,
            "notes": list(self.notes),
        }

    def tables(self) -> list[RenderableType]:
        """The first rows and the notes."""
        title = f"{self.series} series, {self.table.num_rows} rows in {self.path}"
        heading = {name: name.removeprefix("forecast_") for name in (ORIGIN_COLUMN, STEP_COLUMN)}
        first = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
        cells = []
        for name, column in zip(self.table.column_names, self.table.slice(0, _SHOWN_ROWS).columns, strict=True):
            values = _as_python(column)
            plain = values and isinstance(values[0], str | date)
            first.add_column(heading.get(name, name), justify="left" if plain else "right", overflow="fold")
            cells.append(_shown(values))
        for row in zip(*cells, strict=True):
            first.add_row(*row)
        return [first, *self.notes]


def write_predictions(predictions: Predictions, path: Path) -> Predictions:
    """Write the table as Parquet, whole or not at all.

    Raises:
        DataError: the place cannot be written to.
    """
    with ForecastFile(path) as file:
        file.add(predictions.table)
    return Predictions(predictions.table, predictions.series, predictions.notes, path)


def _as_python(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):  # Python's times hold no nanoseconds
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _shown(values: list[Any]) -> list[str]:
    # Short enough for a terminal of 80 columns; the file has every digit.
    if all(isinstance(value, float) for value in values):
        return [f"{value:.5g}" for value in values]
    texts = [str(value) for value in values]
    if all(isinstance(value, datetime) for value in values):
        for useless in (":00", " 00:00"):
            if all(text.endswith(useless) and "+" not in text for text in texts):
                texts = [text.removesuffix(useless) for text in texts]
    return texts
