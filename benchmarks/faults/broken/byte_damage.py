"""Damage to the bytes of a file: cut, flipped, overwritten at places that are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable

Change = Callable[[bytes], bytes]


def cut(share: float) -> Change:
    """Keep the first part of a file."""
    return lambda content: content[: int(share * len(content))]


def without_end(count: int) -> Change:
    """Drop the last bytes."""
    return lambda content: content[:-count]


def flipped(drawn: random.Random, begin: float = 0.0, end: float = 1.0, count: int = 1) -> Change:
    """Turn over one bit of some bytes that lie between two shares of the file."""
    draws = [(drawn.uniform(begin, end), 1 << drawn.randrange(8)) for _ in range(count)]

    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        for share, bit in draws if content else ():
            changed[min(int(share * len(changed)), len(changed) - 1)] ^= bit
        return bytes(changed)

    return change


def overwritten(drawn: random.Random, length: int, byte: int | None = None) -> Change:
    """Write over a stretch of a file: one byte again and again, or noise."""
    share, noise = drawn.random(), bytes(drawn.randrange(256) if byte is None else byte for _ in range(length))

    def change(content: bytes) -> bytes:
        place = int(share * max(1, len(content) - length))
        return content[:place] + noise + content[place + length :]

    return change


def any_of(drawn: random.Random) -> tuple[str, Change]:
    """Draw one damage of any kind; also its name."""
    share, length = drawn.random(), drawn.choice([4, 64, 1000])
    return drawn.choice(
        [
            (f"cut to {share:.0%}", cut(share)),
            ("a bit flipped", flipped(drawn)),
            ("20 bits flipped", flipped(drawn, count=20)),
            (f"{length} bytes of noise", overwritten(drawn, length)),
            (f"{length} zero bytes", overwritten(drawn, length, 0)),
        ]
    )
