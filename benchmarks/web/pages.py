"""Measure the pages of ``feedmill serve``: server time, the memory of the server, and ten clients at once.

The data is a JSONL file of 1,000,000 samples, a recipe of 1,000 sources, and 20,000 documents with attributes. Two
times are measured for each page: the processor time of the server, which other programs do not change, and the
time until the answer is complete. Ten clients ask for the next page as soon as they have one, and ten others look at
each page for a second, which is still quicker than people are.

    python -m benchmarks.web.pages [--pages 1000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import feedmill as fm
from benchmarks.lib import corpus
from feedmill.demo.corpus import train_tokenizer
from feedmill.storage import open_store

SAMPLES, SOURCES, DOCUMENTS, CLIENTS = 1_000_000, 1000, 20_000, 10
_SERVE = "import sys; from feedmill.web.serve import serve; serve(sys.argv[1:], port=0, token=False)"
_TICKS = os.sysconf("SC_CLK_TCK")

Page = Callable[[random.Random], str]
"""Function that returns an address."""

PAGES: dict[str, tuple[int, Page]] = {
    "samples": (30, lambda draw: f"/big.jsonl/samples?page={draw.randrange(1, 10_000)}"),
    "a sample": (10, lambda draw: f"/big.jsonl/samples?at={draw.randrange(SAMPLES)}"),
    "samples, filtered": (10, lambda draw: f"/big.jsonl/samples?f.bytes={draw.randrange(50, 150)}:&page=2"),
    "samples, sorted": (5, lambda draw: f"/big.jsonl/samples?sort=-bytes&page={draw.randrange(1, 50)}"),
    "step": (25, lambda draw: f"/mix.yaml/step?step={draw.randrange(60_000)}&batch=16&world=4"),
    "mixture": (5, lambda draw: "/mix.yaml/mixture"),  # noqa: ARG005
    "mixture, changed": (2, lambda draw: f"/mix.yaml/mixture?w.{draw.randrange(SOURCES)}={draw.randrange(1, 9)}"),
    "filters": (5, lambda draw: f"/documents/filters?min.score={draw.random():.3f}"),
    "tokens": (2, lambda draw: f"/ids.pbin/tokens?at={draw.randrange(1000)}"),
    "token samples": (3, lambda draw: f"/ids.pbin/samples?page={draw.randrange(1, 100)}"),
    "home": (3, lambda draw: "/"),  # noqa: ARG005
}
"""Name -> how often it is drawn, and the address."""


def make(folder: Path) -> list[str]:
    """Write the data, and return what is opened."""
    big, recipe, documents, ids = folder / "big.jsonl", folder / "mix.yaml", folder / "documents", folder / "ids.pbin"
    if not ids.exists():
        words = "word " * 40
        lines = (f'{{"id":"d{n:07}","n":{n},"text":"{words[: 5 * (1 + n % 40)]}"}}\n' for n in range(SAMPLES))
        big.write_text("".join(lines))
        fm.prepare(big, progress=False)
        rows = []
        for number in range(SOURCES):
            path = folder / f"s/{number}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f'{{"text":"s{number} {n}"}}\n' for n in range(1000)))
            fm.prepare(path, progress=False)
            rows.append(f"  - {{path: s/{number}.jsonl, weight: {1 + number % 7}, name: s{number}}}")
        recipe.write_text("\n".join(["seed: 1", "samples: 1000000", "blend:", *rows, ""]))
        draw = random.Random(1)
        attributes = folder / "attributes/quality"
        for place in (documents, attributes):
            place.mkdir(parents=True, exist_ok=True)
        texts = [
            {"id": f"p{n}", "text": f"document {n} " * draw.randrange(5, 80), "source": f"w{n % 5}"}
            for n in range(DOCUMENTS)
        ]
        scores = [{"id": one["id"], "attributes": {"score": [[0, len(one["text"]), draw.random()]]}} for one in texts]
        for path, values in ((documents / "a.jsonl", texts), (attributes / "a.jsonl", scores)):
            path.write_text("".join(json.dumps(value) + "\n" for value in values))
        train_tokenizer(open_store(str(folder / "tokenizer")), (str(one["text"]) for one in texts[:1000]), 1024)
        tokenizer = str(folder / "tokenizer/tokenizer.json")
        fm.tokenize([documents / "a.jsonl"], folder / "ids", tokenizer=tokenizer, progress=False)
    return [str(path) for path in (big, recipe, documents, ids)]


class Server:
    """A running ``feedmill serve``."""

    def __init__(self, paths: list[str]) -> None:
        command = [sys.executable, "-c", _SERVE, *paths]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = re.search(r":(\d+)/", self.process.stdout.readline())
        if address is None:
            raise SystemExit("the server did not start")
        self.port = int(address[1])

    @property
    def processor(self) -> float:
        """Seconds of processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / _TICKS

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def get(self, connection: http.client.HTTPConnection, address: str) -> float:
        """Return the seconds until a page is complete."""
        begin = time.perf_counter()
        connection.request("GET", address)
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{address}: {answer.status}\n{data[:2000].decode()}")
        return time.perf_counter() - begin

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)


@contextmanager
def serving(paths: list[str]) -> Iterator[Server]:
    """Yield a server that ends with the block."""
    server = Server(paths)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def each_page(server: Server, count: int) -> None:
    """Print the times of each kind of page, for one client."""
    connection, draw = server.connect(), random.Random(2)
    for name, (_, page) in PAGES.items():
        server.get(connection, page(draw))  # what is read once
        before, taken = server.processor, []
        for _ in range(count):
            taken.append(server.get(connection, page(draw)))
        processor = 1000 * (server.processor - before) / count
        p50, p95 = np.percentile(np.array(taken) * 1000, [50, 95])
        print(f"{name:18} {processor:7.1f} ms processor   p50 {p50:6.1f}  p95 {p95:6.1f} ms", flush=True)


def clients(server: Server, pages: int, several: int, look: float = 0.0) -> None:
    """Print the times of mixed pages for some clients at once, and the memory of the server before and after.

    A client looks at a page for `look` seconds on average before it asks for the next one.
    """
    names = random.Random(3).choices(list(PAGES), [often for often, _ in PAGES.values()], k=pages)
    taken: list[list[float]] = [[] for _ in range(several)]

    def run(number: int) -> None:
        connection, draw = server.connect(), random.Random(number)
        for name in names[number::several]:
            taken[number].append(server.get(connection, PAGES[name][1](draw)))
            time.sleep(2 * look * draw.random())

    memory, processor, begin = server.memory, server.processor, time.perf_counter()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(several)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    p50, p95, p99 = np.percentile(np.concatenate([np.array(one) for one in taken]) * 1000, [50, 95, 99])
    print(
        f"{several:2} clients that look for {look:g} s, {pages:,} pages:"
        f" {1000 * (server.processor - processor) / pages:.1f} ms processor each,"
        f" p50 {p50:.1f}  p95 {p95:.1f}  p99 {p99:.1f} ms, {pages / seconds:.0f} pages/s,"
        f" memory {memory >> 20} -> {server.memory >> 20} MiB",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1000, help="mixed pages for one client, and for ten")
    parser.add_argument("--folder", type=Path, default=corpus.folder() / "web", help="where the data is")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with serving(make(options.folder)) as server:
        each_page(server, 40)
        clients(server, options.pages, 1)
        clients(server, options.pages, CLIENTS)
        clients(server, min(options.pages, 1000), CLIENTS, look=1.0)


if __name__ == "__main__":
    main()
