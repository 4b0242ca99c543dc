"""Damage to a JSON text: another value at one of its places, or none."""

from __future__ import annotations

import json
import random
from typing import Any

from faults.broken.byte_damage import Change

Place = tuple[str | int, ...]

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x1b[31m\nerror: forged",
    "\ud800",
    [],
    [[[]]],
    {},
    {"\x1b[31m": {"\x07": None}},
    [1, "two", None],
    "n" * 100_000,
)


def one_value(seed: int) -> Change:
    """Put another value at one place of a JSON text, or drop it."""

    def change(content: bytes) -> bytes:
        drawn, value = random.Random(seed), json.loads(content)
        place = drawn.choice(sorted(_places(value), key=str))
        other = drawn.choice((*_VALUES, _DROPPED))
        return json.dumps(_with(value, place, other)).encode()

    return change


_DROPPED = object()


def _places(value: Any, above: Place = ()) -> list[Place]:
    """Every place of a JSON value below its root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[Place] = []
    for key, inner in items:
        found += [(*above, key), *_places(inner, (*above, key))]
    return found


def _with(value: Any, place: Place, other: Any) -> Any:
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if other is _DROPPED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = other
    return value
