"""Standard output and error that take whatever is printed, whatever their encoding and whoever reads them."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from qat_tft.errors import OutputError

_SUBSTITUTES = {
    "\N{MINUS SIGN}": "-",
    "\N{HYPHEN}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{BULLET}": "*",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
"""What says the same in ASCII. Box drawing is not among them: rich draws its tables in ASCII where it has to."""


_STANDARD_ERROR = 2


def holdable(text: str, encoding: str) -> str:
    """Return a text with what the encoding cannot hold replaced: signs by their like, others by an escape."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_holdable_character(character, encoding) for character in text)
    return text


def is_unicode(encoding: str) -> bool:
    """Return whether an encoding holds every character."""
    return encoding.lower().startswith(("utf", "u8"))


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let standard output and error take whatever is printed until this is left.

    A character that the stream cannot hold is replaced by a readable substitute. What nobody reads any more
    (``| head``) is dropped, so that the work goes on; so are messages that cannot be written. A closed stream counts
    as one that nobody reads, and its descriptor is taken, lest a file that the program writes get it.

    Raises:
        OutputError: a result cannot be written to standard output, for another reason than that nobody reads it.
    """
    _take_closed_descriptors()
    output, messages = sys.stdout, sys.stderr
    if output is not None:
        sys.stdout = _Lenient(output, required=True)
    if messages is not None:
        sys.stderr = _Lenient(messages, required=False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, messages


class _Lenient:
    """A text stream that replaces what it cannot hold, and drops what nobody reads.

    Args:
        stream: where the text goes.
        required: whether it is an error that a text cannot be written for another reason.
    """

    def __init__(self, stream: TextIO, *, required: bool) -> None:
        self._stream = stream
        self._required = required

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; return its length, whatever became of it."""
        with self._dropping():
            self._stream.write(holdable(text, self._stream.encoding or "utf-8"))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            _redirect_to_nowhere(self._stream)
            if self._required and failure.errno != errno.EPIPE:
                raise OutputError(
                    f"cannot be written to: {failure.strerror}",
                    where="standard output",
                    next_step="What the command writes to files is there; free some space and print the result again",
                ) from None


def _holdable_character(character: str, encoding: str) -> str:
    for text in (character, _SUBSTITUTES.get(character, character)):
        with suppress(UnicodeEncodeError):
            text.encode(encoding)
            return text
    return character.encode("ascii", "backslashreplace").decode("ascii")


def _redirect_to_nowhere(stream: TextIO) -> None:
    """Drop what the stream still holds and all that follows: it would fail again when the program ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _take_closed_descriptors() -> None:
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(descriptor)
