"""The time column as whole numbers, a block at a time: timestamps, dates, steps, and text in ISO 8601."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from qat_tft.data.reading.columns import decoded, is_text, over_blocks, value_type
from qat_tft.data.reading.source import Rows, Source
from qat_tft.data.time_kind import TimeKind
from qat_tft.errors import DataError

_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)"
_ISO = {  # kind of time and whether it has a zone, to what all texts of the column must look like
    (TimeKind.DATE, False): f"^{_DATE}$",
    (TimeKind.TIMESTAMP, False): f"^{_DATE}({_CLOCK})?$",
    (TimeKind.TIMESTAMP, True): f"^{_DATE}{_CLOCK}{_ZONE}$",
}
_ALLOWED_TEXT = "ISO 8601 in every row, such as 2024-05-31 or 2024-05-31T18:00:00Z, all with a time zone or none"


@dataclass(frozen=True)
class Times:
    """A time column as int64 in the unit of its kind."""

    instants: npt.NDArray[np.int64]
    kind: TimeKind
    zone: str | None


class TimeColumn:
    """The time column, block by block.

    Takes timestamps with or without a time zone in any unit, dates, whole numbers (steps), text in ISO 8601, and
    dictionaries of these. Text of days alone counts as dates; text with a zone is read as UTC.

    Attributes:
        kind: what the numbers count.
        zone: time zone of the column in the first file, if any; the numbers are in UTC nevertheless.

    Raises:
        DataError: another type, or a mixture of kinds; the message names the column.
    """

    def __init__(self, source: Source, name: str) -> None:
        source.require(name)
        self.source, self.name = source, name
        self._missing = Rows()
        types = [value_type(type_) for type_ in source.types(name)]
        kinds = {_kind(source, name, type_) for type_ in types}
        zones = [type_.tz if pt.is_timestamp(type_) else None for type_ in types]
        if len(kinds) > 1 or len({zone is None for zone in zones}) > 1:
            raise DataError(
                f"time column '{name}' is {' and '.join(sorted({str(type_) for type_ in types}))}",
                where=source.label,
                next_step="Write all files with the same time type.",
            )
        for zone in zones:
            _require_zone(source, name, zone)
        kind, self.zone = kinds.pop(), zones[0]
        self._text = kind is None
        self.kind = kind or TimeKind.TIMESTAMP
        if self._text:
            self.kind, self.zone = self._sniffed()

    def take(self, array: pa.Array, first_row: int) -> npt.NDArray[np.int64]:
        """The instants of a block, int64 [rows]; 0 where there is none, which ``check`` refuses.

        Raises:
            DataError: a text that is not ISO 8601, or a time outside 1677 to 2262.
        """
        array = decoded(array)
        if array.null_count:
            self._missing.add(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + first_row)
        if self._text:
            array = self._parsed(array, first_row)
        try:
            if self.kind is not TimeKind.STEP:
                array = array.cast(pa.timestamp("ns", tz=self.zone))
            instants: npt.NDArray[np.int64] = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
            return instants
        except pa.ArrowInvalid:
            raise self._beyond() from None

    def check(self) -> None:
        """After the last block: refuse rows without a time by name."""
        if self._missing.count:
            raise DataError(
                f"time column '{self.name}' is null in {self.source.locate(self._missing)}",
                where=self.source.label,
                next_step="Give these rows a time or drop them.",
            )

    def _sniffed(self) -> tuple[TimeKind, str | None]:
        # The first text decides which form all of them must have; days alone only if all are.
        if all(
            over_blocks(self.source, self.name, lambda array, _: _all_match(decoded(array), _ISO[TimeKind.DATE, False]))
        ):
            return TimeKind.DATE, None
        for found in over_blocks(self.source, self.name, lambda array, _: decoded(array).drop_null()):
            if len(found):
                zoned = _all_match(found[:1], _ISO[TimeKind.TIMESTAMP, True])
                return TimeKind.TIMESTAMP, "UTC" if zoned else None
        return TimeKind.TIMESTAMP, None

    def _parsed(self, array: pa.Array, first_row: int) -> pa.Array:
        form = _ISO[self.kind, self.zone is not None]
        try:
            if _all_match(array, form):
                return array.cast(pa.timestamp("ns", tz=self.zone))
        except pa.ArrowInvalid:
            pass  # such as the 31st of June; found below
        for row, text in enumerate(array.to_pylist()):
            if text is not None and not _is_time(text, form, self.zone):
                place = self.source.locate(Rows.of(np.array([first_row + row])))
                raise DataError(
                    f"time column '{self.name}' holds {text!r} in {place}",
                    where=self.source.label,
                    allowed=_ALLOWED_TEXT,
                    next_step="Parse the text to timestamps before writing the file.",
                )
        raise self._beyond()

    def _beyond(self) -> DataError:
        return DataError(
            f"time column '{self.name}' holds a time that 64-bit nanoseconds cannot represent",
            where=self.source.label,
            allowed="1677-09-22 to 2262-04-11, or whole-number steps",
            next_step="Correct placeholder dates such as 9999-12-31.",
        )


def time_values(source: Source, column: str) -> Times:
    """The whole time column.

    Raises:
        DataError: as ``TimeColumn`` and its methods raise.
    """
    scan = TimeColumn(source, column)
    instants = np.concatenate(list(over_blocks(source, column, scan.take)))
    scan.check()
    return Times(instants, scan.kind, scan.zone)


def _kind(source: Source, column: str, type_: pa.DataType) -> TimeKind | None:
    # None for text, whose kind only its values tell.
    if pt.is_timestamp(type_):
        return TimeKind.TIMESTAMP
    if pt.is_date(type_):
        return TimeKind.DATE
    if pt.is_integer(type_):
        return TimeKind.STEP
    if is_text(type_):
        return None
    raise DataError(
        f"time column '{column}' is {type_}",
        where=source.label,
        allowed="a timestamp, a date, a whole number or text in ISO 8601",
    )


def _require_zone(source: Source, column: str, zone: str | None) -> None:
    if zone is None:
        return
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("ns", zone)))
    except pa.ArrowInvalid:
        raise DataError(
            f"time column '{column}' is in the unknown time zone {zone!r}",
            where=source.label,
            allowed="names such as UTC and Europe/Berlin, offsets such as +02:00",
        ) from None


def _all_match(texts: pa.Array, form: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, form), skip_nulls=True).as_py() is not False)


def _is_time(text: str, form: str, zone: str | None) -> bool:
    try:
        array = pa.array([text])
        array.cast(pa.timestamp("s", tz=zone) if "." not in text else pa.timestamp("ns", tz=zone))
    except pa.ArrowInvalid:
        return False
    return _all_match(array, form)
