"""What the sections of the configuration are made of: types of fields, and how the command line shows them."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


@dataclass(frozen=True)
class Metavar:
    """Stands among the annotations of a field's type: what the help shows as the value of its option."""

    text: str


class Section(BaseModel):
    """A group of settings: frozen, and a key it does not know is an error.

    Attributes:
        title: heading under which the help shows the section's options.
        flags: option of a setting that is not called as its key is.
        only_in_files: settings that have no option.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: ClassVar[str]
    flags: ClassVar[dict[str, str]] = {}
    only_in_files: ClassVar[frozenset[str]] = frozenset()


def choices(annotation: object) -> tuple[str, ...]:
    """Return the values that a field of this type may take, where they are names; () for any other type."""
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return tuple(name for part in get_args(annotation) for name in choices(part))


def _moment_text(value: object) -> object:
    return str(value) if isinstance(value, date | int) and not isinstance(value, bool) else value


def _split_names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _split_quantiles(value: object) -> object:
    if isinstance(value, str) and not _NUMBERS.fullmatch(value):
        raise ValueError(f"model.quantiles {value} is not a list of numbers; allowed: numbers separated by commas")
    return _split_names(value)


def _fraction(value: object) -> object:
    if not isinstance(value, str) or not value.endswith("%"):
        return value
    try:
        return float(value.removesuffix("%")) / 100
    except ValueError:
        return value


_NUMBERS = re.compile(r"[\s\d.,eE+-]*")

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Quantile = Annotated[float, Field(gt=0.0, lt=1.0)]
LARGEST = 2**63 - 1
"""The largest whole number that a setting may have: libraries count in it."""
PositiveInt = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Moment = Annotated[str, BeforeValidator(_moment_text), Metavar("TIME")]
"""A time as text: ISO 8601, or the whole number of a step. TOML's own dates and numbers are taken as well."""
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names), Metavar("NAME,NAME,...")]
"""Names as a list, or in one text separated by commas."""
Quantiles = Annotated[tuple[Quantile, ...], BeforeValidator(_split_quantiles), Metavar("Q,Q,...")]
"""Quantiles as a list, or in one text separated by commas."""
Folder = Annotated[str, Metavar("FOLDER")]
Share = Annotated[float, BeforeValidator(_fraction), Metavar("SHARE")]
"""A share as a number, or in percent: 0.005 or 0.5%."""
MemoryAmount = Annotated[str, Metavar("AMOUNT")]
