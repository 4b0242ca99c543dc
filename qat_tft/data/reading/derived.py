"""Columns that no file holds: calendar features, indicators of missing values, and which rows are there."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.keys import Keys
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.time.calendar import Calendar
from qat_tft.schema import PRESENT, Schema

_BLOCK = 2**18


def fill_in(rows: SortedRows, preparation: Preparation, schema: Schema, keys: Keys, *, where: str) -> SortedRows:
    """Write the derived columns of the effective schema into the rows.

    Args:
        rows: sorted, and all of them there.
        preparation: names the derived columns.
        schema: the effective one.
        keys: tell what the times count.
        where: the file, for messages.

    Raises:
        DataError: calendar features of a time column that has no such calendar.
    """
    calendar = Calendar.of(preparation.calendar, keys.kind, keys.zone, where=where)
    indicators = preparation.indicators(schema)
    history, static = schema.group("historical").columns, schema.group("static").columns
    for marked, column in indicators.items():
        if marked in static:
            rows.static[:, static.index(marked)] = np.isnan(rows.static[:, static.index(column)])
    marks = {history.index(marked): history.index(column) for marked, column in indicators.items() if marked in history}
    present = [history.index(PRESENT)] if preparation.min_history is not None else []
    if marks or present or calendar.columns:
        for begin in range(0, len(rows.time), _BLOCK):
            block = rows.values[begin : begin + _BLOCK]
            for mark, place in marks.items():
                block[:, mark] = np.isnan(block[:, place])
            block[:, present] = 1.0  # until a window reaches back beyond its series
            for name, values in calendar.values(np.asarray(rows.time[begin : begin + _BLOCK])).items():
                block[:, history.index(name)] = values
    categories: Mapping[str, tuple[str, ...]] = {one.name: one.categories for one in calendar.columns if one.categories}
    return replace(rows, dictionaries={**rows.dictionaries, **categories})
