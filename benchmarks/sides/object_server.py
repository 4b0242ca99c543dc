"""An object store on the loopback address: the requests of S3, of Google Cloud Storage and of plain HTTP that read.

    python benchmarks/sides/object_server.py FOLDER      # serves its files as bucket `data`; prints its address

It answers HeadObject, GetObject with a range, ListObjectsV2, and the JSON requests of Google Cloud Storage for the
same; signatures are asked for where `signed` says so, and never checked. Every request is noted with what it was
answered, and faults can be set: a status, a connection that ends within a body, an object replaced meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class StoredBytes:
    """Content of an object and what tells it from another one under the same name."""

    content: bytes
    etag: str
    modified: datetime


@dataclass(frozen=True)
class Answered:
    """A request and its answer: ``kind`` is HEAD, LIST or GET, ``size`` the bytes of an object that were sent."""

    kind: str
    path: str
    status: int
    size: int = 0


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind.

    Attributes:
        status: is answered; 0 for a connection that ends within the body.
        code: what S3 calls the status.
        orderly: whether that connection is closed, not reset.
    """

    kind: str
    times: int
    status: int = 0
    code: str = "InternalError"
    orderly: bool = False


@dataclass
class ObjectServer:
    """A context manager that serves; what stands in it can be changed meanwhile.

    Attributes:
        buckets: name to key to content.
        signed: names of buckets that refuse requests without a signature.
        forbidden: names of buckets that refuse every request.
        elsewhere: names of buckets that another region has.
        faults: to come.
        answered: all requests so far.
        before: is called with kind and path of each request before it is answered.
        ranges: whether plain HTTP requests get the range that they ask for.
    """

    buckets: dict[str, dict[str, StoredBytes]] = field(default_factory=dict)
    signed: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda kind, path: None
    ranges: bool = True

    def __enter__(self) -> ObjectServer:
        """Serve from a thread of this process, on a port that is free."""
        self._server = _server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """Such as ``http://127.0.0.1:40123``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Store an object, or replace it."""
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.buckets.setdefault(bucket, {})[key] = StoredBytes(content, etag, datetime.now(UTC))

    def put_folder(self, bucket: str, folder: Path) -> None:
        """Store every file below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(bucket, path.relative_to(folder).as_posix(), path.read_bytes())

    def count(self, kind: str) -> int:
        """How many requests of a kind there were."""
        return sum(one.kind == kind for one in self.answered)

    @property
    def bytes_sent(self) -> int:
        """Bytes of objects that left."""
        return sum(one.size for one in self.answered)

    def take_fault(self, kind: str) -> Fault | None:
        """The fault that the next request of a kind meets."""
        for fault in self.faults:
            if fault.kind == kind and fault.times > 0:
                fault.times -= 1
                return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    objects: ObjectServer

    def shutdown_request(self, request: Any) -> None:
        """Close at once: an orderly end would come before a reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may hang up."""


def _server(objects: ObjectServer) -> _Server:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.objects = objects
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """The requests are noted instead."""

    def do_HEAD(self) -> None:
        """Answer a HEAD request."""
        self._answer("HEAD")

    def do_GET(self) -> None:
        """Answer a GET request."""
        parts = urlsplit(self.path)
        if parts.path.startswith("/storage/v1/b/"):
            self._answer_google(parts.path, parse_qs(parts.query))
        else:
            self._answer("LIST" if "list-type" in parse_qs(parts.query) else "GET")

    def _answer(self, kind: str) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        self._kind, self._where = kind, f"{bucket}/{key}" if key else bucket
        objects = self.server.objects
        objects.before(kind, self._where)
        fault = objects.take_fault(kind)
        if fault is not None and fault.status:
            return self._refuse(fault.status, fault.code)
        if bucket in objects.elsewhere:
            return self._refuse(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-9"})
        unsigned = bucket in objects.signed and "Authorization" not in self.headers
        if bucket in objects.forbidden or unsigned:
            return self._refuse(403, "AccessDenied")
        if bucket not in objects.buckets:
            return self._refuse(404, "NoSuchBucket")
        if kind == "HEAD" and not key:
            return self._send_text("", "application/xml")
        if kind == "LIST":
            query = parse_qs(parts.query)
            return self._list(bucket, query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        found = objects.buckets[bucket].get(key)
        if found is None:
            return self._refuse(404, "NoSuchKey" if key else "")
        return self._send(found, fault)

    def _answer_google(self, path: str, query: dict[str, list[str]]) -> None:
        bucket, _, rest = path.removeprefix("/storage/v1/b/").partition("/")
        key = unquote(rest.removeprefix("o").removeprefix("/"))
        media = query.get("alt") == ["media"]
        kind = "LIST" if not key else "GET" if media else "HEAD"
        self._kind, self._where = kind, f"{bucket}/{key}"
        objects = self.server.objects
        objects.before(kind, self._where)
        fault = objects.take_fault(kind)
        stored = objects.buckets.get(bucket)
        if fault is not None and fault.status:
            return self._send_json({"error": {"code": fault.status, "message": fault.code}}, fault.status)
        if bucket in objects.forbidden:
            return self._send_json({"error": {"code": 403, "message": "forbidden"}}, 403)
        if stored is None or (key and key not in stored):
            return self._send_json({"error": {"code": 404, "message": "Not Found"}}, 404)
        if not key:
            prefix = query.get("prefix", [""])[0]
            items = [_google(bucket, name, one) for name, one in sorted(stored.items()) if name.startswith(prefix)]
            return self._send_json({"kind": "storage#objects", "items": items})
        if media:
            return self._send(stored[key], fault)
        return self._send_json(_google(bucket, key, stored[key]))

    def _send(self, found: StoredBytes, cut: Fault | None) -> None:
        wanted = _RANGE.fullmatch(self.headers.get("Range", "")) if self.server.objects.ranges else None
        content = memoryview(found.content)
        first, last = 0, len(content) - 1
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or last), last)
        content = content[first : last + 1] if wanted else content
        sent = 0 if self._kind == "HEAD" else len(content) // 2 if cut else len(content)
        self._note(206 if wanted else 200, sent)  # first, since who has the answer may ask what was noted
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{found.etag}"')
        self.send_header("Last-Modified", format_datetime(found.modified, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(found.content)}")
        self.end_headers()
        self.wfile.write(content[:sent])
        if cut:
            self._hang_up(orderly=cut.orderly)

    def _hang_up(self, *, orderly: bool) -> None:
        if not orderly:  # with nothing to linger for, closing sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
        contents, common = [], set()
        for key, one in sorted(self.server.objects.buckets[bucket].items()):
            if not key.startswith(prefix):
                continue
            inside, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                common.add(prefix + inside + delimiter)
                continue
            modified = one.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f'<ETag>"{one.etag}"</ETag><Size>{len(one.content)}</Size></Contents>'
            )
        folders = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(common)]
        self._send_text(
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
            f"{''.join(contents)}{''.join(folders)}</ListBucketResult>",
            "application/xml",
        )

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._send_text(
            f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", "application/xml", status, headers
        )

    def _send_json(self, value: dict[str, Any], status: int = 200) -> None:
        self._send_text(json.dumps(value), "application/json", status)

    def _send_text(self, text: str, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self._note(status, 0)
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _note(self, status: int, size: int) -> None:
        self.server.objects.answered.append(Answered(self._kind, self._where, status, size))


def _google(bucket: str, key: str, one: StoredBytes) -> dict[str, Any]:
    modified = one.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": key,
        "size": str(len(one.content)),
        "etag": one.etag,
        "generation": str(int(one.modified.timestamp() * 1e6)),
        "metageneration": "1",
        "timeCreated": modified,
        "updated": modified,
    }


def main() -> None:
    """Serve a folder until standard input ends."""
    objects = ObjectServer()
    objects.put_folder("data", Path(sys.argv[1]))
    with objects:
        print(objects.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
