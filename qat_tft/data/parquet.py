"""Read Parquet files into a Panel: checked, sorted, one shared float32 buffer, one column in memory at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from qat_tft.data.calendar import Calendar
from qat_tft.data.columns import Categories, Times, category_values, real_values, time_values, to_float32
from qat_tft.data.missing import MARK, MissingPolicy
from qat_tft.data.panel import Panel, name_series, time_text
from qat_tft.data.preparation import AS_IT_IS, Preparation
from qat_tft.data.source import Source, open_source
from qat_tft.errors import DataError
from qat_tft.schema import PRESENT, Schema

_NAMED_DUPLICATES = 3


def read_panel(
    path: str | Path | Sequence[str | Path],
    schema: Schema,
    preparation: Preparation = AS_IT_IS,
    *,
    future_rows: bool = False,
) -> Panel:
    """Read the columns that a schema names, sorted by series and time.

    Args:
        path: a Parquet file, a folder of such files or a list of them. Rows may stand in any order.
        schema: the roles of the columns; other columns are not read.
        preparation: what to do with duplicates, gaps and missing values, and which columns to derive.
        future_rows: allow each series to end in rows without a target, whose observed columns may be missing as
            well. For forecasting; in training that takes a policy.

    Returns:
        The panel, raw; its schema is ``preparation.effective_schema``. A null in a category column is the category
        ``<null>``. A missing value that is allowed is NaN: ``missing.with_fills`` tells what stands in for it. A
        static real column has the one value that its series has anywhere, or NaN.

    Raises:
        DataError: a file that cannot be read, no rows, a value of a type that its role does not take, a null or
            NaN in a real column without a policy, an infinity, a (series, time) that occurs twice, a static column
            that changes within a series. The message names the file, the column and the first rows.
        SchemaError: a column that the file does not have, with close matches, or a derived one that it has.
    """
    source = open_source(path)
    for column in schema.used_columns:
        source.types(column)  # every missing column is found before anything large is read
    if source.rows == 0:
        raise DataError("there are no rows", where=source.label)
    times = time_values(source, schema.time)
    calendar = Calendar.of(preparation.calendar, times.kind, times.zone, where=source.label)
    effective = preparation.effective_schema(schema)
    ids = [category_values(source, column, null=None) for column in schema.id]
    layout = _Layout.of(source, schema, times, ids)
    panel = _fill(source, effective, times, calendar, layout, preparation, future_rows)
    return replace(panel, preparation=preparation)


@dataclass(frozen=True)
class _Layout:
    """How the rows of the file become series: ``order`` sorts them, ``starts`` are the first rows of the series."""

    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    series_ids: list[tuple[str, ...]]

    @classmethod
    def of(cls, source: Source, schema: Schema, times: Times, ids: list[Categories]) -> "_Layout":
        keys = [column.codes for column in ids]
        order = np.lexsort(np.stack([times.instants, *reversed(keys)]))
        new_series = np.zeros(source.rows, dtype=bool)
        new_series[0] = True
        for key in keys:
            ordered = key[order]
            new_series[1:] |= ordered[1:] != ordered[:-1]
        starts = np.append(np.flatnonzero(new_series), source.rows)
        first = order[starts[:-1]]
        named = [np.array(column.values, dtype=object)[column.codes[first]].tolist() for column in ids]
        series_ids: list[tuple[str, ...]] = list(zip(*named, strict=True)) if ids else [()]
        layout = cls(order, starts, series_ids)
        layout._refuse_duplicates(source, schema, times, new_series)
        return layout

    def _refuse_duplicates(
        self, source: Source, schema: Schema, times: Times, new_series: npt.NDArray[np.bool_]
    ) -> None:
        ordered = times.instants[self.order]
        twice = np.flatnonzero((ordered[1:] == ordered[:-1]) & ~new_series[1:]) + 1
        if not len(twice):
            return
        named = []
        for row in twice[:_NAMED_DUPLICATES]:
            when = time_text(int(ordered[row]), times.kind)
            places = source.locate(self.order[row - 1 : row + 1]).removesuffix(" (counted from 0)")
            named.append(f"{self.name(schema, int(row))} at {when} in {places}")
        further = "a further column that tells them apart" if schema.id else "their column"
        hint = f"Drop or combine these rows; if they belong to several series, name {further} as id."
        count = f"{len(twice):,} rows repeat" if len(twice) > 1 else "1 row repeats"
        raise DataError(
            f"{count} the series and time of another: {'; '.join(named)} (counted from 0)",
            where=source.label,
            allowed="one row for each series and time",
            next_step=hint,
        )

    def name(self, schema: Schema, row: int) -> str:
        """The series of a row in sorted order, for messages."""
        series = int(np.searchsorted(self.starts, row, side="right")) - 1
        return name_series(schema.id, self.series_ids[series])


def _fill(
    source: Source,
    schema: Schema,
    times: Times,
    calendar: Calendar,
    layout: _Layout,
    preparation: Preparation,
    future_rows: bool,
) -> Panel:
    history, static = schema.group("historical"), schema.group("static")
    values = torch.empty(source.rows, history.size)
    static_values = torch.empty(len(layout.series_ids), static.size)
    notes: list[str] = []
    dictionaries: dict[str, tuple[str, ...]] = {
        column.name: column.categories for column in calendar.columns if column.categories
    }
    future = np.zeros(source.rows, dtype=bool)
    policies = preparation.policies
    computed: dict[str, float | npt.NDArray[np.float32]] = {
        **dict.fromkeys(policies.indicators(schema), 0.0),  # until a value is missing
        **calendar.values(times.instants[layout.order]),
    }
    if preparation.min_history is not None:
        computed[PRESENT] = 1.0  # until a window reaches back beyond its series
    for place, column in enumerate(history.columns):
        if column in computed:
            values.numpy()[:, place] = computed[column]

    for place, column in enumerate(history.real):
        if column in computed:
            continue
        wide = real_values(source, column)[layout.order]
        if future_rows and column == schema.target:
            future = _trailing(np.isnan(wide), layout.starts)
        missing = np.isnan(wide)
        if policies.of(column, schema) is MissingPolicy.ERROR:
            may_miss = future if column == schema.target or column in schema.observed.real else None
            _refuse_missing(source, schema, layout, column, missing, may_miss, future_rows)
        if f"{column}{MARK}" in computed:
            values.numpy()[:, history.real.index(f"{column}{MARK}")] = missing
        narrow, note = to_float32(source, column, wide)
        values.numpy()[:, place] = narrow
        notes.append(note)
    for place, column in enumerate(history.category, start=len(history.real)):
        if column in computed:
            continue
        categories = category_values(source, column)
        values.numpy()[:, place] = categories.codes[layout.order]
        dictionaries[column] = categories.values

    for place, column in enumerate(static.real):
        if column in computed:
            continue
        wide = real_values(source, column)[layout.order]
        if policies.of(column, schema) is MissingPolicy.ERROR:
            _refuse_missing(source, schema, layout, column, np.isnan(wide), None, future_rows)
        narrow, note = to_float32(source, column, wide)
        once = _one_per_series(source, schema, layout, column, narrow)
        static_values.numpy()[:, place] = once
        if f"{column}{MARK}" in computed:
            static_values.numpy()[:, static.real.index(f"{column}{MARK}")] = np.isnan(once)
        notes.append(note)
    for place, column in enumerate(static.category, start=len(static.real)):
        categories = category_values(source, column)
        codes = categories.codes[layout.order]
        static_values.numpy()[:, place] = _one_per_series(source, schema, layout, column, codes)
        dictionaries[column] = categories.values

    return Panel(
        schema=schema,
        values=values,
        static=static_values,
        time=torch.from_numpy(times.instants[layout.order]),
        series_start=torch.from_numpy(layout.starts.astype(np.int64)),
        series_ids=layout.series_ids,
        series_code=torch.zeros(len(layout.series_ids), dtype=torch.int64),
        time_kind=times.kind,
        time_zone=times.zone,
        dictionaries=dictionaries,
        source=source.label,
        notes=tuple(note for note in notes if note),
    )


def _trailing(missing: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """The rows after the last present value of each series."""
    rows = np.arange(len(missing))
    last_present = np.maximum.reduceat(np.where(missing, -1, rows), starts[:-1])
    return rows > np.repeat(last_present, np.diff(starts))


def _refuse_missing(
    source: Source,
    schema: Schema,
    layout: _Layout,
    column: str,
    missing: npt.NDArray[np.bool_],
    may_miss: npt.NDArray[np.bool_] | None,
    future_rows: bool,
) -> None:
    refused = missing if may_miss is None else missing & ~may_miss
    if not refused.any():
        return
    rows = np.flatnonzero(refused)
    if len(rows) == source.rows:
        text = f"column '{column}' is null in every row"
    else:
        first = layout.name(schema, int(rows[0]))
        text = f"column '{column}' is null or NaN in {source.locate(layout.order[rows])}, first in {first}"
    allowed = "a finite number in every row"
    if future_rows and may_miss is not None:
        allowed += "; only the last rows of a series, those to forecast, may lack the target and observed columns"
    raise DataError(
        text,
        where=source.label,
        allowed=allowed,
        next_step="Fill the gaps (for example forward from the last value), drop these rows, "
        "or leave the column out of the schema.",
    )


def _one_per_series(
    source: Source,
    schema: Schema,
    layout: _Layout,
    column: str,
    values: npt.NDArray[np.float32] | npt.NDArray[np.int32],
) -> npt.NDArray[np.float32] | npt.NDArray[np.int32]:
    there = ~np.isnan(values)
    rows = np.minimum.reduceat(np.where(there, np.arange(len(values)), len(values)), layout.starts[:-1])
    first = np.where(rows < len(values), values[np.minimum(rows, len(values) - 1)], np.nan)
    changed = np.flatnonzero(there & (values != np.repeat(first, np.diff(layout.starts))))
    if len(changed):
        raise DataError(
            f"static column '{column}' changes within {layout.name(schema, int(changed[0]))}, "
            f"in {source.locate(layout.order[changed])}",
            where=source.label,
            allowed="one value per series",
            next_step="List the column under observed or known, or add the column that tells the series apart to id.",
        )
    return first
