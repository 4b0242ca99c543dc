"""What trackers take: one name and one number or text for each figure or setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Setting = bool | int | float | str


def settings_of(config: Mapping[str, Any]) -> dict[str, Setting]:
    """Return the settings of a nested configuration by path, such as `training.epochs`; lists become one text."""
    return {name: _text_of_list(value) for name, value in _flat(config, ".") if value is not None}


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of metrics.jsonl, under its phase, and under its event where that is no epoch."""
    event = line.get("event")
    place = [line["phase"], *([] if event in (None, "epoch") else [event])]
    return numbers_of(line, "/".join(place))


def numbers_of(values: Mapping[str, Any], place: str) -> dict[str, float]:
    """Return the finite numbers among nested values as `place/name/...`; flags are none."""
    return {f"{place}/{name}": value for name, value in _flat(values, "/") if _is_number(value)}


def _flat(values: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{inner}", one) for inner, one in _flat(value, separator))
        else:
            yield name, value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text_of_list(value: Any) -> Setting:
    setting: Setting = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return setting
