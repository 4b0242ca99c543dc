"""Text that somebody else may have written: read within bounds, parsed as TOML or JSON, shown without its commands."""

import errno
import json
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 2**28
"""The largest text file that is read: more than millions of ids take."""
_MOST_TOML = 2**22
"""The largest TOML text, in characters: the parser takes seconds for it."""
_DEEPEST_KEY = 100
"""Most parts of a dotted key: what the parser takes grows with their square."""
COMMANDS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, what turns the direction of text, and what is no character; line feeds aside."""


def shown(text: str, *, one_line: bool = False) -> str:
    """Return a text with every character that is a command rather than text written out, as Python writes it.

    Args:
        text: may hold names out of the user's data.
        one_line: write line feeds out too.
    """
    text = COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)
    return text.replace("\n", "\\n") if one_line else text


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: it cannot be read, is no regular file (a pipe or device may have no end), or too large for a text.
        UnicodeDecodeError: it is not UTF-8.
    """
    require_regular(path)
    with open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB, too large for a text")
        return file.read()


def require_regular(path: Path) -> None:
    """Refuse what is there but no regular file: opening a pipe waits for ever, and a device may have no end.

    Raises:
        OSError: it is a folder, a pipe, a device or a socket, or there is nothing.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not os.path.isfile(path):
        os.stat(path)  # a link to nothing or to itself has a reason of its own
        raise OSError(errno.EINVAL, "not a regular file")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        ValueError: it is not TOML, too large, or nested too deep.
    """
    if len(text) > _MOST_TOML:
        raise ValueError(f"more than {_MOST_TOML:,} characters, too large for settings or a schema")
    if any(_key_parts(line) > _DEEPEST_KEY for line in text.splitlines()):
        raise ValueError(f"a key of more than {_DEEPEST_KEY} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, whose numbers are finite.

    Raises:
        ValueError: it is not JSON, nested too deep, or holds NaN or infinity, which JSON has not.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _key_parts(line: str) -> int:
    """How many dots stand where keys do: in the head of a table, or before each sign of equality."""
    heads = [line] if line.lstrip().startswith("[") else line.split("=")[:-1]
    return max((head.count(".") for head in heads), default=0)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse_constant(text)
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no finite number")
