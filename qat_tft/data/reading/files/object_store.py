"""Objects of S3 and of Google Cloud Storage, through Arrow's own file systems.

Who reads is told by the environment, as the stores' own tools have it: AWS_ACCESS_KEY_ID and its like, a profile, or
the machine's own role; nothing of it is kept or shown.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from qat_tft.data.reading.files.data_file import DataFile, Opened, State
from qat_tft.data.reading.files.url import Url, is_url, require_without_secrets
from qat_tft.errors import DataError

ATTEMPTS = 5
"""How often a request is made before it has failed."""
_SECONDS = 30.0
"""How long one connection may stay silent, and how long Google's client goes on trying."""


@dataclass(frozen=True)
class ObjectStore:
    """A bucket, by the file system that reads it."""

    bucket: str
    system: Any

    @classmethod
    def of(cls, url: Url) -> "ObjectStore":
        """Connect by what the environment says; OSError where the bucket's region cannot be found out."""
        system = _s3(url.bucket) if url.scheme == "s3" else _google()
        return cls(f"{url.scheme}://{url.bucket}", system)

    def find(self, url: Url) -> "StoredFile | None":
        """The object of this name, or None where the name is that of a folder.

        Raises:
            FileNotFoundError: there is neither; its text says whether there is no such bucket.
            OSError: the store says so.
        """
        path = "/".join((url.bucket, *url.parts))
        kind = self.system.get_file_info(path).type
        if kind == fs.FileType.File:
            return StoredFile(self, path, url.text, url.parts)
        if kind == fs.FileType.NotFound:
            if self.system.get_file_info(url.bucket).type == fs.FileType.NotFound:
                raise FileNotFoundError(f"there is no bucket '{url.bucket}'")
            raise FileNotFoundError("there is no such object, and none below it")
        return None

    def below(self, url: Url) -> Iterator[tuple[str, "StoredFile"]]:
        """Every object below a folder by its name there, in order of name."""
        folder = "/".join((url.bucket, *url.parts))
        infos = self.system.get_file_info(fs.FileSelector(folder, recursive=True))
        for path in sorted(one.path for one in infos if one.type == fs.FileType.File):
            name = path.removeprefix(folder).lstrip("/")
            yield name, StoredFile(self, path, f"{url.text.rstrip('/')}/{name}", (*url.parts, *name.split("/")))


@dataclass(frozen=True)
class StoredFile(DataFile):
    """An object.

    Attributes:
        store: where it lies.
        path: bucket and key.
        name: its URL.
        parts: the names in its key.
    """

    store: ObjectStore
    path: str
    name: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        """Its URL, and the server where it is not that of the scheme."""
        return f"{self.name} {_endpoint() if self.name.startswith('s3:') else ''}".rstrip()

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Ask for its size and mark; ranges are fetched as they are read."""
        with self.store.system.open_input_file(self.path) as content:
            yield Opened(content, self._state(content))

    def state(self) -> State:
        """Size, time of modification and ETag, by one request."""
        with self.opened() as found:
            return found.state

    def _state(self, content: Any) -> State:
        if not self.name.startswith("s3:"):  # Google's client would begin a download to tell the metadata of a file
            info = self.store.system.get_file_info(self.path)
            return State(info.size, info.mtime_ns)
        told = {name.lower(): value.decode() for name, value in content.metadata().items()}
        modified = told.get("last-modified")
        return State(content.size(), _nanoseconds(modified) if modified else 0, told.get("etag", "").strip('"'))


def _nanoseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


def _s3(bucket: str) -> Any:
    endpoint = _endpoint()
    options: dict[str, Any] = {"region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")}
    if endpoint:
        if not is_url(endpoint):
            raise DataError(f"AWS_ENDPOINT_URL is '{endpoint}'", allowed="a URL, such as https://storage.example.com")
        require_without_secrets(endpoint)
        parts = urlsplit(endpoint)
        options |= {"scheme": parts.scheme, "endpoint_override": f"{parts.netloc}{parts.path}".rstrip("/")}
        options["region"] = options["region"] or "us-east-1"
    elif options["region"] is None:
        options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        connect_timeout=_SECONDS,
        request_timeout=_SECONDS,
        **options,
    )


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _google() -> Any:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")  # what Google's own clients read, without credentials
    limit = timedelta(seconds=_SECONDS)
    if not emulator:
        return fs.GcsFileSystem(retry_time_limit=limit)
    scheme, _, host = emulator.rpartition("://")
    return fs.GcsFileSystem(
        anonymous=True, scheme=scheme or "http", endpoint_override=host.rstrip("/"), retry_time_limit=limit
    )
