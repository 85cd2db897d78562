"""An S3 server for reading on this machine that misbehaves when told to: refusals, cut bodies, silence."""

from __future__ import annotations

import functools
import hashlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

Fault = Callable[[int, int, int], str | None]
"""Says for the number of a request (from 0) and its range what goes wrong with it, or None."""


class RangeServer(ThreadingHTTPServer):
    """Objects of the bucket ``bkt`` over GET with ``Range`` and ``If-Match``, HEAD, and a listing of up to 1,000 keys.

    Faults: ``"503"``, ``"403"``, ``"403:RequestTimeTooSkewed"`` (any status and code), ``"reset"``, ``"cut"``,
    ``"short"`` (fewer bytes than asked, as the header says), ``"stall"`` (silence of
    `silence` seconds in the body), ``"slow"`` (two seconds for the body), ``"drip"`` (the body at `rate` bytes/s),
    ``"range"`` (another `Content-Range` than asked) and ``"late"`` (a second before the answer).
    """

    daemon_threads = True
    lists = True
    """Whether objects may be listed."""
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.fault: Fault = lambda number, begin, end: None
        self.delay = 0.0
        self.silence, self.rate = 3.0, 64 << 10
        self.token: str | None = None
        """The session token that requests must have."""
        self.tags: dict[str, str] = {}
        """ETags of objects that are not the hash of their bytes."""
        self.refusal: tuple[int, str] | None = None
        """Status and code with which every request is refused."""
        self.faults: Counter[str] = Counter()
        """How often each fault occurred."""
        self.asked: list[tuple[int, int]] = []
        """Ranges of the requests for objects so far."""
        self.keys: list[str] = []
        """The object of each of them."""
        self.now = self.peak = self.gather = 0
        """Requests in progress, the most of them so far, and how many have to be there before any is answered."""
        self.lock = threading.RLock()
        self._more = threading.Condition(self.lock)
        self.ended = threading.Event()

    @property
    def options(self) -> dict[str, Any]:
        """What `RemoteStore` needs to reach it."""
        return {"endpoint": f"http://127.0.0.1:{self.server_port}", "region": "us-east-1", "skip_signature": True}

    def forget(self) -> None:
        """Forget the requests so far."""
        with self.lock:
            self.asked.clear()
            self.keys.clear()

    def expect(self, count: int) -> None:
        """Answer no request before so many are there at once: on a busy machine they would come one by one."""
        with self.lock:
            self.peak, self.gather = self.now, count

    def enter(self) -> None:
        with self.lock:
            self.now += 1
            self.peak = max(self.peak, self.now)
            self._more.notify_all()
            self._more.wait_for(lambda: self.peak >= self.gather, 120)

    def handle_error(self, *_: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def setup(self) -> None:
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_PROPFIND(self) -> None:
        """How a folder of a web server would be listed; few know it."""
        self._refuse(405, "MethodNotAllowed")

    def do_GET(self) -> None:
        self.server.enter()
        try:
            with suppress(ConnectionError):
                self._answer(body=True)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _tag(self, key: str, data: bytes) -> str:
        return self.server.tags.get(key) or _tag(data)

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>&quot;{self._tag(key, data)}&quot;</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, data in sorted(self.server.objects.items())
            if key.startswith(prefix)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _answer(self, body: bool) -> None:
        url = urlsplit(self.path)
        if url.path.split("/")[1] != "bkt":
            return self._refuse(404, "NoSuchBucket")
        if self.server.refusal:
            return self._refuse(*self.server.refusal)
        if self.server.token not in (None, self.headers.get("x-amz-security-token")):
            return self._refuse(403, "ExpiredToken")
        if "list-type" in url.query and not self.server.lists:
            return self._refuse(403, "AccessDenied")
        if "list-type" in url.query:
            return self._list(dict(parse_qsl(url.query)).get("prefix", ""))
        key = unquote(url.path).removeprefix("/bkt/")
        data = self.server.objects.get(key)
        if data is None:
            return self._refuse(404, "NoSuchKey")
        tag = f'"{self._tag(key, data)}"'
        if self.headers.get("If-Match", tag) != tag:
            return self._refuse(412, "PreconditionFailed")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, len(data))) if asked else (0, len(data))
        fault = None
        if body:
            with self.server.lock:
                number = len(self.server.asked)
                self.server.asked.append((begin, end))
                self.server.keys.append(key)
                fault = self.server.fault(number, begin, end)  # one at a time: it may look at what has happened
                if fault:
                    self.server.faults[fault] += 1
            time.sleep(self.server.delay + (fault == "late"))
        if asked and begin >= len(data):
            return self._refuse(416, "InvalidRange")
        if fault and fault[:3].isdigit():
            return self._refuse(int(fault[:3]), fault[4:] or {"503": "SlowDown", "403": "AccessDenied"}[fault])
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return self.connection.close()
        shift = 1 if fault == "range" else 0
        end -= min(10, (end - begin) // 2) if fault == "short" else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Content-Length", str(end - begin))
        if asked:
            self.send_header("Content-Range", f"bytes {begin + shift}-{end - 1 + shift}/{len(data)}")
        self.end_headers()
        if body:
            self._send(data[begin:end], fault)
        return None

    def _send(self, data: bytes, fault: str | None) -> None:
        half = len(data) // 2
        if fault == "drip":
            step = max(1, self.server.rate // 8)
            for at in range(0, len(data), step):
                self.wfile.write(data[at : at + step])
                self.server.ended.wait(step / self.server.rate)
            return None
        if fault in ("cut", "stall", "slow"):
            self.wfile.write(data[:half])
            if fault == "cut":
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            self.server.ended.wait(self.server.silence if fault == "stall" else 2)
            data = data[half:]
        self.wfile.write(data)
        return None


@functools.cache
def _tag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@contextmanager
def range_server() -> Iterator[RangeServer]:
    """Run a server for the time of a block."""
    server = RangeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()  # the process does not end before its requests have their answers
        server.shutdown()
        server.server_close()
        thread.join()
