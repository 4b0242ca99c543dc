"""Places in object stores and on web servers, as users write them: ``s3://bucket/path``."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from qat_tft.errors import DataError

STORES = ("s3", "gs")
WEB = ("http", "https")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRET = re.compile(r"sig|secret|token|password|passwd|pwd|key|credential|auth|policy", re.IGNORECASE)
_FROM_ENVIRONMENT = "Give credentials in the environment, such as AWS_ACCESS_KEY_ID, and none in the URL."


@dataclass(frozen=True)
class Url:
    """A place that is no path of this machine.

    Attributes:
        text: as the user wrote it; it holds no secret.
        scheme: one of ``STORES`` and ``WEB``.
        bucket: of a store, or the server.
        key: what follows the bucket, without slashes around it.
    """

    text: str
    scheme: str
    bucket: str
    key: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The names between slashes."""
        return tuple(part for part in self.key.split("/") if part)

    @classmethod
    def parse(cls, text: str) -> "Url":
        """Take a URL apart.

        Raises:
            DataError: another scheme, no bucket, or it holds what may be a secret, which the message does not repeat.
        """
        require_without_secrets(text)
        scheme, _, rest = text.partition("://")
        scheme = scheme.lower()
        if scheme not in (*STORES, *WEB):
            raise DataError(f"there is no way to read {scheme}:// URLs", where=text, allowed=_allowed())
        if scheme in WEB:
            bucket, key = _server_and_path(text)
        else:
            bucket, _, key = rest.partition("/")
        if not bucket:
            raise DataError("the URL names no bucket or server", where=text, allowed=_allowed())
        return cls(text, scheme, bucket, key.strip("/"))


def is_url(text: str) -> bool:
    """Whether this is a URL rather than a path."""
    return _URL.match(text) is not None


def require_without_secrets(text: str) -> None:
    """Refuse a URL that holds a user name, a password or a signed query, and repeat none of them; paths pass.

    Raises:
        DataError: it holds one: what is named in a configuration is kept with a run and shown in messages.
    """
    if not is_url(text):
        return
    scheme, _, rest = text.partition("://")
    server, slash, path = rest.partition("/")
    _, at, bare = server.rpartition("@")
    path, _, query = path.partition("?")
    bare = bare.partition("?")[0]
    where = f"{scheme}://{bare}{slash}{path}"
    if at:
        raise DataError("the URL holds a user name or password", where=where, next_step=_FROM_ENVIRONMENT)
    given = query or server.partition("?")[2]
    if scheme.lower() in STORES and given and "=" in given:
        names = ", ".join(name for name, _ in parse_qsl(given, keep_blank_values=True))
        raise DataError(
            f"the URL has parameters ({names})", where=where, allowed=_allowed(), next_step=_FROM_ENVIRONMENT
        )
    secret = [name for name, _ in parse_qsl(given, keep_blank_values=True) if _SECRET.search(name)]
    if secret:
        raise DataError(
            f"the URL has a parameter that may be a secret ({', '.join(secret)})",
            where=where,
            next_step="Name an object that the server gives without it, or download the file.",
        )


def _server_and_path(text: str) -> tuple[str, str]:
    try:
        return urlsplit(text).netloc, urlsplit(text).path
    except ValueError as problem:
        raise DataError(f"the URL is none: {problem}", where=text, allowed=_allowed()) from None


def _allowed() -> str:
    return "a path, s3://BUCKET/KEY, gs://BUCKET/KEY, http:// or https://"
