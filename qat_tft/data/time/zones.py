"""Time zones: whose clock a time column is read on."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from qat_tft.errors import DataError

UTC = "UTC"
_UTC_NAMES = frozenset(
    {"utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "etc/zulu", "z", "+00:00", "-00:00"}
)


def clock_of(zones: Iterable[str | None], learned: str | None, where: str, column: str) -> str | None:
    """The zone whose clock a time column is read on; None where its times have none.

    A time without a zone is the same as one in UTC. Of files in UTC and in one other zone, that zone's clock counts,
    whatever the order of the files; rows that a model meets are read on the clock of its training.

    Args:
        zones: of each file, None for none.
        learned: what this function gave for the training rows, ``""`` for None; None where nothing was learned.
        where: the files, for messages.
        column: the time column, for messages.

    Raises:
        DataError: files in two zones, times with and without one, or a zone that nobody knows here.
    """
    given = {zone if zone is None or not _is_utc(zone) else UTC for zone in zones}
    named = sorted(zone for zone in given if zone not in (None, UTC))
    for zone in named:
        _require(zone, where)
    if None in given and named:
        raise _unlike(f"has no time zone in one file and is in {named[0]} in another", where, column)
    if learned is None:
        if len(named) > 1:
            raise _unlike(f"is in {named[0]} in one file and in {named[1]} in another", where, column)
        return named[0] if named else UTC if UTC in given else None
    if learned == "" and named:
        raise _unlike(f"is in {named[0]}, and training had times without a zone", where, column)
    if learned not in ("", UTC):
        if None in given:
            raise _unlike(f"has no time zone, and training had {learned}", where, column)
        _require(learned, where)
    return learned or (UTC if UTC in given else None)


def has_other_clock(zone: str | None) -> bool:
    """Whether clocks in a zone show anything else than UTC; None is UTC."""
    return zone is not None and not _is_utc(zone)


def _is_utc(zone: str) -> bool:
    return zone.casefold() in _UTC_NAMES


def _require(zone: str, where: str) -> None:
    try:
        pc.local_timestamp(pa.array([0]).cast(pa.timestamp("ns", tz=zone)))
    except pa.ArrowInvalid:
        raise DataError(
            f"the time zone '{zone}' of the time column is unknown on this system",
            where=where,
            next_step="Install the system's time zone data (tzdata), or write the time in UTC.",
        ) from None


def _unlike(problem: str, where: str, column: str) -> DataError:
    return DataError(
        f"time column '{column}' {problem}",
        where=where,
        allowed="one time zone; UTC goes with any, and no time zone only with UTC",
        next_step="Write all times in UTC, or in the zone whose clock matters.",
    )
