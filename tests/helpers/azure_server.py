"""Azurite, Microsoft's emulator of Azure Blob Storage, on this machine (``npm install -g azurite``)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every Azurite; not a secret."""


def azurite_command() -> str | None:
    """The path of Azurite: ``FEEDMILL_AZURITE``, or on the path."""
    return os.environ.get("FEEDMILL_AZURITE") or shutil.which("azurite-blob")


@contextmanager
def azure_server() -> Iterator[str]:
    """Run Azurite in memory for a block, which gets its URL."""
    program = azurite_command()
    assert program is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--blobPort", str(port)]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 240
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, "Azurite does not start"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def new_container(endpoint: str) -> str:
    """Create a container; return its name."""
    name = f"feedmill-{uuid.uuid4().hex[:12]}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", "Content-Length": "0"}
    signed = "".join(f"{header}:{headers[header]}\n" for header in ("x-ms-date", "x-ms-version"))
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + signed + resource
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{ACCOUNT}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, None, headers, method="PUT"), timeout=30).close()
    return name
