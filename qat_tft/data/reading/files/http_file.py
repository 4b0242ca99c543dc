"""A file on a web server, of which only the ranges that are read are fetched."""

import email.utils
import io
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pyarrow as pa

from qat_tft.data.reading.files.data_file import DataFile, Opened, State
from qat_tft.data.reading.files.url import Url
from qat_tft.errors import DataError

ATTEMPTS = 5
"""How often a request is made before it has failed."""
_FIRST_PAUSE = 0.1  # seconds; doubled after each attempt
_SECONDS = 30.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that another attempt may not get."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class HttpFile(DataFile):
    """A file by its URL."""

    url: Url

    def __str__(self) -> str:
        return self.url.text

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in its path."""
        return self.url.parts

    @property
    def identity(self) -> str:
        """Its URL."""
        return self.url.text

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Ask for its size; ranges are fetched as they are read."""
        state = self.state()
        with pa.PythonFile(_Ranges(self.url.text, state.size), mode="r") as content:
            yield Opened(content, state)

    def state(self) -> State:
        """Size, time of modification and ETag, by one request.

        Raises:
            OSError: as the server or the system says.
            DataError: the server does not tell the size.
        """
        headers = _attempt(lambda: _fetch(Request(self.url.text, method="HEAD"))[1])
        if "Content-Length" not in headers:
            raise DataError("the server does not tell the size of the file", where=str(self), next_step=_DOWNLOAD)
        return _state(headers, int(headers["Content-Length"]))


_DOWNLOAD = "Download the file and name it by its path."


class _Ranges(io.RawIOBase):
    """A file to be read at any place: every read is a request for that range."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size, self._at = url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        size = left if size < 0 else min(size, left)
        if size == 0:
            return b""
        content = _attempt(lambda: self._range(self._at, size))
        self._at += size
        return content

    def _range(self, first: int, size: int) -> bytes:
        asked = Request(self._url, headers={"Range": f"bytes={first}-{first + size - 1}"})
        body, headers = _fetch(asked, size)
        if "Content-Range" not in headers:
            raise DataError("the server gives no parts of files (ranges)", where=self._url, next_step=_DOWNLOAD)
        if len(body) != size:
            raise ConnectionError(f"the connection ended after {len(body):,} of {size:,} bytes")
        return body


def _fetch(request: Request, size: int = 0) -> tuple[bytes, HTTPMessage]:
    # No more than was asked for: a server without ranges would send the whole file.
    request.add_header("Accept-Encoding", "identity")
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            return (answer.read(size) if size and answer.status == HTTPStatus.PARTIAL_CONTENT else b""), answer.headers
    except HTTPError as refusal:
        refusal.close()  # it is an answer, with a connection of its own
        raise


def _attempt(function: Callable[[], _Answer]) -> _Answer:
    """Call a function again, after a pause, as long as it fails for a reason that may pass.

    Raises:
        OSError: what it raised last.
    """
    for attempt in range(ATTEMPTS):
        try:
            return function()
        except (OSError, HTTPException) as failure:
            if attempt == ATTEMPTS - 1 or not _may_pass(failure):
                raise failure if isinstance(failure, OSError) else ConnectionError(str(failure)) from None
        time.sleep(_FIRST_PAUSE * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(failure: OSError | HTTPException) -> bool:
    if isinstance(failure, HTTPError):
        return failure.code in _PASSING
    reason: Any = failure.reason if isinstance(failure, URLError) else failure
    return not isinstance(reason, ssl.SSLError)


def _state(headers: HTTPMessage, size: int) -> State:
    modified = email.utils.parsedate_tz(headers.get("Last-Modified"))
    moment = email.utils.mktime_tz(modified) if modified else 0
    return State(size, moment * 10**9, headers.get("ETag", "").removeprefix("W/").strip('"'))
