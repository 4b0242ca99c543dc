"""Forecasts of every series of a Parquet file, computed by onnxruntime from an exported file.

Reading goes through the same code as in training, which keeps its rows in torch tensors; the model is the file.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import RenderableType
from rich.table import Table

from qat_tft.data.panel import Panel, TimeKind
from qat_tft.data.parquet import read_panel
from qat_tft.data.source import open_source
from qat_tft.errors import DataError
from qat_tft.export.metadata import SERIES_INPUT
from qat_tft.export.session import Forecaster
from qat_tft.schema import Group

ORIGIN_COLUMN = "forecast_origin"
STEP_COLUMN = "forecast_step"
_BATCH = 64
_NAMED = 5
_SHOWN_ROWS = 6

Paths = str | Path | Sequence[str | Path]


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
        for name, values in self.table.slice(0, _SHOWN_ROWS).to_pydict().items():
            plain = values and isinstance(values[0], str | date)
            first.add_column(heading.get(name, name), justify="left" if plain else "right", overflow="fold")
            cells.append(_shown(values))
        for row in zip(*cells, strict=True):
            first.add_row(*row)
        return [first, *self.notes]


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


def forecast_parquet(file: Forecaster, paths: Paths, *, origin: str | None = None) -> Predictions:
    """Forecast every series of the data from one origin each.

    Args:
        file: the exported model.
        paths: a Parquet file, a folder of such files or a list of them, with the columns that the model was
            trained on. The last rows of a series may lack the target and the observed columns: these are the
            steps to forecast, whose known columns the model needs.
        origin: time of the last row that the forecasts may know. By default, per series, the last row with a
            target after which there are ``horizon`` more rows, or the very last one where the model has no
            known columns.

    Raises:
        DataError, SchemaError: the data cannot be read, lack a column, or no series is long enough.
    """
    metadata = file.metadata
    panel = read_panel(paths, metadata.schema, future_rows=True)
    origins, notes = _origins(panel, metadata.history, metadata.horizon, origin)
    codes, unknown = _encoded(file, panel)
    chosen = np.array(sorted(origins), dtype=np.int64)
    rows = np.array([origins[series] for series in chosen.tolist()], dtype=np.int64)
    quantiles = np.concatenate(
        [
            file.forecast(_inputs(file, panel, codes, chosen[at : at + _BATCH], rows[at : at + _BATCH]))
            for at in range(0, len(chosen), _BATCH)
        ]
    )
    table = _table(panel, chosen, rows, quantiles, metadata.quantiles, _id_types(paths, panel))
    return Predictions(table, len(chosen), (*panel.notes, *unknown, *notes))


def write_predictions(predictions: Predictions, path: Path) -> Predictions:
    """Write the table as Parquet, whole or not at all.

    Raises:
        DataError: the place cannot be written to.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        pq.write_table(predictions.table, unfinished)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise DataError(
            f"the forecasts cannot be written: {error.strerror or error}",
            where=str(path),
            next_step="Name a file in a writable folder with --out.",
        ) from None
    return Predictions(predictions.table, predictions.series, predictions.notes, path)


def _origins(
    panel: Panel, history: int, horizon: int, wanted: str | None
) -> tuple[dict[int, int], list[str]]:
    # Series to the row of its origin; what is too short is skipped by name.
    needs_future = panel.schema.group("future").size > 0
    after = horizon if needs_future else 0
    starts = panel.series_start.tolist()
    missing = np.isnan(panel.target.numpy())
    times = panel.time.numpy()
    instant = None if wanted is None else _instant(panel, wanted)
    origins: dict[int, int] = {}
    skipped: list[str] = []
    for series, (first, end) in enumerate(pairwise(starts)):
        last_known = end - 1 - int(missing[first:end].sum())
        row = min(last_known, end - 1 - after)
        if instant is not None:
            found = int(np.searchsorted(times[first:end], instant)) + first
            row = found if found <= row and times[found] == instant else first - 1
        if row - first + 1 >= history:
            origins[series] = row
        else:
            skipped.append(panel.series_name(series))
    need = f"{history} rows up to the origin" + (f" and {horizon} after it" if needs_future else "")
    if not origins:
        longest = int(panel.lengths.max())
        raise DataError(
            f"0 forecasts: every series needs {need}, the longest has {longest} rows"
            + (f", and none of them has these around {wanted}" if wanted is not None else ""),
            where=panel.source,
            next_step="Add rows: those of the steps to forecast need only the time, id and known columns.",
        )
    if not skipped:
        return origins, []
    more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return origins, [
        f"{len(skipped)} series skipped, each needs {need}: {', '.join(skipped[:_NAMED])}{more}."
    ]


def _instant(panel: Panel, wanted: str) -> int:
    try:
        return panel.parse_time(wanted)
    except ValueError:
        raise DataError(
            f"the origin {wanted!r} is not a time of this data",
            where=panel.source,
            allowed="a whole number"
            if panel.time_kind is TimeKind.STEP
            else "ISO 8601, such as 2015-12-31T18:00",
        ) from None


def _encoded(file: Forecaster, panel: Panel) -> tuple[dict[str, npt.NDArray[np.int64]], list[str]]:
    # Category column to the code of each of its dictionary's values.
    codes = {column: file.encode(column, values) for column, values in panel.dictionaries.items()}
    notes = []
    for column, found in codes.items():
        unknown = [value for value, code in zip(panel.dictionaries[column], found, strict=True) if code == 0]
        if unknown:
            more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            notes.append(
                f"column '{column}' holds {len(unknown)} values that training never saw, read as unknown: "
                f"{', '.join(unknown[:_NAMED])}{more}."
            )
    return codes, notes


def _inputs(
    file: Forecaster,
    panel: Panel,
    codes: dict[str, npt.NDArray[np.int64]],
    series: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[Any]]:
    metadata, schema = file.metadata, panel.schema
    values, columns = panel.values.numpy(), schema.group("historical").columns
    past = rows[:, None] + np.arange(1 - metadata.history, 1)
    inputs = _split(schema.group("static"), panel.static.numpy()[series], codes)
    inputs |= _split(schema.group("historical"), values[past], codes)
    if schema.group("future").size:
        coming = rows[:, None] + np.arange(1, metadata.horizon + 1)
        places = [columns.index(column) for column in schema.group("future").columns]
        inputs |= _split(schema.group("future"), values[coming][..., places], codes)
    if metadata.series is not None:
        inputs[SERIES_INPUT] = file.series_codes(panel.series_ids[place] for place in series.tolist())
    return inputs


def _split(
    group: Group, values: npt.NDArray[np.float32], codes: dict[str, npt.NDArray[np.int64]]
) -> dict[str, npt.NDArray[Any]]:
    count = len(group.real)
    inputs: dict[str, npt.NDArray[Any]] = {}
    if group.real:
        inputs[group.real_input] = np.ascontiguousarray(values[..., :count])
    if group.category:
        indices = values[..., count:].astype(np.int64)
        columns = [codes[column][indices[..., place]] for place, column in enumerate(group.category)]
        inputs[group.category_input] = np.stack(columns, -1)
    return inputs


def _table(
    panel: Panel,
    series: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    quantiles: npt.NDArray[np.float32],
    levels: tuple[float, ...],
    id_types: tuple[pa.DataType, ...],
) -> pa.Table:
    horizon = quantiles.shape[1]
    ids = [panel.series_ids[place] for place in np.repeat(series, horizon).tolist()]
    columns: dict[str, pa.Array] = {
        column: _in_type(pa.array([name[place] for name in ids], pa.string()), type_)
        for place, (column, type_) in enumerate(zip(panel.schema.id, id_types, strict=True))
    }
    columns[ORIGIN_COLUMN] = _time_array(panel, np.repeat(panel.time.numpy()[rows], horizon))
    columns[panel.schema.time] = _time_array(panel, _step_times(panel, series, rows, horizon).reshape(-1))
    columns[STEP_COLUMN] = pa.array(np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(series)))
    for place, level in enumerate(levels):
        columns[f"q{level:g}"] = pa.array(quantiles[..., place].reshape(-1))
    return pa.table(columns)


def _step_times(
    panel: Panel, series: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], horizon: int
) -> npt.NDArray[np.int64]:
    # The times of the rows after the origin; beyond the last row, the last interval goes on.
    times, ends = panel.time.numpy(), panel.series_start.numpy()[series + 1]
    last = ends - 1
    interval = times[last] - times[np.maximum(last - 1, panel.series_start.numpy()[series])]
    coming = rows[:, None] + np.arange(1, horizon + 1)
    beyond = np.maximum(coming - last[:, None], 0)
    return np.asarray(times[np.minimum(coming, last[:, None])] + beyond * interval[:, None])


def _time_array(panel: Panel, times: npt.NDArray[np.int64]) -> pa.Array:
    if panel.time_kind is TimeKind.STEP:
        return pa.array(times)
    instants = pa.array(times).cast(pa.timestamp("ns", tz=panel.time_zone))
    return instants.cast(pa.date32()) if panel.time_kind is TimeKind.DATE else instants


def _id_types(paths: Paths, panel: Panel) -> tuple[pa.DataType, ...]:
    source = open_source(paths)
    types = (source.types(column)[0] for column in panel.schema.id)
    return tuple(type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in types)


def _in_type(text: pa.Array, type_: pa.DataType) -> pa.Array:
    # An id leaves in the type in which it came, so that the forecasts can be joined with the data.
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return text.cast(type_)
    return text
