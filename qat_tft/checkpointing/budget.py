"""Amounts of memory as people write them: "3.5GiB" to bytes and back."""

from __future__ import annotations

import re
from typing import NamedTuple

from qat_tft.errors import ConfigError

UNITS = {"KB": 10**3, "KiB": 2**10, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
"""Bytes of each unit that may be written; those with an i are powers of two."""

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_BY_LOWER_CASE = {unit.lower(): size for unit, size in UNITS.items()}


class Budget(NamedTuple):
    """The most memory that something may take: as it was written, and in bytes."""

    text: str
    size: int


def parse_memory(text: str, *, where: str) -> Budget:
    """Return the amount that a text such as "3.5GiB", "24 GB" or "800MiB" stands for.

    Args:
        text: a positive number and a unit, in any case.
        where: setting or option for an error's message.

    Raises:
        ConfigError: there is no number, no unit, another unit, or less than one byte.
    """
    found = _AMOUNT.fullmatch(text)
    size = _BY_LOWER_CASE.get(found[2].lower()) if found else None
    amount = int(float(found[1]) * size) if found and size else 0
    if amount < 1:
        raise ConfigError(
            f"{text!r} is not an amount of memory",
            where=where,
            allowed=f"a positive number and one of {', '.join(UNITS)}, such as 3.5GiB",
        )
    return Budget(text.strip(), amount)


def memory_text(amount: float) -> str:
    """Return bytes in the unit that suits them: "412 MiB", "3.41 GiB"."""
    return f"{amount / 2**30:,.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:,.3g} MiB"
