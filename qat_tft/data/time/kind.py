"""What a time column counts, and how a time is written and read; nothing here knows of panels or of torch."""

import re
from datetime import UTC, date, datetime
from enum import StrEnum

import numpy as np

_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")  # of a second; datetime would keep six digits of it


class TimeKind(StrEnum):
    """What the numbers in ``Panel.time`` count."""

    TIMESTAMP = "timestamp"  # nanoseconds since 1970, in UTC where the file has a time zone
    DATE = "date"  # nanoseconds since 1970 at midnight
    STEP = "step"  # whole numbers of the file's own


def time_text(instant: int, kind: TimeKind) -> str:
    """A time as people write it: ISO 8601 without trailing zeros, or the step."""
    if kind is TimeKind.STEP:
        return str(instant)
    text = str(np.datetime64(instant, "ns"))
    if kind is TimeKind.DATE:
        return text[:10]
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def parse_time(text: str | int | date, kind: TimeKind) -> int:
    """Time of a text, date or step in the units of ``Panel.time``, exact to the nanosecond.

    Raises:
        ValueError: it is not ISO 8601, lies outside 1677-09-22 to 2262-04-11, or is not a whole number where the
            panel counts steps.
    """
    if kind is TimeKind.STEP:
        return int(str(text))
    fraction = _FRACTION.search(str(text))
    nanoseconds = int(fraction[1][:9].ljust(9, "0")) if fraction else 0
    moment = datetime.fromisoformat(_FRACTION.sub("", str(text), count=1))
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    seconds = int(np.datetime64(moment, "s").astype(np.int64))
    instant = seconds * 1_000_000_000 + nanoseconds
    if abs(instant) > np.iinfo(np.int64).max:
        raise ValueError(f"{text} is outside 1677-09-22 to 2262-04-11")
    return instant
