"""Suite of engines: the same job on processes of this machine and on a Ray cluster of two nodes on it.

FEEDMILL_BENCH_CORPUS   a program that writes a JSONL corpus; see `benchmarks.tokens.tokenizing`
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, alternate, feedmill, run
from benchmarks.tokens import tokenizing

PEERS = ()
FILES, COPIES = 16, 5
TAGGERS = ("gopher_v2", "pii_regex_with_counts_fast_v2", "c4_v2")


def documents() -> Path:
    """Return a folder with 80 files of documents, 2.5 GB; created once. Copies are links."""
    folder = corpus.folder() / "engines"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "documents").mkdir(parents=True)
        lines = tokenizing.text(tokenizing.LARGE).read_bytes().splitlines()
        for number in range(FILES):
            first = folder / f"documents/0-{number:02d}.jsonl"
            rows = ({**orjson.loads(line), "id": f"{number}-{n}"} for n, line in enumerate(lines[number::FILES]))
            first.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            for copy in range(1, COPIES):
                (folder / f"documents/{copy}-{number:02d}.jsonl").hardlink_to(first)
        (folder / "done").touch()
    corpus.warm(folder)
    return folder


@contextmanager
def cluster() -> Iterator[str]:
    """Start a cluster for the block; yield its address."""
    words = [sys.executable, "-m", "benchmarks.engines.cluster"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        address = next((line.strip() for line in process.stdout if line[:1].isdigit()), "")
        if not address:
            raise Failed("the Ray cluster did not start; is feedmill[ray] installed?")
        try:
            yield address
        finally:
            process.stdin.close()


def tag(repeat: int) -> list[Row]:
    """Measure the whole command: with two processes, and on the cluster, which is running."""
    folder = documents()
    chosen = [word for name in TAGGERS for word in ("-t", name)]

    def measured(*words: str) -> dict[str, float]:
        shutil.rmtree(folder / "attributes", ignore_errors=True)
        return run(feedmill("tag", folder / "documents", *chosen, "--progress", "none", *words))

    with cluster() as address:
        on_ray = ("--engine", "ray", "--address", address)
        measured(*on_ray)  # not counted: starts the workers
        mine, other = alternate(repeat, lambda: measured(*on_ray), lambda: measured("--workers", "2"))
    return [
        Row("engine-ray", "tag 2.5 GB on Ray, 2 nodes; beside: 2 processes", "s", mine["s"], other["s"], wanted=0.87)
    ]


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {"engine-ray": tag}
