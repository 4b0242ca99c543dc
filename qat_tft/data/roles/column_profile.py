"""What one column of a file holds, read without assuming anything about it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from qat_tft.data.reading.columns import decoded, float64, is_number, is_text, value_type
from qat_tft.data.reading.source import Source


@dataclass(frozen=True)
class Profile:
    """One column at a glance.

    Attributes:
        name: of the column.
        type: Arrow type, one text per distinct type where files differ.
        nulls: rows that are null.
        not_finite: rows that are NaN or infinite.
        distinct: different values, nulls left out; None for fractional numbers and for nested values.
        minimum: smallest value as text, "" where there is none.
        maximum: largest value as text.
        shape: "number", "whole" (numbers without a fraction), "flag" (booleans, and numbers that are 0 or 1), "text",
            "time" or "other".
        infinite: rows of ``not_finite`` that are infinite.
    """

    name: str
    type: str
    nulls: int
    not_finite: int
    distinct: int | None
    minimum: str
    maximum: str
    shape: str
    infinite: int = 0

    @property
    def missing(self) -> int:
        """Rows without a usable value."""
        return self.nulls + self.not_finite


_DIGITS = pa.decimal128(38, 0)


def profile_column(source: Source, column: str) -> Profile:
    """Read a column once and describe it; the values are not kept."""
    types = list(dict.fromkeys(source.types(column)))
    arrays = source.column(column)
    nulls = sum(array.null_count for array in arrays)
    shown = " / ".join(dict.fromkeys(_type_text(type_) for type_ in types))
    values = [value_type(type_) for type_ in types if not pt.is_null(type_)]
    if not values or nulls == source.rows:
        return Profile(column, shown, nulls, 0, 0, "", "", "other")
    if all(is_number(type_) for type_ in values):
        return _numbers(column, shown, nulls, arrays, values)
    if all(is_text(type_) for type_ in values):
        return _comparable(column, shown, nulls, [array.cast(pa.string()) for array in map(decoded, arrays)], "text")
    if len(values) == 1 and (pt.is_timestamp(values[0]) or pt.is_date(values[0])):
        return _comparable(column, shown, nulls, [decoded(array) for array in arrays], "time")
    return Profile(column, shown, nulls, 0, None, "", "", "other")


def numbers(source: Source, column: str) -> npt.NDArray[np.float64]:
    """A column of numbers as float64, null as NaN, infinities as they are."""
    return np.concatenate([_float64(array) for array in source.column(column)])


def _numbers(column: str, type_: str, nulls: int, arrays: list[pa.ChunkedArray], types: list[pa.DataType]) -> Profile:
    values = np.concatenate([_float64(array) for array in arrays])
    finite = values[np.isfinite(values)]
    broken, infinite = len(values) - len(finite) - nulls, int(np.isinf(values).sum())
    if not len(finite):
        return Profile(column, type_, nulls, broken, 0, "", "", "number", infinite)
    whole = bool((finite == np.trunc(finite)).all())
    distinct = len(np.unique(finite)) if whole else None
    flag = all(pt.is_boolean(one) for one in types) or (whole and set(np.unique(finite).tolist()) <= {0.0, 1.0})
    shape = "flag" if flag else "whole" if whole else "number"
    low, high = (f"{int(end)}" if whole else f"{end:.6g}" for end in (finite.min(), finite.max()))
    if all(map(_is_exact, types)):  # digits that a double has no room for
        digits = pa.chunked_array([chunk for array in arrays for chunk in _digits(array).chunks], _DIGITS)
        ends, distinct = pc.min_max(digits), pc.count_distinct(digits).as_py()
        low, high = (str(end.as_py()) for end in (ends["min"], ends["max"]))
    return Profile(column, type_, nulls, broken, distinct, low, high, shape, infinite)


def _is_exact(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or (pt.is_decimal128(type_) and type_.scale == 0))


def _digits(array: pa.ChunkedArray) -> pa.ChunkedArray:
    return decoded(array).cast(_DIGITS)


def _comparable(column: str, type_: str, nulls: int, arrays: list[pa.ChunkedArray], shape: str) -> Profile:
    whole = pa.chunked_array([chunk for array in arrays for chunk in array.chunks], type=arrays[0].type)
    if shape == "time":
        ends = pc.min_max(whole.cast(pa.timestamp("us", tz=getattr(whole.type, "tz", None)), safe=False))
        low, high = (_time(end.value) for end in (ends["min"], ends["max"]))
    else:
        low, high = (str(end.as_py()) for end in (pc.min(whole), pc.max(whole)))
    return Profile(column, type_, nulls, 0, pc.count_distinct(whole).as_py(), low, high, shape)


def _time(microseconds: int) -> str:
    text = str(np.datetime64(microseconds, "us")).replace("T", " ").removesuffix(".000000")
    return text.removesuffix(":00").removesuffix(" 00:00")


def _type_text(type_: pa.DataType) -> str:
    return f"dictionary of {type_.value_type}" if pt.is_dictionary(type_) else str(type_)


def _float64(array: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = float64(array).to_numpy()
    return values
