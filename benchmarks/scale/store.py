"""An S3-compatible server for reading a local folder: it waits before each answer, and counts requests and bytes.

Lists have pages of 1,000 keys, as in S3. It is written in Python, because a page of a million keys and a sparse file of
10 GB have to be served alike; do not measure transfer rates with it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PAGE = 1000


class FakeStore(ThreadingHTTPServer):
    """Serve the files of a folder as objects of the bucket ``bkt``.

    Attributes:
        counts: requests by kind: ``list``, ``head``, ``get``; and ``bytes`` that were sent in answers to GET. The last
            two also by suffix of the object, such as ``get.mp4``.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, root: Path, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.delay = root, delay
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        found = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
        self.keys = sorted(str(path.relative_to(root)) for path in found)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which an S3 client reaches it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_REGION": "us-east-1",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_ALLOW_HTTP": "true",
        }

    def count(self, kind: str, number: int = 1) -> None:
        """Add to a count."""
        with self.lock:
            self.counts[kind] += number

    def handle_error(self, *_: Any) -> None:
        """A client that closes a connection is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeStore

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.server.count("head")
        self._object()

    def do_GET(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        with suppress(ConnectionError):
            if "list-type" in query:
                self.server.count("list")
                self._list(query)
            else:
                self.server.count("get")
                self._object()

    def _list(self, query: dict[str, str]) -> None:
        time.sleep(self.server.delay)
        keys, prefix = self.server.keys, query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        first = bisect_right(keys, max(after, prefix[:-1] + chr(ord(prefix[-1]) - 1) if prefix else ""))
        page = []
        for key in keys[first:]:
            if key.startswith(prefix):
                page.append(key)
            if len(page) > PAGE or (page and not key.startswith(prefix)):
                break
        more, page = len(page) > PAGE, page[:PAGE]
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{status.st_size}</Size><ETag>&quot;{_tag(status)}&quot;</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
            for status in (os.stat(self.server.root / key),)
        )
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        self._send(200, {}, text.encode())

    def _object(self) -> None:
        time.sleep(self.server.delay)
        path = self.server.root / unquote(urlsplit(self.path).path).removeprefix("/bkt/")
        try:
            status = path.stat()
        except OSError:
            return self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, status.st_size)) if asked else (0, status.st_size)
        facts = {"ETag": f'"{_tag(status)}"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if asked:
            facts["Content-Range"] = f"bytes {begin}-{end - 1}/{status.st_size}"
        if self.command == "HEAD":
            return self._send(200, facts, b"", end)
        with open(path, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), end - begin, begin)
        self.server.count("bytes", len(data))
        self.server.count(f"bytes{path.suffix}", len(data))
        self.server.count(f"get{path.suffix}")
        return self._send(206 if asked else 200, facts, data)

    def _send(self, status: int, facts: dict[str, str], data: bytes, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in facts.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


@contextmanager
def fake_store(root: Path, delay: float) -> Iterator[FakeStore]:
    """Run a server for the time of a block.

    Args:
        root: folder of the objects.
        delay: seconds before each answer.
    """
    server = FakeStore(root, delay)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
