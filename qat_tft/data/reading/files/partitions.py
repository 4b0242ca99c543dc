"""The columns that the names of folders give their files: ``store=7/part-0.parquet``."""

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

_NULL_KEY = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NUMBER = 18  # digits that int64 holds whatever they are

Keys = Mapping[str, str | None]
"""Columns that the folders above a file give it, and their values; None for a null."""


def folder_keys(parts: Sequence[str]) -> dict[str, str | None]:
    """Keys and values of the folders in a path: those of ``data/year=2024/month=3/part.parquet`` are two."""
    pairs = (folder.partition("=") for folder in parts[:-1])
    texts = {unquote(key): unquote(value) for key, equals, value in pairs if equals and key}
    return {key: None if value == _NULL_KEY else value for key, value in texts.items()}


def key_types(keys: Sequence[Keys]) -> dict[str, pa.DataType]:
    """Type of each key: whole numbers or booleans if all of its values are written like one, else text.

    A number with leading zeros is text, since ``007`` and ``7`` are two names.
    """
    values: dict[str, list[str]] = {}
    for one in keys:
        for key, value in one.items():
            values.setdefault(key, []).extend([value] if value is not None else [])
    return {key: _type(texts) for key, texts in values.items()}


def _type(texts: list[str]) -> pa.DataType:
    if texts and all(text in ("true", "false") for text in texts):
        return pa.bool_()
    return pa.int64() if all(map(_is_whole, texts)) else pa.string()


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(text) < _LONGEST_NUMBER and str(int(text)) == text
