"""The verbs that run on engines, on small data: for the contract of engines and the tests that kill them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import NotFound
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import Entry, LocalStore, Store, open_store
from helpers import warm
from helpers.document_folders import texts, write_documents, write_lines
from helpers.kills import command, contents, finish
from helpers.stores import s3_client
from helpers.tars import write_tar
from helpers.tokenizer_data import tokenizer_file
from helpers.vision_models import picture as picture_of
from helpers.web_archives import archive, pages

FILES = 6
SKIP = ["--on-error", "skip"]  # some texts are empty
AGAIN = ["--overwrite"]  # a command that was killed too late writes its files again
TOKENIZER = str(tokenizer_file("tok1k"))
MODELS = Path(__file__).parents[1] / "golden/models"
STREAM = {
    "name": "web",
    "documents": ["documents/*"],
    "attributes": ["quality"],
    "filter": {"include": ["$.attributes[?(@.good[0][2] >= 0.4)]"]},
    "output": {"path": "kept", "max_size_in_bytes": 2000},
}
VERBS: dict[str, list[str]] = {
    "tokenize": ["tokenize", "documents", "-o", "tokens", "-t", TOKENIZER, "--to", "pbin,ds", *SKIP],
    "tokenize-dolma": ["tokenize", "documents", "-o", "mixed", "-t", TOKENIZER, "--to", "dolma", *SKIP],
    "tokenize-numbered": [
        *("tokenize", "documents", "-o", "numbered/web", "-t", TOKENIZER, "--to", "pbin,dolma", *SKIP),
        *("--max-file-size", "15kB"),
    ],
    "extract": ["documents", "extract", "crawl", "-o", "web", "-t", "char_length_v1"],
    "tag": ["tag", "documents", "-t", "char_length_v1", "-t", "gopher_v1"],
    "filter": ["filter", "filter.json"],
    "dedupe": ["dedupe", "documents", "--by", "paragraphs"],
    "dedupe-documents": ["dedupe", "documents"],
    "dedupe-substrings": ["dedupe", "documents", "--by", "substrings", "--length", "6", "-t", TOKENIZER],
    "dedupe-bloom": ["dedupe", "documents", "--by", "ngrams", "--ngram", "3", "--bloom", "seen.bin", "--items", "9000"],
    "cells": ["mixture", "cells", "cut", "--by", "good", "--by", "{column: tokens, quantiles: 3}"],
    "decontaminate": ["documents", "decontaminate", "documents", "--against", "documents"],
    "embed": ["documents", "embed", "documents", "--model", str(MODELS / "static")],
    "embed-images": ["documents", "embed", "photos", "--model", str(MODELS / "vision"), *SKIP],
    "neardedupe": ["dedupe", "--near", "documents", "--ngram", "3", "--threshold", "0.6"],
    "neardedupe-embeddings": ["dedupe", "--near", "documents", "--by", "embeddings", "--embeddings", "meaning"],
    "prepare": ["prepare", "tars", "--non-interactive", "--split-ratio", "8,1,1", "--sample-type", "CrudeWebdataset"],
    "prepare-media": ["edit", "prepare-media", "pictures", "--media-metadata-by-extension"],
    "reshard": ["edit", "reshard", "tars", "resharded", "--max-shard-samples", "15", "--shuffle", "3"],
    "convert": ["convert", "rows.jsonl", "shards", "--to", "mds", "--max-shard-samples", "20"],
    "convert-file": ["convert", "rows.jsonl", "rows.parquet", "--to", "parquet", "--max-shard-samples", "20"],
    "prepare-lines": ["prepare", "rows.jsonl", "--split-ratio", "8,1,1"],
    "index": ["tokens", "index", "rows.jsonl", *AGAIN],
    "index-tokens": ["tokens", "index", "ids/a.pbin"],
    "merge": ["tokens", "merge", "ids", "merged/m.ds", "--max-file-size", "6kB", *AGAIN],
    "merge-one": ["tokens", "merge", "ids", "merged/m.bin", *AGAIN],
    "merge-datatrove": [
        *(
            "tokens",
            "merge",
            "ids",
            "merged/m.pbin",
            "--order",
            "datatrove",
            "--seed",
            "3",
            "--max-file-size",
            "6kB",
            *AGAIN,
        ),
    ],
    "shuffle": ["tokens", "shuffle", "ids", "shuffled/s.pbin", "--seed", "3", "--max-file-size", "6kB", *AGAIN],
    "shuffle-lines": [
        "tokens",
        "shuffle",
        "rows.jsonl",
        "shuffled/s.jsonl",
        "--seed",
        "3",
        "--max-file-size",
        "6kB",
        *AGAIN,
    ],
    "shuffle-chunks": [
        *("tokens", "shuffle", "ids", "shuffled/{part}_s.ds", "--seed", "3", "--max-tokens-per-file", "3000"),
        *("--chunk", "40", "--documents-too", *AGAIN),
    ],
    "split": ["tokens", "split", "ids", "parts/{part}.pbin", "--ratio", "8,1,1", "--seed", "3", *AGAIN],
    "filter-tokens": ["filter", "ids", "long.pbin", "--min-length", "30", *AGAIN],
}
"""The command line of each, for `make` as the working directory; options of an engine are appended."""

MORE = (
    *(
        "embed",
        "neardedupe-embeddings",
        "tokenize-dolma",
        "dedupe-documents",
        "dedupe-substrings",
        "convert-file",
        "prepare-lines",
        "index-tokens",
        "merge-one",
    ),
    *("merge-datatrove", "shuffle-lines", "shuffle-chunks", "split", "filter-tokens"),
)
"""Verbs that are much like another one."""
AT_ONCE = {
    *(
        "extract",
        "tag",
        "filter",
        "dedupe",
        "dedupe-documents",
        "dedupe-substrings",
        "embed",
        "embed-images",
        "neardedupe",
        "neardedupe-embeddings",
        "index-tokens",
        "merge-one",
    ),
    *("merge-datatrove", "shuffle", "shuffle-lines", "shuffle-chunks", "split", "filter-tokens"),
}
"""Verbs whose units give their outputs their final names."""


FAILING = [*("tag", "documents", "-m", str(Path(__file__).with_name("failing_tagger.py"))), "-t", "failing"]
"""A command whose units fail as its module says, which notes what it tags."""


def tagged(folder: Path) -> set[str]:
    """Return the numbers of the files of which `FAILING` has tagged documents since the last call."""
    path = folder / "tagged"
    found = {line.split()[0] for line in path.read_text().splitlines()}
    path.unlink()
    return found


def run_with_failing(failing: dict[int, str], words: list[str], folder: Path) -> str:
    """Run a command whose units fail thus, to its end; return what it prints. None fails once this has returned.

    It ends with status 3, and names the units and itself as the command that runs only these again.
    """
    (folder / "failing").write_text("".join(f"{file} {how}\n" for file, how in failing.items()))
    done = warm.run(command(*words), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stdout + done.stderr
    listed = re.findall(r"^  documents/part-(\d+)\S*: (.*)", done.stdout, re.MULTILINE)
    assert sorted(int(file) for file, _ in listed) == sorted(failing), done.stdout
    assert done.stdout.rstrip().endswith(f"To run only these again:\n  {shlex.join(['feedmill', *words])}")
    (folder / "failing").unlink()
    return done.stdout + done.stderr


def make(root: Path, scale: int = 1) -> None:
    """Documents with duplicates and near-duplicates in files of different sizes, attributes, and rows to convert."""
    groups = [texts(scale * (30 + 20 * n), seed=n % 4) for n in range(FILES)]
    write_documents(root, *groups)
    for n, members in enumerate(groups):
        rows: list[Any] = [
            {"id": f"{n}-{m}", "attributes": {"good": [[0, len(text), m % 7 / 6]]}} for m, text in enumerate(members)
        ]
        write_lines(root / f"attributes/quality/part-{n}.jsonl.gz", [json.dumps(row) for row in rows])
    write_lines(root / "rows.jsonl", [json.dumps({"n": n, "text": text}) for n, text in enumerate(texts(230 * scale))])
    for shard in range(7):
        files = [(f"{shard}-{n}.txt", b"word " * (n + 1) * scale) for n in range(10 + 3 * shard)]
        write_tar(root / f"tars/shard-{shard}.tar", files)
    numbers = np.random.default_rng(7)
    for name, count in (("a", 200), ("b", 40), ("c", 300)):
        lengths = numbers.integers(0, 60 * scale, count)
        with write_pbin(LocalStore(root / "ids"), f"{name}.pbin", 2) as writer:
            writer.add(numbers.integers(0, 1 << 16, int(lengths.sum()), np.uint16), lengths)
    for n in range(5):
        archive(root / f"crawl/{n}.warc.gz", pages(scale * (4 + 3 * n), f"s{n}"))
    for n in range(9):
        picture = io.BytesIO()
        Image.new("RGB", (8 + n, 9), (n, 0, 0)).save(picture, "PNG")
        (root / "pictures").mkdir(exist_ok=True)
        (root / f"pictures/{n}.png").write_bytes(picture.getvalue())
    for shard in range(4):
        numbered = range(scale * (5 + 2 * shard))
        photos = [(f"{shard}-{n}.jpg", picture_of(30 + n % 9, 40, seed=1000 * shard + n)) for n in numbered]
        write_tar(root / f"photos/{shard}.tar", [*photos, (f"{shard}-broken.jpg", b"no image")])
    source, told = [str(root / "documents")], {"workers": 1, "progress": False}
    fm.tokenize(source, str(root / "cut/x"), tokenizer=TOKENIZER, formats=("ds",), on_error="skip", **told)
    fm.documents.embed(source, model=str(MODELS / "static"), name="meaning", **told)
    (root / "filter.json").write_text(json.dumps({"streams": [STREAM]}))


SOME = [pytest.param(verb, marks=pytest.mark.slow) if verb in MORE else verb for verb in VERBS]
"""Parameters: all verbs, some only in slow runs."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "in"
    make(folder)
    return folder


def outputs(folder: Path) -> dict[str, bytes]:
    """What a verb wrote. The manifests of token files have the paths of the inputs; a uuid is random."""
    mine = (".feedmill.json", "index.uuid")
    found = {name: data for name, data in contents(folder).items() if not name.endswith(mine)}
    for hidden in (".feedmill/**/*.lineage", ".feedmill-cells/*.cells"):
        found |= {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob(hidden)}
    media = "pictures/.nv-meta/index.sqlite"  # has the time at which it was made
    if media in found:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(found[media])
            found[media] = "".join(line for line in database.iterdump() if "media_filters" not in line).encode()
    return found


def are_equal(verb: str, there: Path, folder: Path, wanted: dict[str, bytes]) -> bool:
    """Whether outputs of a bucket, downloaded to `there`, are those of one machine; a Bloom filter is in `folder`."""
    found = outputs(there)
    if verb == "dedupe-bloom":
        found["seen.bin"] = (folder / "seen.bin").read_bytes()
    if verb == "tokenize-dolma":  # groups are mixed by the names of the documents
        return found.keys() == wanted.keys()
    named = ".csv.gz" if verb == "tokenize-numbered" else "\0"  # the rows have the paths of the documents
    return found.keys() == wanted.keys() and all(found[name] == wanted[name] for name in found if named not in name)


@pytest.fixture(scope="session")
def alone(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each verb writes on this machine; run once for all tests."""
    known: dict[str, dict[str, bytes]] = {}

    def of(verb: str) -> dict[str, bytes]:
        if verb not in known:
            folder = tmp_path_factory.mktemp("alone") / "in"
            shutil.copytree(inputs, folder)
            finish(VERBS[verb], folder)
            known[verb] = outputs(folder)
        return known[verb]

    return of


def copied(inputs: Path, folder: Path) -> Path:
    shutil.copytree(inputs, folder / "in")
    return folder / "in"


def unfinished_work(folder: Path) -> list[str]:
    """Temporary files, work folders and marks of parts that are left."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [n for n in names if "feedmill-work" in n or "/parts" in n or n.endswith("-tmp") or "node-check" in n]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return warm.Popen(
        command(*words),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


PLACES = {
    *("documents", "tokens", "mixed", "rows.jsonl", "rows.parquet", "shards", "tars", "resharded", "pictures"),
    *("numbered/web", "ids", "merged/m.ds", "merged/m.bin", "merged/m.pbin", "shuffled/s.pbin", "shuffled/s.jsonl"),
    *("shuffled/{part}_s.ds", "parts/{part}.pbin", "long.pbin", "ids/a.pbin", "crawl", "web", "cut", "photos"),
}


def in_bucket(words: list[str], url: str) -> list[str]:
    """The command line with its folders in a bucket."""
    return [words[0], *(f"{url}/{word}" if word in PLACES else word for word in words[1:])]


def filter_in_bucket(folder: Path, url: str) -> None:
    """Write the configuration of ``filter`` for documents and outputs in a bucket."""
    stream = {**STREAM, "documents": [f"{url}/documents/*"], "output": {**STREAM["output"], "path": f"{url}/kept"}}
    (folder / "filter.json").write_text(json.dumps({"streams": [stream]}))


def upload(root: Path, url: str) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            open_store(url).write_bytes(name, path.read_bytes())


def objects(url: str) -> dict[str, bytes]:
    """What is below a URL but for records, manifests and rows of Dolma's tokens, with times and URLs in them."""
    store = open_store(url)
    found = {entry.path: store.read(entry.path) for entry in [*store.files(), *hidden(store)]}
    mine = (".feedmill.json", "index.uuid", "feedmill.shards.json", ".csv.gz")
    return {name: data for name, data in found.items() if not name.endswith(mine)}


def download(url: str, folder: Path) -> Path:
    """Write every object below a URL, hidden ones too, to a folder."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = s3_client(os.environ["AWS_ENDPOINT_URL"])
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for found in page.get("Contents", []):
            path = folder / found["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=found["Key"])["Body"].read())
    return folder


def locks(folder: Path) -> list[str]:
    """Locks in a folder that was downloaded."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in names if re.search(r"\.feedmill/(lock|begin|parts)(-|/|$)", name)]


def copies(cache: Path) -> list[str]:
    """What a cache folder has, but for locks and records of this machine, and what was computed of tokenizers."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.parent.name not in ("claims", "tokenizers"))
    return [str(path) for path in files if path.name not in ("owner", "owner.lock", "used")]


def hidden(store: Store) -> list[Entry]:
    found: list[Entry] = []
    for folder in ("tars/.nv-meta", "cut/.feedmill-cells"):
        with contextlib.suppress(NotFound):
            found += store.files(folder)
    return found
