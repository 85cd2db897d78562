"""A stand-in for Google Cloud Storage on this machine: its XML interface, after its public documentation.

No emulator in a package registry has this interface, which clients of other languages than Google's use.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Object(NamedTuple):
    data: bytes
    generation: int
    etag: str
    modified: float


class GcsServer(ThreadingHTTPServer):
    """A server of buckets.

    Attributes:
        buckets: objects by bucket and key.
        uploads: parts by id of an unfinished upload.
        token: the bearer token that requests need, if any.
        answers: statuses and codes of errors to answer the next requests with.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.token = ""
        self.answers: list[tuple[int, str]] = []
        self.lock = threading.RLock()
        self.count = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        pass

    def next(self) -> int:
        with self.lock:
            self.count += 1
            return self.count


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait for the acknowledgement of its headers
    server: GcsServer

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def _handle(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            error = self.server.answers.pop(0) if self.server.answers else None
        if error is None and self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            error = (401, "AuthenticationRequired") if self.headers["Authorization"] else (403, "AccessDenied")
        if error is None and bucket not in self.server.buckets:
            error = (404, "NoSuchBucket")
        if error is not None:
            return self._refuse(*error)
        with self.server.lock:
            objects = self.server.buckets[bucket]
            if not key:
                return self._list(objects, query)
            if "uploads" in query or "uploadId" in query:
                return self._upload(objects, key, query, body)
            if self.command == "PUT":
                return self._put(objects, key, body)
            if key not in objects:
                return self._refuse(404, "NoSuchKey")
            if self.command == "DELETE":
                del objects[key]
                return self._send(204)
            return self._get(objects[key])

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _put(self, objects: dict[str, Object], key: str, data: bytes) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (objects[key].generation if key in objects else 0):
            return self._refuse(412, "PreconditionFailed")
        self._send(200, **_headers(self._store(objects, key, data)))

    def _store(self, objects: dict[str, Object], key: str, data: bytes) -> Object:
        number = self.server.next()
        objects[key] = Object(data, number, f'"{hashlib.md5(data).hexdigest()}"', 1_700_000_000.0 + number)
        return objects[key]

    def _get(self, found: Object) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        size = len(found.data)
        if asked is None:
            return self._send(200, found.data, **_headers(found))
        begin, end = int(asked[1]), min(int(asked[2] or size) + 1, size)
        if begin >= size:
            return self._refuse(416, "InvalidRange")
        return self._send(
            206, found.data[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{size}", **_headers(found)
        )

    def _list(self, objects: dict[str, Object], query: dict[str, str]) -> None:
        after, most = query.get("continuation-token", ""), int(query.get("max-keys", 1000))
        keys = sorted(key for key in objects if key.startswith(query.get("prefix", "")) and key > after)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key].data)}</Size>"
            f"<ETag>{escape(objects[key].etag)}</ETag><Generation>{objects[key].generation}</Generation>"
            f"<LastModified>2026-01-01T00:00:00.{objects[key].generation:06d}Z</LastModified></Contents>"
            for key in keys[:most]
        )
        more = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if len(keys) > most else ""
        self._send(200, f"<?xml version='1.0'?><ListBucketResult>{more}{rows}</ListBucketResult>".encode())

    def _upload(self, objects: dict[str, Object], key: str, query: dict[str, str], body: bytes) -> None:
        uploads, upload = self.server.uploads, query.get("uploadId", "")
        if "uploads" in query:
            upload = str(self.server.next())
            uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return self._send(200, text.encode())
        if upload not in uploads:
            return self._refuse(404, "NoSuchUpload")
        if self.command == "PUT":
            uploads[upload][int(query["partNumber"])] = body
            return self._send(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        parts = uploads.pop(upload)
        if self.command == "DELETE":
            return self._send(204)
        stored = self._store(objects, key, b"".join(parts[number] for number in sorted(parts)))
        text = f"<CompleteMultipartUploadResult><ETag>{escape(stored.etag)}</ETag></CompleteMultipartUploadResult>"
        return self._send(200, text.encode(), **_headers(stored))


def _headers(found: Object) -> dict[str, str]:
    return {
        "ETag": found.etag,
        "x_goog_generation": str(found.generation),
        "Last_Modified": formatdate(found.modified, usegmt=True),
    }


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """Run a server for the time of a block."""
    server = GcsServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
