"""A stand-in for the Hugging Face Hub on this machine: one dataset with commits, listed and read, never written."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class HubServer(ThreadingHTTPServer):
    """The dataset ``org/set``: `commits` are its files, by commit; `main` is the commit of its branch.

    Attributes:
        ranges: ranges of files that were asked for so far, with their commit.
        token: that is needed, if any.
        refuse: statuses to answer the next requests for files with.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commits = {"a" * 40: dict(files)}
        self.main = "a" * 40
        self.token = ""
        self.ranges: list[tuple[str, str, int, int]] = []
        self.refuse: list[int] = []
        self.now = self.peak = 0
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, files: dict[str, bytes]) -> None:
        """Add a commit to the branch."""
        self.main = f"{len(self.commits):040x}"
        self.commits[self.main] = dict(files)

    def handle_error(self, *_: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"error": code}).encode(), X_Error_Code=code, Content_Type="application/json")

    def _json(self, found: Any) -> None:
        self._send(200, json.dumps(found).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.now += 1
            self.server.peak = max(self.server.peak, self.server.now)
        try:
            with suppress(ConnectionError):
                self._answer()
        finally:
            with self.server.lock:
                self.server.now -= 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match = re.fullmatch(r"/api/datasets/org/set/paths-info/([^/]+)", unquote(urlsplit(self.path).path))
        commit = None if match is None else self._commit(match[1])
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        rows = self._rows(commit, "", recursive=True)
        return self._json([row for row in rows if row["path"] in body["paths"]])

    def _commit(self, revision: str) -> str | None:
        found = self.server.main if revision == "main" else revision
        return found if found in self.server.commits else None

    def _rows(self, commit: str, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for path, data in sorted(self.server.commits[commit].items()):
            if not path.startswith(folder):
                continue
            parts = path[len(folder) :].split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                name = folder + "/".join(parts[:depth])
                rows[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
            if recursive or len(parts) == 1:
                oid = hashlib.sha1(data).hexdigest()
                rows[path] = {"type": "file", "path": path, "size": len(data), "oid": oid}
        return list(rows.values())

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._refuse(401, "RepoNotFound")
        if match := re.fullmatch(r"/api/datasets/org/set(?:/revision/([^/]+))?", path):
            commit = self._commit(match[1] or "main")
            if commit is None:
                return self._refuse(404, "RevisionNotFound")
            return self._json({"id": "org/set", "sha": commit, "siblings": [], "tags": [], "downloads": 0, "likes": 0})
        if match := re.fullmatch(r"/api/datasets/org/set/tree/([^/]+)/?(.*)", path):
            commit = self._commit(match[1])
            folder = f"{match[2].rstrip('/')}/" if match[2] else ""
            rows = (
                None if commit is None else self._rows(commit, folder, recursive="recursive=true" in url.query.lower())
            )
            return self._json(rows) if rows else self._refuse(404, "EntryNotFound")
        if match := re.fullmatch(r"/datasets/org/set/resolve/([^/]+)/(.*)", path):
            return self._file(self._commit(match[1]), match[2])
        return self._refuse(404, "RepoNotFound")

    def _file(self, commit: str | None, path: str) -> None:
        data = None if commit is None else self.server.commits[commit].get(path)
        if data is None or commit is None:
            return self._refuse(404, "EntryNotFound")
        with self.server.lock:
            status = self.server.refuse.pop() if self.server.refuse else 0
        if status:
            return self._refuse(status, "Busy")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._send(200, data)
        begin, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        with self.server.lock:
            self.server.ranges.append((commit, path, begin, end))
        if begin >= len(data):
            return self._refuse(416, "InvalidRange")
        return self._send(206, data[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(data)}")


@contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[HubServer]:
    """Run a server for the time of a block."""
    server = HubServer(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
