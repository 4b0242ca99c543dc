"""Columns from Arrow to numpy, a block at a time: which types each role takes, and what is refused by name."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from qat_tft.data.category_text import BOOLEANS, NULL_CATEGORY, category_text
from qat_tft.data.reading.source import Rows, Source
from qat_tft.errors import DataError

_LOST_LEVELS = 256  # fewer distinguishable steps than INT8 itself has
_COARSE_LEVELS = 65_536

_Taken = TypeVar("_Taken")


@dataclass(frozen=True)
class Categories:
    """A category column: ``values[codes[row]]`` is the row's value as text."""

    codes: npt.NDArray[np.int32]
    values: tuple[str, ...]


class RealColumn:
    """A column of numbers, block by block.

    Takes integers, floats, decimals, booleans and dictionaries of these; a column of nulls only is all NaN.

    Attributes:
        missing: rows that are null or NaN.

    Raises:
        DataError: text, times or nested values; the message names the column.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, name
        for path, type_ in zip(source.paths, source.types(name), strict=True):
            if not is_number(value_type(type_)):
                raise DataError(
                    f"column '{name}' is {type_}, not a number",
                    where=str(path),
                    allowed="integers, floats, decimals and booleans for a real column or the target",
                    next_step=_instead_of_real(value_type(type_)),
                )
        self.missing, self._infinite = Rows(), Rows()
        self._low, self._high, self._exact = np.inf, -np.inf, True

    def take(self, array: pa.Array, first_row: int) -> npt.NDArray[np.float32]:
        """The values of a block, float32 [rows], NaN for a null."""
        wide = float64(array).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):  # found by its magnitude in the end
            narrow: npt.NDArray[np.float32] = wide.astype(np.float32)
        self._exact = self._exact and (pt.is_float32(array.type) or np.array_equal(narrow, wide, equal_nan=True))
        self.missing.add(np.flatnonzero(np.isnan(wide)) + first_row)
        low, high = (float(end.reduce(wide, initial=np.nan)) for end in (np.fmin, np.fmax))
        if np.isinf(low) or np.isinf(high):
            self._infinite.add(np.flatnonzero(np.isinf(wide)) + first_row)
        self._low, self._high = float(np.fmin(self._low, low)), float(np.fmax(self._high, high))
        return narrow

    @property
    def largest(self) -> float:
        """The largest magnitude so far; 0 where no value is there."""
        return max(abs(self._low), abs(self._high)) if self._low <= self._high else 0.0

    def note(self) -> str:
        """After the last block: what float32 loses of the values, or "".

        Raises:
            DataError: a value is infinite or too large for float32, all are too small, or too few can be told apart.
        """
        if self._infinite.count:
            raise DataError(
                f"column '{self.name}' is infinite in {self.source.locate(self._infinite)}",
                where=self.source.label,
                allowed="finite numbers",
                next_step="Correct or drop these rows, or leave the column out.",
            )
        largest = self.largest
        if largest > float(np.finfo(np.float32).max):
            raise DataError(
                f"column '{self.name}' reaches {largest:.3g}, too large for float32",
                where=self.source.label,
                allowed=f"magnitudes up to {np.finfo(np.float32).max:.3g}",
                next_step="Divide the column by a power of ten.",
            )
        if 0 < largest < float(np.finfo(np.float32).tiny):
            raise DataError(
                f"column '{self.name}' reaches no more than {largest:.3g}, too small for float32",
                where=self.source.label,
                allowed=f"magnitudes from {np.finfo(np.float32).tiny:.3g}, and zero",
                next_step="Multiply the column by a power of ten.",
            )
        spread = self._high - self._low
        levels = spread / float(np.spacing(np.float32(largest)))
        if self._exact or not 0 < levels < _COARSE_LEVELS:
            return ""
        loss = f"column '{self.name}' spreads over {spread:.3g} at a magnitude of {largest:.3g}"
        if levels < _LOST_LEVELS:
            raise DataError(
                f"{loss}, which float32 resolves into no more than {int(levels)} values",
                where=self.source.label,
                next_step="Subtract a constant from the column, or measure it from a later start; "
                "times belong in the time column.",
            )
        return f"{loss}: float32 keeps about {levels:,.0f} distinct values of it; subtracting a constant keeps more."


@dataclass
class CategoryColumn:
    """A column of categories, block by block; a value's code is its place in the order of first appearance.

    Takes strings, booleans, integers, dates, dictionaries of these, and floats and decimals that are all whole numbers;
    ``category_text`` says which are the same. The texts true and false are booleans where another file has booleans.

    Args:
        null: the category that a null becomes; None for an id column, which may hold none.

    Raises:
        DataError: another type; the message names the column.
    """

    source: Source
    name: str
    null: str | None = NULL_CATEGORY
    _codes: dict[str, int] = field(default_factory=dict)
    _nulls: Rows = field(default_factory=Rows)
    _fractions: Rows = field(default_factory=Rows)

    def __post_init__(self) -> None:
        types = self.source.types(self.name)
        self._boolean = any(pt.is_boolean(value_type(type_)) for type_ in types)
        for path, type_ in zip(self.source.paths, types, strict=True):
            if not _is_categorical(value_type(type_)):
                raise DataError(
                    f"column '{self.name}' is {type_}, which cannot be a category",
                    where=str(path),
                    allowed="strings, booleans, integers, dates and dictionaries of these",
                    next_step="Nested values are not supported: write each part as its own column."
                    if pt.is_nested(value_type(type_))
                    else "Convert it to text or leave it out.",
                )

    @property
    def values(self) -> tuple[str, ...]:
        """The values found so far, in the order of their codes."""
        return tuple(self._codes)

    def take(self, array: pa.Array, first_row: int) -> npt.NDArray[np.int32]:
        """The codes of a block, int32 [rows]."""
        encoded = array if pt.is_dictionary(array.type) else _encodable(array).dictionary_encode()
        places = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        texts, fraction = self._texts(encoded.dictionary)
        if fraction.any():
            self._fractions.add(np.flatnonzero(fraction[places]) + first_row)
        present = np.zeros(len(texts), dtype=bool)
        present[places] = True
        codes = np.array([self._code(text, used) for text, used in zip(texts, present, strict=True)], np.int32)
        found: npt.NDArray[np.int32] = codes[places]
        if self.null is None:
            self._nulls.add(np.flatnonzero(found < 0) + first_row)
        return found

    def _texts(self, values: pa.Array) -> tuple[list[str | None], npt.NDArray[np.bool_]]:
        # Texts of the values, and which of them are fractions. One more: the last one stands for a null in the column.
        texts: list[str | None] = []
        fraction = np.zeros(len(values) + 1, dtype=bool)
        if pt.is_date(values.type):  # Python has no dates beyond the years 1 to 9999
            values = values.cast(pa.string())
        for place, value in enumerate(values.to_pylist()):
            try:
                text = category_text(value)
            except ValueError:
                text, fraction[place] = None, True
            texts.append(BOOLEANS.get(text, text) if self._boolean and text is not None else text)
        return [*texts, None], fraction

    def _code(self, text: str | None, used: bool) -> int:
        # A dictionary may hold values that no row has; these get no code.
        text = self.null if text is None else text
        return self._codes.setdefault(text, len(self._codes)) if used and text is not None else -1

    def check(self) -> None:
        """After the last block.

        Raises:
            DataError: a fraction, or a null in an id column; the message names the rows.
        """
        if self._fractions.count:
            raise DataError(
                f"category column '{self.name}' is not a whole number in {self.source.locate(self._fractions)}",
                where=self.source.label,
                next_step="List it under real, or write its categories as text.",
            )
        if self._nulls.count and self.null is None:
            raise DataError(
                f"id column '{self.name}' is null in {self.source.locate(self._nulls)}",
                where=self.source.label,
                next_step="Assign these rows to a series or drop them.",
            )


def category_values(source: Source, column: str, *, null: str | None = NULL_CATEGORY) -> Categories:
    """A whole column of categories; values are text, sorted, and a null is the category ``null``.

    Raises:
        DataError: as ``CategoryColumn`` and its ``check`` raise.
    """
    scan = CategoryColumn(source, column, null)
    codes = np.concatenate(list(over_blocks(source, column, scan.take)))
    scan.check()
    order = sorted(range(len(scan.values)), key=scan.values.__getitem__)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return Categories(rank[codes], tuple(scan.values[place] for place in order))


def over_blocks(source: Source, column: str, take: Callable[[pa.Array, int], _Taken]) -> Iterator[_Taken]:
    """What ``take`` makes of each block of a column."""
    for first, arrays in source.blocks([column]):
        yield take(arrays[column], first)


def decoded(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values themselves where the column is a dictionary."""
    return array.cast(array.type.value_type) if pt.is_dictionary(array.type) else array


def float64(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Numbers in double precision, each the nearest one."""
    values = decoded(array)
    # From a decimal, Arrow multiplies by a power of ten that is rounded itself; what it reads from text is exact.
    values = values.cast(pa.string()) if pt.is_decimal(values.type) else values
    return pc.cast(values, pa.float64(), safe=False)


def in_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values in the type of a column, or as they are where it does not hold them."""
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if pt.is_dictionary(type_):
            return values.cast(type_.value_type).dictionary_encode().cast(type_)
        return values.cast(type_)
    return values


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


def _is_categorical(type_: pa.DataType) -> bool:
    tests = (is_text, pt.is_boolean, pt.is_integer, pt.is_date, pt.is_null, pt.is_floating, pt.is_decimal)
    return any(test(type_) for test in tests)


def _encodable(array: pa.Array) -> pa.Array:
    # Arrow encodes neither of these itself.
    if pt.is_float16(array.type):
        return array.cast(pa.float32())
    return array.cast(pa.string()) if pt.is_string_view(array.type) else array
