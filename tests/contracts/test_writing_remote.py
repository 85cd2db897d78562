"""Verbs that write to a bucket or a file system of fsspec: the bytes of a disk, whole after any number of kills."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import obstore
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.storage import open_store
from feedmill.storage.remote.object_store import RemoteStore
from helpers.stores import ftp_server
from helpers.tokenizer_data import tokenizer_file

TAGGER = "char_length_v1"


class Verb(NamedTuple):
    """A command that writes.

    Attributes:
        words: with ``{src}`` for the folder of inputs, and ``{out}`` for the place that is written to.
        needs: inputs that are in that place before.
    """

    words: str
    needs: tuple[str, ...] = ()


VERBS = {
    "reshard": Verb("reshard {src}/tars {out}/wds --samples 7"),
    "wds": Verb("convert {src}/x.jsonl {out}/wds --to wds"),
    "jsonl": Verb("convert {src}/tars {out}/c.jsonl --to jsonl --allow-loss"),
    "mds": Verb("convert {src}/tars {out}/mds --to mds"),
    "parquet": Verb("convert {src}/x.jsonl {out}/c.parquet --to parquet"),
    "vla": Verb("convert {src}/tars {out}/vla --to vla"),
    "npz": Verb("convert {src}/x.jsonl {out}/npz --to npz"),
    "prepare": Verb("prepare {out}/plain --split-ratio 8,2,0", ("plain",)),
    "prepare-media": Verb("prepare-media {out}/tars --media-by-extension", ("tars",)),
    "append": Verb("append {out}/tars {src}/more", ("tars",)),
    "repair": Verb("repair {out}/plain", ("plain",)),
    "tag": Verb(f"tag {{out}}/documents -t {TAGGER} --name a --workers 1", ("documents",)),
    "tag elsewhere": Verb(f"tag {{src}}/documents -t {TAGGER} --name a --output {{out}}/attributes/a --workers 1"),
    "dedupe": Verb("dedupe {out}/documents", ("documents",)),
    "neardedupe": Verb("neardedupe {out}/documents", ("documents",)),
    "filter": Verb("filter {src}/x.jsonl {out}/f.jsonl --min-length 10"),
    "tokenize": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to pbin,megatron,ds,dolma"),
    "tokenize vla": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to vla-text --seq-len 32"),
    "index": Verb("index {out}/x.jsonl", ("x.jsonl",)),
    "merge": Verb("merge {src}/t.pbin {src}/t.pbin {out}/m.pbin"),
    "merge jsonl": Verb("merge {src}/x.jsonl {src}/x.jsonl {out}/m.jsonl"),
    "shuffle": Verb("shuffle {src}/t.ds {out}/s.ds --seed 1"),
    "shuffle megatron": Verb("shuffle {src}/t.bin {out}/s.bin --seed 1"),
    "split": Verb("split {src}/x.jsonl {out}/x.{{part}}.jsonl --ratio 8,2 --seed 3"),
    "split tokens": Verb("split {src}/t.pbin {out}/t.{{part}}.pbin --ratio 8,2 --seed 3"),
    "index tokens": Verb("index {out}/t.pbin", ("t.pbin",)),
    "tokenize numbered": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to ds --max-file-size {size}"),
    "merge numbered": Verb("merge {src}/t.ds {src}/t.ds {out}/m.ds --max-file-size {size}"),
    "shuffle numbered": Verb("shuffle {src}/t.pbin {out}/s.pbin --seed 1 --max-file-size {size}"),
    "filter tokens": Verb("filter {src}/t.pbin {out}/f.pbin --min-length 10"),
    "report": Verb("report {src}/tars -o {out}/report.html"),
    "dolma tokens": Verb(
        "dolma tokens --documents {src}/documents/*.gz --destination {out}/tokens --tokenizer.name_or_path {tok}"
        " --tokenizer.eos_token_id 0 --dtype uint16"
    ),
}
RECORDS = ("feedmill.shards.json", ".feedmill.json", "/.feedmill/")
"""Parts of the names of records with versions of files, which a store gives."""
RANDOM = ("feedmill.members", "feedmill.offsets", "index.uuid")
"""With a number that each index gets anew."""
MINUTE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
"""When a report was written."""
LINEAGE = ".feedmill.lineage"
"""It names the inputs by paths relative to the output, and by absolute ones in another store."""
TIME = b"media_filters"
"""In a database with the time at which it was made."""


def make(folder: Path, size: int) -> None:
    """Inputs of all verbs, of some `size` bytes a sample."""
    order = random.Random(0)
    words = [f"w{number}" for number in range(2000)]

    def text(characters: int) -> str:
        return " ".join(order.choices(words, k=max(12, characters // 5)))

    for name, count in (("tars", 40), ("more", 10)):
        samples = [
            {"__key__": f"{name}{i:03}", "json": {"text": f"t {i}"}, "bin": order.randbytes(size)} for i in range(count)
        ]
        fm.write(str(folder / name), samples, progress=False)
    (folder / "plain").mkdir()
    for shard in (folder / "tars").rglob("*.tar"):
        (folder / "plain" / shard.name).write_bytes(shard.read_bytes())
    (folder / "documents").mkdir()
    for number in range(3):
        with gzip.GzipFile(folder / f"documents/d{number}.jsonl.gz", "wb", mtime=0) as file:
            for i in range(30):
                row = {"id": f"{number}-{i}", "text": text(size) if i % 5 else "the same text " * 9, "source": "x"}
                file.write(json.dumps(row).encode() + b"\n")
    rows = [json.dumps({"id": str(i), "text": text(size)}) for i in range(60)]
    (folder / "x.jsonl").write_text("\n".join(rows) + "\n")
    words = ["tokenize", f"{folder}/x.jsonl", "-o", f"{folder}/t", "-t", str(tokenizer_file("tok1k"))]
    done = CliRunner().invoke(app, [*words, "--to", "pbin,megatron,ds"])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make(folder, 300)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEEDMILL_UPLOAD_PART_MIB", "5")
    return tmp_path / "cache"


def words_of(verb: Verb, source: Path, place: str) -> list[str]:
    tokenizer = str(tokenizer_file("tok1k"))
    size = (source / "t.ds").stat().st_size // 3
    return [word.format(src=source, out=place, tok=tokenizer, size=size) for word in verb.words.split()]


def put(place: str, source: Path, needs: tuple[str, ...]) -> None:
    store = open_store(place)
    for name in needs:
        path = source / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                store.write_bytes(str(file.relative_to(source)), file.read_bytes())


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
        found = boto3.client("s3").list_multipart_uploads(Bucket=self.url.removeprefix("s3://"))
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


def compare(found: dict[str, bytes], expected: dict[str, bytes], place: str, folder: str) -> None:
    assert sorted(found) == sorted(expected)
    for name, data in expected.items():
        if TIME in data:
            assert media(found[name]) == media(data)
        elif name.endswith(LINEAGE):
            assert origins(found[name]) == origins(data), name
        elif not any(part in f"/{name}" for part in (*RECORDS, *RANDOM)):
            assert MINUTE.sub(b"", found[name]) == MINUTE.sub(b"", data), name
        elif name.endswith(".json"):
            assert without_versions(found[name], place) == without_versions(data, folder), name


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
            name: value for name, value in row.items() if name not in ("version", "job", "uuid", "run", "fingerprint")
        },
    )


FEW = ["reshard", "tokenize"]
CASES = [(name, place) for place in PLACES for name in (VERBS if place in ("s3", "files") else FEW)]


@pytest.mark.parametrize(("name", "place"), CASES, indirect=["place"])
def test_the_bytes_are_those_of_a_disk(name: str, source: Path, tmp_path: Path, place: Place) -> None:
    verb, folder, url = VERBS[name], tmp_path / "out", f"{place.url}/deep/out"
    for target in (str(folder), url):
        put(target, source, verb.needs)
    before = local_tree(folder)
    for target in (str(folder), url):
        done = CliRunner().invoke(app, words_of(verb, source, target))
        assert done.exit_code == 0, done.output
    assert local_tree(folder).keys() - before.keys() or local_tree(folder) != before
    compare(place.tree("deep/out"), local_tree(folder), url, str(folder))


@pytest.mark.parametrize("words", ["delete {out}/tars tars003 --yes", "add-parts {out}/tars {src}/more"])
def test_what_changes_shards_in_place_is_refused(words: str, source: Path, s3_bucket: str, cache: Path) -> None:
    put(s3_bucket, source, ("tars",))
    before = Place(s3_bucket).tree("tars")
    done = CliRunner().invoke(app, words_of(Verb(words), source, s3_bucket))
    assert done.exit_code == 1 and "not supported in an object store" in " ".join(done.output.split())
    assert Place(s3_bucket).tree("tars") == before


_CHILD = """
import os, shutil, signal, sys
import obstore
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.local import LocalFileSystem
left = int(sys.argv[1])

def dying(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

class Dying:
    def __init__(self, writer):
        self._writer = writer
        self.write, self.close = dying(writer.write), dying(writer.close)

    def __getattr__(self, name):
        return getattr(self._writer, name)

open_writer = obstore.open_writer
obstore.open_writer = lambda *arguments, **options: Dying(open_writer(*arguments, **options))
obstore.put, obstore.delete = dying(obstore.put), dying(obstore.delete)

def halved(put):
    # Die in the middle of the file: half of it was sent.
    def call(fs, source, target, **options):
        if not left:
            with open(source, "rb") as whole, open(source + ".half", "wb") as half:
                half.write(whole.read(os.path.getsize(source) // 2))
            put(fs, source + ".half", target, **options)
        dying(put)(fs, source, target, **options)
    return call

for kind in (LocalFileSystem, FTPFileSystem):
    kind.put_file = halved(kind.put_file)
    for name in ("mv", "rm_file"):
        setattr(kind, name, dying(getattr(kind, name)))
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[2:]]
if __name__ == "__main__":
    main()
"""
THERE = (
    "the file already exists",
    "the file exists",
    "the index already exists",
    "a dataset already exists",
    "the key also occurs in an earlier shard",
)
CUT = ("mds", "tokenize", "merge jsonl")
"""Whose files are sent in parts: some of the kills are in the middle of an upload."""


def kill_and_finish(name: str, source: Path, place: Place, cache: Path, tmp_path: Path, kills: int) -> int:
    """Run a verb until it was killed so often, before any of its requests that write; return how often it was killed in
    the middle of an upload."""
    verb, folder, order = VERBS[name], tmp_path / name, random.Random(name)
    put(str(folder), source, verb.needs)
    done = CliRunner().invoke(app, words_of(verb, source, str(folder)))
    assert done.exit_code == 0, done.output
    expected = local_tree(folder)
    script = tmp_path / "child.py"
    script.write_text(_CHILD)
    killed = cut = 0
    while killed < kills:
        folder_of_run = str(killed)
        url = f"{place.url}/{folder_of_run}"
        put(url, source, verb.needs)
        at, code = order.randint(0, 3), -signal.SIGKILL
        while code:
            command = [sys.executable, str(script), str(at), *words_of(verb, source, url)]
            child = subprocess.run(command, capture_output=True, text=True, timeout=120)
            code = child.returncode
            if code == 1 and any(words in child.stderr for words in THERE):
                code = 0  # it was killed when all was done, and the lock was about to be removed
            assert code in (0, -signal.SIGKILL), child.stderr
            killed, at = killed + (code != 0), at + at // 8 + order.randint(0, 3)
            cut += code != 0 and bool(place.unfinished())
        compare(place.tree(folder_of_run), expected, url, str(folder))
        assert not place.unfinished()
        assert not list(cache.glob("uploads/*"))
        assert not [path for path in cache.glob("work-*/**/*") if path.is_file()]
    return cut


@pytest.mark.parametrize("place", ["s3", "files"], indirect=True)
@pytest.mark.parametrize("name", FEW)
def test_killed_it_is_finished_by_the_same_command(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path
) -> None:
    kill_and_finish(name, source, place, cache, tmp_path, 3)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs whose outputs are uploaded in parts."""
    folder = tmp_path_factory.mktemp("large")
    make(folder, 300_000)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", [name for name in VERBS if name != "report"])  # writes one object, by one request
def test_killed_twenty_times(name: str, large: Path, place: Place, cache: Path, tmp_path: Path) -> None:
    cut = kill_and_finish(name, large, place, cache, tmp_path, 20)
    print(f"{name}: killed {cut} times in the middle of an upload")
    assert cut or name not in CUT or place.url.startswith(("gs://", "az://"))
