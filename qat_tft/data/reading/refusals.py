"""Missing values that no policy allows are refused: column, rows and series by name."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qat_tft.data.missing import MissingPolicy
from qat_tft.data.panel import name_series
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.keys import Keys
from qat_tft.data.reading.rows import SortedRows
from qat_tft.data.reading.source import Rows, Source
from qat_tft.errors import DataError, Way
from qat_tft.schema import Schema

_BLOCK = 2**18
_NAMED = 5
_NEXT_STEP = (
    "Fill the gaps (for example forward from the last value), drop these rows, or leave the column out of the schema."
)

_Ints = npt.NDArray[np.int64]


def refuse_missing(rows: SortedRows, preparation: Preparation, source: Source, schema: Schema, keys: Keys) -> None:
    """Refuse a null or NaN in a real column whose policy is ``error``.

    Args:
        rows: sorted.
        preparation: the policies.
        source: for messages.
        schema: the effective one.
        keys: for messages.

    Raises:
        DataError: there is one.
    """
    strict = [column for column in rows.missing if preparation.policies.of(column, schema) is MissingPolicy.ERROR]
    for column in strict:
        if column in schema.static.real and rows.missing[column].count:
            series = keys.series_ids[int(keys.series[rows.missing[column].first[0]])]
            raise _refusal(column, rows.missing[column], name_series(schema.id, series), source)
    inserted = preparation.gaps == "fill"
    suspects = [column for column in strict if column not in schema.static.real]
    suspects = [column for column in suspects if inserted or rows.missing[column].count]
    if not suspects:
        return
    for column in suspects:
        found = _missing_rows(rows, schema.group("historical").columns.index(column))
        if found.count:
            raise _named_refusal(column, found, rows, source, schema, keys)


@dataclass(frozen=True)
class _Found:
    """The first few sorted rows that miss a value, and how many there are."""

    first: _Ints
    count: int


def _missing_rows(rows: SortedRows, place: int) -> _Found:
    first, count = np.empty(0, np.int64), 0
    for begin in range(0, len(rows.time), _BLOCK):
        missing = np.flatnonzero(np.isnan(rows.values[begin : begin + _BLOCK, place])) + begin
        first, count = np.append(first, missing)[:_NAMED], count + len(missing)
    return _Found(first, count)


def _named_refusal(
    column: str, found: _Found, rows: SortedRows, source: Source, schema: Schema, keys: Keys
) -> DataError:
    series = np.searchsorted(rows.starts, found.first, side="right") - 1
    pairs = zip(series.tolist(), rows.time[found.first].tolist(), strict=True)
    places = [keys.find(*pair) for pair in pairs]
    name = name_series(schema.id, keys.series_ids[int(series[0])])
    if not all(map(len, places)):
        return DataError(
            f"column '{column}' has no value in the rows that data.gaps = fill inserts, first in {name}",
            where=source.label,
            allowed="columns with a policy for missing values",
            ways=[
                Way("--missing", f"fill it by a policy, such as --missing {column}=forward"),
                Way("--gaps", "let no window span a gap, with --gaps split"),
            ],
        )
    if found.count == len(rows.time):
        return _refusal(column, None, name, source)
    files = Rows(sorted(int(place[-1]) for place in places), found.count)
    return _refusal(column, files, name, source)


def _refusal(column: str, rows: Rows | None, series: str, source: Source) -> DataError:
    everywhere = rows is None or rows.count == source.rows
    lacking = source.without(column)
    return DataError(
        f"column '{column}' is null in every row"
        if rows is None or everywhere
        else f"column '{column}' is null or NaN in {source.locate(rows)}, first in {series}",
        where=source.label,
        allowed="a finite number in every row",
        next_step=f"{lacking[0]} lacks the column. {_NEXT_STEP}" if lacking else _NEXT_STEP,
    )
