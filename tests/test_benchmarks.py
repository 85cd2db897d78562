"""Benchmarks are not run by the tests, but what they import from Feedmill has to be there, and the list of parts.

The server of `benchmarks/object_store` is run if nginx is installed: what it counts is compared with the requests.
"""

from __future__ import annotations

import ast
import re
import socket
import time
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_a_benchmark_imports_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("feedmill"):
            module = import_module(node.module or "")
            for alias in node.names:
                found = hasattr(module, alias.name)
                assert found or import_module(f"{node.module}.{alias.name}"), f"line {node.lineno}: {alias.name}"


def test_parts_have_names_of_their_own_and_are_in_the_guide(benchmarks: Any) -> None:
    suites = benchmarks("run").suites()
    parts = [name for suite in suites for name in suite.PARTS]
    assert sorted(parts) == sorted(set(parts))
    assert {"bucket-samples", "bucket-first", "bucket-processes"} <= set(parts)
    guide = (ROOT / "benchmarks/README.md").read_text()
    assert [name for name in parts if f"`{name}`" not in guide] == []


def test_peers_of_all_suites_are_in_the_table(benchmarks: Any) -> None:
    table = benchmarks("peers").table()
    wanted = {peer for suite in benchmarks("run").suites() for peer in suite.PEERS}
    assert wanted <= set(table)
    sides = benchmarks("object_store.sides")
    assert {peer.python for peer in sides.PEERS.values()} <= set(table)
    packages = {re.split(r"[=\[<]", line)[0] for peer in table.values() for line in peer["requirements"]}
    assert {"s3torchconnector", "multi-storage-client", "litdata", "mosaicml-streaming"} <= packages


def test_sides_take_turns_in_both_orders(benchmarks: Any) -> None:
    taken: list[str] = []

    def side(name: str) -> Any:
        return lambda: taken.append(name) or {"s": len(taken)}

    found = benchmarks("lib.measure").rounds(3, {name: side(name) for name in "abc"})
    assert "".join(taken) == "abccbaabc"
    assert found["a"] == {"s": [1, 6, 7]}


def test_a_hanging_peer_is_killed_with_its_processes(benchmarks: Any, tmp_path: Path) -> None:
    measure = benchmarks("lib.measure")
    program = tmp_path / "python"  # started as `python -m MODULE ARGUMENT`
    program.write_text("#!/bin/sh\nsleep 60 & echo $! > $3; wait\n")
    program.chmod(0o755)
    with pytest.raises(measure.Failed, match="hung"):
        measure.child(str(program), "nothing", tmp_path / "pid", timeout=2.0)
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 120
    while _runs(stat) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(stat)


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_bytes_sent_twice_are_counted_by_their_ranges(benchmarks: Any) -> None:
    traffic = benchmarks("object_store.server").Traffic()
    for line in (
        "GET 206 100 bytes=0-99 /bkt/a b",
        "GET 206 100 bytes=50-149 /bkt/a b",
        "GET 200 150 - /bkt/a b",
        "GET 200 70 - /__list",
        "HEAD 404 0 - /bkt/c",
    ):
        traffic.add(line)
    assert (traffic.requests, traffic.heads, traffic.errors, traffic.bytes) == (5, 1, 1, 420)
    assert traffic.again == 200


def test_the_server_answers_counts_waits_and_ends(benchmarks: Any, tmp_path: Path) -> None:
    server = benchmarks("object_store.server")
    if server.missing():
        pytest.skip(server.missing())
    folder = tmp_path / "root" / server.BUCKET / "some"
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes(range(200)))
    running = server.Server(tmp_path / "root", tmp_path / "run")
    try:
        mark = running.mark()
        address = f"{running.endpoint(20)}/{server.BUCKET}"
        asked = urllib.request.Request(f"{address}/some/a.bin", headers={"Range": "bytes=10-19"})
        begin = time.perf_counter()
        assert _body(asked) == bytes(range(10, 20))
        assert time.perf_counter() - begin > 0.019
        assert b"<Key>some/a.bin</Key><Size>200</Size>" in _body(f"{address}/?list-type=2&prefix=some/")
        assert b"<CommonPrefixes><Prefix>some/</Prefix>" in _body(f"{address}?list-type=2&delimiter=/")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _body(f"{address}/some")
        traffic = running.since(mark)
        assert (traffic.requests, traffic.errors) == (4, 1)
        assert traffic.objects == {"/bkt/some/a.bin": [(10, 20)]}
    finally:
        running.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", running.ports[0]), 1)


def _body(request: Any) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as answer:
        body: bytes = answer.read()
    return body


SCALE = {
    "plans blend SIZE round": {"locate_row_us", "occurrence_us", "state_bytes", "resume", "peak_mb"},
    "plans blend SIZE odd": {"locate_far_us"},
    "plans packing SIZE": {"best_fit", "concat_again", "best_fit_bytes"},
    "plans costs SIZE": {"deal"},
    "shards opened SIZE": {"open", "first_batch", "describe", "shards_open"},
    "shards listed SIZE 0": {"local", "requests"},
    "shards remote SIZE 0": {"first_batch_get", "later_batches_bytes"},
    "shards prepared SIZE": {"prepare", "again", "check"},
    "shards rows 1000": {"sqlite_bytes", "members"},
    "drivers units SIZE": {"here_us", "part", "finish"},
    "drivers journal SIZE": {"add", "read", "bytes"},
    "drivers tagged SIZE": {"tag", "again"},
    "drivers deduped SIZE": {"dedupe", "neardedupe"},
    "drivers pipeline SIZE": {"run", "again", "manifest_bytes"},
}


@pytest.mark.parametrize("words", SCALE)
def test_the_simulation_of_the_full_size_runs_at_a_small_part_of_it(
    benchmarks: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDMILL_BENCH_DIR", str(tmp_path))
    data, plans, suite = benchmarks("scale.data"), benchmarks("scale.peers.plans"), benchmarks("scale.suite")
    monkeypatch.setattr(data, "SAMPLES", 1000)
    monkeypatch.setattr(data, "BYTES", 1000)
    monkeypatch.setattr(plans, "RANKS", 64)
    monkeypatch.setattr(plans, "ROW", 10_000)
    monkeypatch.setattr(benchmarks("scale.peers.shards"), "RANKS", 8)
    known = [words for part in suite.MEASURES.values() for words in part]
    module, function, *arguments = words.split()
    assert (module, function) in {(name, what) for name, what, *_ in known}
    given = ["0.0001" if word == "SIZE" else word for word in arguments]
    found = getattr(benchmarks(f"scale.peers.{module}"), function)(*given)
    assert SCALE[words] <= set(found)
    assert all(value >= 0 for name, value in found.items() if not name.endswith("mb"))
    assert {suite.unit_of(name) for name in found} <= {"s", "us", "MB", "bytes", ""}


def test_the_store_of_the_simulation_lists_in_pages_and_answers_ranges(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedmill.storage import open_store

    store = benchmarks("scale.store")
    (tmp_path / "a").mkdir()
    for number in range(25):
        (tmp_path / "a" / f"{number:02d}.bin").write_bytes(bytes(range(number)))
    (tmp_path / "b.bin").write_bytes(b"b")
    monkeypatch.setattr(store, "PAGE", 10)
    with store.fake_store(tmp_path, 0) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        seen = open_store("s3://bkt")
        assert [entry.path for entry in seen.files()] == sorted(str(p.relative_to(tmp_path)) for p in _files(tmp_path))
        assert server.counts["list"] == 3
        assert [entry.size for entry in seen.files("a")] == list(range(25))
        assert seen.read("a/20.bin", 5, 4) == bytes([5, 6, 7, 8])
        assert not seen.exists("a/99.bin")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
