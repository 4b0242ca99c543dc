"""Arguments in Python: settings by their plain names, and the limits that options of the command line have too."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import date
from typing import Any, TypeVar, get_args

from qat_tft.config.names import Given, argument_of, every_setting
from qat_tft.errors import ConfigError, some_of

Choice = TypeVar("Choice", bound=str | None)
Time = str | int | date
"""A time of the data: as the data have it, or as text, ISO 8601."""

_FILES = "data.parquet_files"
_SETTINGS = {argument_of(path): path for path in every_setting() if path != _FILES}


def settings_of(arguments: Mapping[str, Any]) -> Given:
    """Return the settings, by path, that arguments stand for; None stands for a setting's default.

    Raises:
        ConfigError: no setting is called so.
    """
    for name in arguments:
        if name not in _SETTINGS:
            raise _unknown(name)
    given = {_SETTINGS[name]: value for name, value in arguments.items() if value is not None}
    return {path: os.fspath(value) if isinstance(value, os.PathLike) else value for path, value in given.items()}


def one_of(name: str, value: Choice, choices: Any) -> Choice:
    """Return the value of an argument whose type, a Literal, allows it; None passes.

    Raises:
        ConfigError: it is another one.
    """
    if value is not None and value not in get_args(choices):
        raise ConfigError(f"`{name}` is {value!r}", allowed=", ".join(map(repr, get_args(choices))))
    return value


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below one; None passes.

    Raises:
        ConfigError: one is.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"`{name}` is {count}", allowed="1 or more")


def time_text(time: Time | None) -> str | None:
    """Return a time as the text that options of the command line take."""
    return None if time is None else str(time)


def _unknown(name: str) -> ConfigError:
    if name in ("parquet_file", "parquet_files"):
        return ConfigError(f"`{name}` is no setting", next_step="Give the files to fit")
    close = difflib.get_close_matches(name, _SETTINGS, n=3, cutoff=0.6)
    allowed = "" if close else some_of([f"`{one}`" for one in sorted(_SETTINGS)], 12)
    return ConfigError(
        f"there is no setting `{name}`",
        allowed=allowed,
        next_step=f"Did you mean {' or '.join(f'`{one}`' for one in close)}?" if close else "",
    )
