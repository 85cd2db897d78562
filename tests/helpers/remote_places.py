"""Buckets and other stores that verbs write to, and how what is written there is compared with a disk."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import obstore
import pytest

from feedmill.storage import open_store
from feedmill.storage.remote import object_store
from feedmill.storage.remote.object_store import RemoteStore
from helpers.remote_verbs import make
from helpers.stores import ftp_server, s3_client

PART = 2048
"""Bytes of the parts of uploads, so that most objects have several."""
RECORDS = ("feedmill.shards.json", ".feedmill.json", "/.feedmill/", "/columns/", ".repair/report.json", ".run.json")
"""Parts of the names of records with versions of files, which a store gives; columns of cells have them inside."""
RANDOM = ("feedmill.members", "feedmill.offsets", "index.uuid")
"""With a number that each index gets anew."""
MINUTE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC|\"added\": ?\"[^\"]*\"")
"""When a report was written, or a document was made."""
DECIDED = (
    *("version", "job", "uuid", "run", "fingerprint", "seconds", "lineage", "xxh3", "started", "finished", "time"),
    "reused",
)
"""Keys of records whose values the store or the clock decides, or the paths of inputs, or what a killed run left."""
LINEAGE = ".feedmill.lineage"
"""It names the inputs by paths relative to the output, and by absolute ones in another store."""
SIZED = (".feedmill.json", ".feedmill.lineage")
"""Whose sizes, in the record of a pipeline, depend on the paths."""
TIME = b"media_filters"
"""In a database with the time at which it was made."""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make(folder, 300)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEEDMILL_UPLOAD_PART_MIB", "5")
    return tmp_path / "cache"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of `PART` bytes in this process; the S3 server accepts them."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr(object_store, "part_size", lambda: PART)
    monkeypatch.setattr(object_store, "_BUFFER", PART // 2)


class Place(NamedTuple):
    """A new bucket, or a new folder of a file system.

    Attributes:
        folder: of this machine, with the files of a file system.
    """

    url: str
    folder: Path | None = None

    def files(self, path: str) -> Iterator[str]:
        """The paths of all files below a path, hidden ones too."""
        if self.folder is not None:
            yield from local_tree(self.folder / path)
            return
        for page in obstore.list(RemoteStore(f"{self.url}/{path}").client):
            yield from (entry["path"] for entry in page)

    def tree(self, path: str) -> dict[str, bytes]:
        store = open_store(f"{self.url}/{path}")
        return {name: store.read(name) for name in self.files(path)}

    def unfinished(self) -> list[str]:
        """What uploads that were neither completed nor aborted left."""
        if self.folder is not None:
            return [path.name for path in self.folder.rglob(".*.feedmill-tmp")]
        if not self.url.startswith("s3://"):
            return []  # removed by the server after some time
        found = s3_client(os.environ["AWS_ENDPOINT_URL"]).list_multipart_uploads(Bucket=self.url.removeprefix("s3://"))
        return [upload["Key"] for upload in found.get("Uploads", [])]


BUCKETS = {"s3": "s3_bucket", "gcs": "gcs_bucket", "azure": "azure_container"}
"""Fixtures by kind of store."""
PLACES = (*BUCKETS, "files", "ftp")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> Iterator[Place]:
    if request.param in BUCKETS:
        yield Place(request.getfixturevalue(BUCKETS[request.param]))
        return
    folder = tmp_path / "server"
    folder.mkdir()
    if request.param == "files":
        yield Place(f"local://{folder}", folder)
        return
    pytest.importorskip("pyftpdlib", reason="pyftpdlib is not installed")
    with ftp_server(folder) as url:
        yield Place(url, folder)


def local_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def origins(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A lineage without the folders of the inputs, and so without its length and its hash."""
    begin = 12 + int.from_bytes(data[8:12], "little")
    header = json.loads(data[12:begin])
    for one in header["inputs"]:
        one["path"] = one["path"].rpartition("/")[2]
    return header, data[begin:-8]


def compare(
    found: dict[str, bytes], expected: dict[str, bytes], place: str, folder: str, files: Iterable[str] = ()
) -> None:
    """Compare what is in a place and in a folder, but for configurations, which name them."""
    assert sorted(found) == sorted(expected)
    for name, data in expected.items():
        if f"{{out}}/{name}" in files:
            continue
        if TIME in data:
            assert media(found[name]) == media(data)
        elif name.endswith(LINEAGE):
            assert origins(found[name]) == origins(data), name
        elif not any(part in f"/{name}" for part in (*RECORDS, *RANDOM)):
            assert without_time(found[name]) == without_time(data), name
        elif name.endswith(".json"):
            assert without_versions(found[name], place) == without_versions(data, folder), name


def without_time(data: bytes) -> bytes:
    """A file without the time at which it was made, unpacked if it is packed."""
    return MINUTE.sub(b"", gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def media(database: bytes) -> list[str]:
    """What a database says of media, and its other tables."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database)
        connection.execute("UPDATE media_filters SET created_at_utc = ''")
        return list(connection.iterdump())


def without_versions(record: bytes, place: str) -> object:
    """A record of work but for what the store or the clock decides."""
    return json.loads(
        record.replace(place.encode(), b"PLACE"),
        object_hook=lambda row: {
            name: list(value.values()) if name == "runs" else value  # by their random numbers
            for name, value in row.items()
            if name not in DECIDED
            and not name.endswith(SIZED)
            and not (name == "size" and "xxh3" in row)
            and not (name == "path" and "vocab_size" in row)  # of a tokenizer, like those of the inputs
        },
    )
