"""One column from Arrow to numpy: which types each role takes, and what is refused by name."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from qat_tft.data.panel import TimeKind
from qat_tft.data.source import Source
from qat_tft.errors import DataError

NULL_CATEGORY = "<null>"  # the category that a null in a category column becomes

_LOST_LEVELS = 256  # fewer distinguishable steps than INT8 itself has
_COARSE_LEVELS = 65_536


@dataclass(frozen=True)
class Categories:
    """A category column: ``values[codes[row]]`` is the row's value as text."""

    codes: npt.NDArray[np.int32]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Times:
    """A time column as int64 in the unit of its kind."""

    instants: npt.NDArray[np.int64]
    kind: TimeKind
    zone: str | None


def real_values(source: Source, column: str) -> npt.NDArray[np.float64]:
    """Read a column of numbers, float64 [rows]; a null becomes NaN.

    Takes integers, floats, decimals, booleans and dictionaries of these; a column of nulls only is all NaN.

    Raises:
        DataError: text, times, nested values, or an infinity; the message names the column.
    """
    chunks = []
    for type_, array in zip(source.types(column), source.column(column), strict=True):
        if not is_number(value_type(type_)):
            raise DataError(
                f"column '{column}' is {type_}, not a number",
                where=source.label,
                allowed="integers, floats, decimals and booleans for a real column or the target",
                next_step=_instead_of_real(value_type(type_)),
            )
        chunks.append(pc.cast(decoded(array), pa.float64(), safe=False).to_numpy())
    values = np.concatenate(chunks)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise DataError(
            f"column '{column}' is infinite in {source.locate(infinite)}",
            where=source.label,
            allowed="finite numbers",
            next_step="Correct or drop these rows, or leave the column out.",
        )
    return values


def to_float32(source: Source, column: str, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float32], str]:
    """The values in the precision of the model, and a note where that loses something (or "").

    Raises:
        DataError: float32 cannot hold the values, or tells fewer than 256 of them apart.
    """
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    if largest > float(np.finfo(np.float32).max):
        raise DataError(
            f"column '{column}' reaches {largest:.3g}, too large for float32",
            where=source.label,
            allowed=f"magnitudes up to {np.finfo(np.float32).max:.3g}",
            next_step="Divide the column by a power of ten.",
        )
    narrow = values.astype(np.float32)
    spread = float(np.nanmax(values, initial=-np.inf) - np.nanmin(values, initial=np.inf))
    levels = spread / float(np.spacing(np.float32(largest)))
    if not 0 < levels < _COARSE_LEVELS or _same(values, narrow):
        return narrow, ""
    loss = f"column '{column}' spreads over {spread:.3g} at a magnitude of {largest:.3g}"
    if levels < _LOST_LEVELS:
        raise DataError(
            f"{loss}, which float32 tells apart in no more than {int(levels)} steps",
            where=source.label,
            next_step="Subtract a constant from the column, or measure it from a later start; "
            "times belong in the time column.",
        )
    return narrow, f"{loss}: float32 keeps about {levels:,.0f} steps of it; subtracting a constant keeps more."


def category_values(source: Source, column: str, *, null: str | None = NULL_CATEGORY) -> Categories:
    """Read a column of categories; values are text, sorted, and a null is the category ``null``.

    Takes strings, booleans, integers, dates, dictionaries of these, and floats that are all whole numbers.

    Raises:
        DataError: another type, a fraction, or a null where ``null`` is None; the message names the column.
    """
    chunks = [
        _category_text(source, column, type_, decoded(array), start)
        for type_, array, start in zip(
            source.types(column), source.column(column), source.starts[:-1].tolist(), strict=True
        )
    ]
    text = pa.chunked_array([piece for chunk in chunks for piece in chunk.chunks], type=pa.string())
    if null is not None:
        text = pc.fill_null(text, null)
    elif text.null_count:
        raise DataError(
            f"id column '{column}' is null in {source.locate(np.flatnonzero(text.is_null().to_numpy()))}",
            where=source.label,
            next_step="Give these rows a series or drop them.",
        )
    return _sorted_categories(text)


def time_values(source: Source, column: str) -> Times:
    """Read the time column.

    Takes timestamps with or without a time zone, dates and whole numbers (steps).

    Raises:
        DataError: another type, a mixture of kinds, a null, or a time outside 1677 to 2262.
    """
    types = source.types(column)
    kinds = {_time_kind(source, column, type_) for type_ in types}
    zones = {type_.tz if pt.is_timestamp(type_) else None for type_ in types}
    if len(kinds) > 1 or len({zone is None for zone in zones}) > 1:
        raise DataError(
            f"time column '{column}' is {' and '.join(sorted({str(type_) for type_ in types}))}",
            where=source.label,
            next_step="Write all files with the same type of time.",
        )
    kind, zone = kinds.pop(), next(iter(zones))
    arrays = source.column(column)
    missing = np.concatenate([array.is_null().to_numpy() for array in arrays])
    if missing.any():
        raise DataError(
            f"time column '{column}' is null in {source.locate(np.flatnonzero(missing))}",
            where=source.label,
            next_step="Give these rows a time or drop them.",
        )
    try:
        return Times(np.concatenate([_instants(array, kind, zone) for array in arrays]), kind, zone)
    except pa.ArrowInvalid:
        raise DataError(
            f"time column '{column}' holds a time that nanoseconds in 64 bits cannot hold",
            where=source.label,
            allowed="1677-09-22 to 2262-04-11, or whole-number steps",
            next_step="Correct placeholder dates such as 9999-12-31.",
        ) from None


def _instants(array: pa.ChunkedArray, kind: TimeKind, zone: str | None) -> npt.NDArray[np.int64]:
    if kind is not TimeKind.STEP:
        array = array.cast(pa.timestamp("ns", tz=zone))
    instants: npt.NDArray[np.int64] = array.cast(pa.int64()).to_numpy()
    return instants


def decoded(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values themselves where the column is a dictionary."""
    return array.cast(array.type.value_type) if pt.is_dictionary(array.type) else array


def value_type(type_: pa.DataType) -> pa.DataType:
    """Type of the values, also of a dictionary."""
    return type_.value_type if pt.is_dictionary(type_) else type_


def is_number(type_: pa.DataType) -> bool:
    """Whether a real column may have this type; a column of nulls only can be any."""
    tests = (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_boolean, pt.is_null)
    return any(test(type_) for test in tests)


def is_text(type_: pa.DataType) -> bool:
    """Whether these are strings."""
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_))


def _instead_of_real(type_: pa.DataType) -> str:
    if is_text(type_):
        return "List it under category, or write it as numbers."
    if pt.is_temporal(type_):
        return "Derive numbers from it, such as days since a start or the hour of the day."
    if pt.is_nested(type_):
        return "Nested values are not supported: write each part as its own column."
    return "Write it as numbers or leave it out."


def _time_kind(source: Source, column: str, type_: pa.DataType) -> TimeKind:
    if pt.is_timestamp(type_):
        return TimeKind.TIMESTAMP
    if pt.is_date(type_):
        return TimeKind.DATE
    if pt.is_integer(type_):
        return TimeKind.STEP
    raise DataError(
        f"time column '{column}' is {type_}",
        where=source.label,
        allowed="a timestamp, a date or a whole number",
        next_step="Parse the text to timestamps before writing the file." if is_text(type_) else "",
    )


def _category_text(
    source: Source, column: str, type_: pa.DataType, array: pa.ChunkedArray, start: int
) -> pa.ChunkedArray:
    value = value_type(type_)
    if pt.is_floating(value) or pt.is_decimal(value):
        array = _whole_numbers(source, column, array, start)
    elif not (is_text(value) or pt.is_boolean(value) or pt.is_integer(value) or pt.is_date(value) or pt.is_null(value)):
        raise DataError(
            f"column '{column}' is {type_}, which cannot be a category",
            where=source.label,
            allowed="strings, booleans, integers, dates and dictionaries of these",
            next_step="Nested values are not supported: write each part as its own column."
            if pt.is_nested(value)
            else "Convert it to text or leave it out.",
        )
    return array.cast(pa.string())


def _whole_numbers(source: Source, column: str, array: pa.ChunkedArray, start: int) -> pa.ChunkedArray:
    numbers = array.cast(pa.float64(), safe=False).to_numpy()
    with np.errstate(invalid="ignore"):
        fractions = np.flatnonzero(~np.isnan(numbers) & (numbers != np.trunc(numbers)) | np.isinf(numbers))
    if len(fractions):
        raise DataError(
            f"category column '{column}' is not a whole number in {source.locate(fractions + start)}",
            where=source.label,
            next_step="List it under real, or write its categories as text.",
        )
    missing = np.isnan(numbers)  # pandas writes integers with gaps as floats with NaN
    return pa.chunked_array([pa.array(np.where(missing, 0, numbers).astype(np.int64), mask=missing)])


def _sorted_categories(text: pa.ChunkedArray) -> Categories:
    encoded = text.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    values = encoded.dictionary.to_pylist()
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    codes = rank[encoded.indices.to_numpy()] if len(values) else np.empty(0, dtype=np.int32)
    return Categories(codes, tuple(values[place] for place in order))


def _same(wide: npt.NDArray[np.float64], narrow: npt.NDArray[np.float32]) -> bool:
    return bool(np.array_equal(wide, narrow, equal_nan=True))
