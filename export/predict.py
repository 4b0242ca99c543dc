"""Forecasts of every series of a Parquet file, computed by onnxruntime from an exported file.

Reading goes through the same code as in training, which keeps its rows in torch tensors; the model is the file.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_tft.data.panel import Panel, TimeKind
from qat_tft.data.parquet import read_panel
from qat_tft.errors import DataError
from qat_tft.evaluation.forecast_table import ForecastRows
from qat_tft.export.metadata import SERIES_INPUT
from qat_tft.export.predictions import Predictions
from qat_tft.export.session import Forecaster
from qat_tft.schema import Group

_BATCH = 64
_NAMED = 5

Paths = str | Path | Sequence[str | Path]


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
    declared = metadata.preparation.source_schema(metadata.schema)
    panel = read_panel(paths, declared, metadata.preparation, future_rows=True)
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
    table = ForecastRows.of(panel, paths).table(chosen, rows, quantiles, metadata.quantiles)
    return Predictions(table, len(chosen), (*panel.notes, *unknown, *_unseen(file, panel, chosen), *notes))


def _origins(panel: Panel, history: int, horizon: int, wanted: str | None) -> tuple[dict[int, int], list[str]]:
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
    return origins, [f"{len(skipped)} series skipped, each needs {need}: {_named(skipped)}."]


def _unseen(file: Forecaster, panel: Panel, series: npt.NDArray[np.int64]) -> list[str]:
    # Of the forecast series, those that the scaling knows nothing of.
    if file.metadata.series is None:
        return []
    codes = file.series_codes(panel.series_ids[place] for place in series.tolist())
    unseen = [panel.series_name(place) for place in series[codes == 0].tolist()]
    if not unseen:
        return []
    return [
        f"{len(unseen)} series that training never saw, scaled with the statistics of all series together, "
        f"so their forecasts are rough: {_named(unseen)}."
    ]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _count(things: Sequence[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _instant(panel: Panel, wanted: str) -> int:
    try:
        return panel.parse_time(wanted)
    except ValueError:
        raise DataError(
            f"the origin {wanted!r} is not a time of this data",
            where=panel.source,
            allowed="a whole number" if panel.time_kind is TimeKind.STEP else "ISO 8601, such as 2015-12-31T18:00",
        ) from None


def _encoded(file: Forecaster, panel: Panel) -> tuple[dict[str, npt.NDArray[np.int64]], list[str]]:
    # Category column to the code of each of its dictionary's values.
    codes = {column: file.encode(column, values) for column, values in panel.dictionaries.items()}
    notes = []
    for column, found in codes.items():
        unknown = [value for value, code in zip(panel.dictionaries[column], found, strict=True) if code == 0]
        if unknown:
            notes.append(
                f"column '{column}' holds {_count(unknown, 'value')} that training never saw, read as unknown: "
                f"{_named(unknown)}."
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
