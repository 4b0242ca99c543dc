"""The table of a benchmark's figures: one number a row, with what it is for and its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def table_of(result: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the table.

    Args:
        result: key to its figure: a number, None where it was not measured, or such figures by what they are for.
        keys: the keys to show, and the words for each.
    """
    yield from ("| figure | key | reached |", "| --- | --- | ---: |")
    for key, words in keys.items():
        for case, value in _cases(result[key]):
            yield f"| {f'{words}, {case}' if case else words} | `{key}` | {_text(value)} |"


def _cases(value: Any, name: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield the numbers of a figure with what each is for: the keys on the way to it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _cases(one, f"{name} {key}".strip())
    else:
        yield name, value


def _text(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
