"""A server of pages in a thread, and requests to it as a browser makes them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn

from feedmill.web.app import app_of
from feedmill.web.library import Library


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def words(self) -> str:
        """The page's text without its markup."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.text).split())


class Site:
    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"

    def get(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"Host": self.host, **names})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


class Server(uvicorn.Server):
    """A server that looks for its end every hundredth of a second, not every tenth, and ends when its requests have."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.002)


@contextlib.contextmanager
def serving(*paths: object, token: str | None = None, **options: Any) -> Iterator[Site]:
    """Serve datasets and recipes while a block runs."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    port = listening.getsockname()[1]
    app = app_of(Library([str(path) for path in paths], **options), token=token, hosts=[f"127.0.0.1:{port}"])
    server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Site(port)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
