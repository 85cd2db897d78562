"""Servers on this machine, and stores made in them."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import uuid
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helpers.azure_server import azure_server, azurite_command, new_container
from helpers.gcs_server import gcs_server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server that lives as long as the test run and is reached over loopback only."""
    from moto.core import errors, utils
    from moto.moto_server import threaded_moto_server
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler

    class Handler(MotoRequestHandler):  # type: ignore[misc]
        """Keeps connections: werkzeug ends each after its answer, and looks for more of it for 10 ms before that."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def run_wsgi(self) -> None:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            environ, answer = self.make_environ(), io.BytesIO()
            if not environ.get("wsgi.input_terminated"):
                environ["wsgi.input"] = io.BytesIO(body)

            def begin(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
                self.send_response(int(status[:3]), status[4:])
                for name, value in headers:
                    self.send_header(name, value)
                return answer.write

            answer.writelines(self.server.app(environ, begin))
            names = b"".join(self._headers_buffer).lower()
            if b"\r\ncontent-length:" not in names:
                self.send_header("Content-Length", str(answer.tell()))
            self._headers_buffer.append(b"\r\n")
            self.wfile.write(b"".join([*self._headers_buffer, answer.getvalue()]))
            self._headers_buffer.clear()

    # Each request lists the folders of all services otherwise, to find which one it is for: half of what it takes. So
    # does each answer that is an error, which also makes a table of all errors.
    DomainDispatcherApplication.get_backend_for_host = lambda *_: "s3"
    utils.service_name_from_moto_package_name = cache(utils.service_name_from_moto_package_name)
    errors.ErrorLookupFactory = cache(errors.ErrorLookupFactory)
    threaded_moto_server.MotoRequestHandler = Handler
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = threaded_moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a fresh bucket; the environment says how to reach it, in child processes too."""
    empty = tmp_path_factory.mktemp("aws") / "config"
    empty.touch()
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONFIG_FILE": str(empty),
        "AWS_SHARED_CREDENTIALS_FILE": str(empty),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = f"feedmill-{uuid.uuid4().hex[:12]}"
    s3_client(s3_server).create_bucket(Bucket=name)
    return f"s3://{name}"


@cache
def s3_client(endpoint: str) -> Any:
    """The client of boto3 for a server of these tests. To make one takes as long as twenty requests."""
    import boto3

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


@contextlib.contextmanager
def ftp_server(folder: Path) -> Iterator[str]:
    """Serve a folder over FTP for a block, which gets its URL. Requires `pyftpdlib`."""
    with warnings.catch_warnings():  # of its use of asyncore, and of anyone who may write
        warnings.simplefilter("ignore")
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import ThreadedFTPServer

        class Handler(FTPHandler):  # type: ignore[misc]
            authorizer = DummyAuthorizer()

        Handler.authorizer.add_anonymous(str(folder), perm="elradfmwMT")
    logging.getLogger("pyftpdlib").setLevel(logging.ERROR)
    server = ThreadedFTPServer(("127.0.0.1", 0), Handler)
    server.poll_timeout = 0.05  # how often the thread of a connection looks for the end
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.1}, daemon=True)
    thread.start()
    host, port = server.socket.getsockname()
    try:
        yield f"ftp://{host}:{port}"
    finally:
        server.close_all()
        thread.join()


@pytest.fixture
def gcs_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket in a stand-in for Google's store; the environment says how to reach it."""
    with gcs_server() as server:
        server.buckets["feedmill"] = {}
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
        yield "gs://feedmill"


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The endpoint of an emulator of Azure's store that lives as long as the test run."""
    if azurite_command() is None:
        pytest.skip("Azurite is not installed (npm install -g azurite, or FEEDMILL_AZURITE=/path/to/azurite-blob)")
    with azure_server() as endpoint:
        yield endpoint


@pytest.fixture
def azure_container(azurite: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new container in an emulator; the environment says how to reach it."""
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite)
    return f"az://{new_container(azurite)}"
