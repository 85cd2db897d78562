"""The contract of engines on a Ray cluster of two nodes: the bytes of one machine, and what is lost runs again."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, FeedmillError, StorageError
from feedmill.jobs import ray_engine
from feedmill.jobs.engine import StageUnfinished, Where, without_engine
from feedmill.jobs.events import units_of
from feedmill.jobs.parts import PartEngine
from feedmill.jobs.progress import Progress
from feedmill.jobs.ray_engine import RayEngine
from feedmill.jobs.run import run
from feedmill.storage import LocalStore
from helpers import pipeline
from helpers import worker_functions as working
from helpers.document_folders import texts, write_documents
from helpers.engine_verbs import (
    MORE,
    VERBS,
    are_equal,
    copied,
    copies,
    download,
    filter_in_bucket,
    in_bucket,
    locks,
    outputs,
    unfinished_work,
    upload,
)
from helpers.kills import command, finish
from helpers.near_copies import covered, make_shapes, read_attributes
from helpers.ray_cluster import RAY_MISSING, SECRET


def call(words: list[str]) -> None:
    """Run a command in this process."""
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        assert not app(words, prog_name="feedmill", standalone_mode=False)


ELSEWHERE = {"tokenize", "tag", "filter", "dedupe", "merge", "neardedupe", "decontaminate", "prepare-media"}
"""Verbs that a pipeline below runs on the cluster, one whose data are in a bucket, two with stages as of others."""
PARAMETERS = [pytest.param(verb, marks=pytest.mark.slow) if verb in {*MORE, *ELSEWHERE} else verb for verb in VERBS]


@pytest.mark.parametrize("verb", PARAMETERS)
def test_ray(verb: str, engine: Any, inputs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(inputs, tmp_path)
    monkeypatch.chdir(folder)
    call(VERBS[verb])
    assert outputs(folder) == alone(verb)
    assert not unfinished_work(folder)


@pytest.mark.parametrize("verb", [v if v == "neardedupe" else pytest.param(v, marks=pytest.mark.slow) for v in VERBS])
def test_a_bucket_without_a_shared_folder(
    verb: str,
    connection: str,
    inputs: Path,
    alone: Any,
    s3_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes have home folders of their own, and with them cache folders."""
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    place = f"{s3_bucket}/ray"
    upload(inputs, place)
    filter_in_bucket(tmp_path, place)
    monkeypatch.chdir(tmp_path)
    call([*in_bucket(VERBS[verb], place), "--engine", "ray", "--address", connection])
    there = download(place, tmp_path / "there")
    assert not unfinished_work(there) and not locks(there)
    assert are_equal(verb, there, tmp_path, alone(verb))
    caches = [home / ".cache/feedmill" for home in Path(os.environ["RAY_TMPDIR"]).glob("home*")]
    assert verb != "neardedupe" or any(cache.is_dir() for cache in caches)
    assert not any(map(copies, caches))
    no_file_of_ray_has_the_secret()


def test_a_pipeline(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of one machine; after a change of one input, only what depends on it runs."""
    others = {"name": "others", "verb": "tag", "inputs": ["others/documents"], "outputs": ["others/attributes/lengths"]}
    steps = [{**others, "options": {"taggers": ["char_length_v1"], "name": "lengths"}}, *pipeline.STEPS]
    folders = [tmp_path / "alone", tmp_path / "ray"]
    for folder in folders:
        pipeline.make(folder)
        shutil.copytree(folder / "documents", folder / "others/documents")
        pipeline.write(steps, folder)

    def ran() -> list[str]:
        finish(["run", "p.json"], folders[0])
        monkeypatch.chdir(folders[1])
        return [step.name for step in fm.run("p.json", progress=False).steps if step.ran]

    assert ran() == ["others", "lengths", "copies", "kept", "tokens", "merge"]
    first = pipeline.without_manifests(folders[1])
    assert first == pipeline.without_manifests(folders[0]) and "tokens/web.pbin" in first
    for folder in folders:
        write_documents(folder, texts(30, seed=9))  # part-0
    assert ran() == ["lengths", "copies", "kept", "tokens", "merge"]
    second = pipeline.without_manifests(folders[1])
    assert second == pipeline.without_manifests(folders[0]) and second["tokens/web.pbin"] != first["tokens/web.pbin"]
    assert not unfinished_work(folders[1])


@pytest.mark.parametrize("words", [["documents", "stat", "documents", "--json"], ["check", "tars", "--json"]])
def test_reports_are_the_same_on_ray(
    words: list[str],
    engine: Any,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copied(inputs, tmp_path)
    finish(VERBS["prepare"], folder)
    wanted = json.loads(finish(words, folder))
    monkeypatch.chdir(folder)
    app(words, prog_name="feedmill", standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    for report in (wanted, found):
        report.pop("seconds", None)
    assert found == wanted


def test_lengths_are_the_same_on_ray(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come back from the nodes, whose cache folders may be their own."""
    pytest.importorskip("jinja2")
    from feedmill.tokens.verbs import lengths as module
    from helpers.processor_data import dataset, picture, processor, talk

    members = {
        f"{n}.{end}": data
        for n in range(9)
        for end, data in (("jpg", picture(90 + n, 60)), ("json", talk("what", None)))
    }
    data, place, found = dataset(tmp_path / "data", members), processor(tmp_path / "processor"), []
    monkeypatch.setattr(module, "PART", 2)
    for name, on in (("here", without_engine()), ("ray", contextlib.nullcontext())):
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / name))
        with on:
            folder = fm.tokens.lengths(data, processor=place, progress=False).folder
        found.append({path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.isdigit()})
    assert found[0] == found[1] and len(found[0]) == 5


def test_an_error_of_a_unit_is_the_same_error(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    got = []
    with pytest.raises(FeedmillError) as caught:
        for result in run(working.refuse_seven, range(20), where=where):
            got.append(result)
    assert got == list(range(7)) and caught.value.kind == "bad-seven" and type(caught.value).__name__ == "DataError"


def test_warnings_of_units_are_shown_once(engine: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    assert list(run(working.warn_of_sevenths, range(20), where=where)) == list(range(20))
    assert sorted(r.getMessage() for r in caplog.records) == [f"the remainder is {n}" for n in range(7)]


def test_a_unit_that_always_ends_its_worker_is_named(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_engine._TRIES", 2)
    where = Where("trying", "key", LocalStore(tmp_path))
    with pytest.raises(FeedmillError, match=r"ended its worker 2 times .*: shard-7") as caught:
        list(run(working.exit_on_seven, [f"shard-{i}" for i in range(9)], where=where))
    assert "raylet" not in capsys.readouterr().out  # where a verb prints JSON
    assert caught.value.kind == "worker-died"


def wait_for_end_of(pid: int) -> None:
    """Ray ends a process, and notices its end, in its own time."""
    limit = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_stopped_worker_is_no_barrier(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its unit is named with its node, and runs elsewhere. Its process is ended, although it is stopped."""
    looks = itertools.count()  # a look takes a second of the clock by which units are late
    monkeypatch.setattr(ray_engine, "units_of", partial(units_of, clock=lambda: float(next(looks))))
    mark, count = tmp_path / "stopped", 400
    bar, ended, notes = Progress("trying", count, "units", enabled=False), [], []
    monkeypatch.setattr(bar, "note", notes.append)
    try:
        jobs = [(str(mark), number) for number in range(count)]
        for result in run(working.stop_once, jobs, progress=bar, where=Where("trying", "key", LocalStore(tmp_path))):
            assert result == len(ended)
            ended.append(bar.done)
        pid = int(mark.read_text())
        wait_for_end_of(pid)
    finally:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(mark.read_text()), signal.SIGKILL)
    assert len(ended) == ended[-1] == count and ended[3] > 4 * 8
    assert notes == ["Ray starts its workers", ""]  # which may take half a minute
    assert re.search(
        rf"trying: the unit .*stopped has run for .* on node {socket.gethostname()}, process {pid} \(median .*\):"
        " it is tried once more",
        caplog.text,
    )


def test_secrets_reach_the_units_and_no_file_of_ray(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray writes the variables of its runtime environments to logs of each node that all users can read."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    where = Where("trying", "key", LocalStore(tmp_path))
    assert set(run(working.variable, ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"] * 20, where=where)) == {SECRET}
    with pytest.raises(FeedmillError):
        list(run(working.refuse_seven, range(20), where=where))
    monkeypatch.delenv("HF_TOKEN")
    assert set(run(working.variable, ["HF_TOKEN"] * 20, where=where)) == {None}
    no_file_of_ray_has_the_secret()


def no_file_of_ray_has_the_secret() -> None:
    files = [path for path in Path(os.environ["RAY_TMPDIR"]).rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_unit_out_of_memory_asks_for_more(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It never asks for more than a node has, for which it would wait for ever."""
    import ray

    engine.memory = int(max(node["Resources"]["memory"] for node in ray.nodes() if "CPU" in node["Resources"]))
    lose(1, monkeypatch)
    where = Where("trying", "key", LocalStore(tmp_path))
    assert list(run(working.square, range(3), where=where)) == [0, 1, 4]
    assert "its unit runs again (1 of 2)" in caplog.text
    lose(9, monkeypatch)
    with pytest.raises(FeedmillError, match=r"ended its worker 3 times \(low memory\): 0. Declare more --task-memory"):
        list(run(working.square, range(1), where=where))


def lose(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let units run out of memory."""
    import ray

    original, left = ray.get, [times]

    def get(reference: Any, **options: Any) -> Any:
        if not options and left[0]:
            left[0] -= 1
            raise ray.exceptions.OutOfMemoryError("low memory")
        return original(reference, **options)

    monkeypatch.setattr(ray, "get", get)


def test_a_full_disk_is_that_of_a_node(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    with pytest.raises(StorageError, match=rf"the disk is full \(on the node {socket.gethostname()}\)") as caught:
        list(run(working.fill_the_disk, range(3), where=where))
    assert caught.value.kind == "enospc"


def test_a_missing_token_is_one_line(cluster: Any, tmp_path: Path) -> None:
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "absent")}
    done = subprocess.run(
        command("tag", "documents", "-t", "char_length_v1", "--engine", "ray", "--address", cluster.address),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "did not accept this machine" in done.stderr
    assert "RAY_AUTH_TOKEN_PATH to a file" in done.stderr and "Traceback" not in done.stderr


def test_a_node_that_does_not_see_the_work_is_named(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_nodes._written", lambda *_: contextlib.nullcontext("absent"))
    with pytest.raises(ConfigError, match="does not see") as caught:
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))
    assert caught.value.kind == "no-cluster"


@pytest.mark.parametrize("late", ["the folder", "the version"])
def test_a_node_that_joins_later_is_checked_by_its_first_unit(
    late: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_nodes.Nodes.check", lambda *_: None)
    if late == "the folder":
        monkeypatch.setattr("feedmill.jobs.ray_nodes._written", lambda *_: contextlib.nullcontext("absent"))
    else:
        monkeypatch.setattr("feedmill.jobs.ray_nodes.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"does not see|it has feedmill") as caught:
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))
    assert caught.value.kind == "no-cluster"


def test_other_versions_are_refused(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_nodes.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"it has feedmill .*, and this machine 9.9"):
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))


def test_results_come_in_order_and_a_run_can_be_closed(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    assert list(run(working.square, range(300), chunk=7, where=where)) == [n * n for n in range(300)]
    results = run(working.note_and_sleep, [str(tmp_path)] * 3, where=where)
    results.close()
    mark = tmp_path / "stopped"
    results = run(working.stop_once, [(str(mark), number) for number in range(9)], where=where)
    assert next(results) == 0
    while not mark.exists():
        time.sleep(0.01)
    results.close()
    wait_for_end_of(int(mark.read_text()))


def test_a_run_may_be_closed_while_units_end(engine: Any, tmp_path: Path) -> None:
    """Ray's own gentle cancel ended this process within a few such rounds."""
    where = Where("trying", "key", LocalStore(tmp_path))
    for first in range(30):
        results = run(working.square, range(first, 500), where=where)
        assert next(results) == first**2
        results.close()


def test_no_cluster_is_one_line() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    done = subprocess.run(
        command("tag", "documents", "-t", "char_length_v1", "--engine", "ray", "--address", "127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "there is no Ray cluster at '127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(params=["mute", "web"])
def other_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port on which something listens that is no head of a cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if request.param == "web":

            def answer() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        with server.accept()[0] as peer:
                            peer.recv(100)
                            peer.sendall(b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n")

            threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def test_a_port_of_something_else_is_named(other_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    monkeypatch.setattr(ray_engine, "_PATIENCE", 0.2)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray itself tries for minutes"))
    with pytest.raises(ConfigError, match=f"127.0.0.1:{other_port} listens, but does not answer as the head") as caught:
        RayEngine(f"127.0.0.1:{other_port}").__enter__()
    assert caught.value.kind == "no-cluster" and "6379" in (caught.value.fix or "")


@pytest.mark.parametrize(
    "address",
    ["local", "", "LOCAL", "10.0.0.1", "host:port", "host:0", "host:70000", "anyscale://x", "ray://", "a/b:1"],
)
def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would start a cluster for the first two, also if they are in ``RAY_ADDRESS``."""
    with pytest.raises(ConfigError, match="is not the address of a Ray cluster") as caught:
        RayEngine(address)
    assert caught.value.kind == "bad-address"
    if address and importlib.util.find_spec("ray") is not None:
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=r"RAY_ADDRESS .* is not the address of a Ray cluster"):
            RayEngine("auto").__enter__()


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\nfrom feedmill.cli.app import main\n"
        "sys.argv = ['feedmill', 'tag', 'documents', '-t', 'char_length_v1', '--engine', 'ray']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'feedmill[ray]'" in done.stderr


@pytest.mark.slow
def test_copies_of_inputs_are_removed_from_all_nodes(
    cluster: Any, inputs: Path, alone: Any, s3_bucket: str, tmp_path: Path
) -> None:
    """The inputs are in a bucket, and outputs and unfinished work in a folder."""
    upload(inputs / "ids", f"{s3_bucket}/ids")
    words = ["tokens", "shuffle", f"{s3_bucket}/ids", *VERBS["shuffle"][3:]]
    finish([*words, "--engine", "ray", "--address", cluster.address], tmp_path)
    # A lineage names inputs of another store by their URLs.
    found = {name: data for name, data in outputs(tmp_path).items() if not name.endswith(".feedmill.lineage")}
    assert found and found.items() <= alone("shuffle").items()
    caches = [home / ".cache/feedmill" for home in Path(os.environ["RAY_TMPDIR"]).glob("home*")]
    assert any(cache.is_dir() for cache in caches) and not any(map(copies, caches))
    assert not unfinished_work(tmp_path)


@pytest.mark.slow
def test_a_long_chain_is_connected_by_tasks(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2,000 documents is like the next ones only. Large and small stars connect them by 8 ranges."""
    words = [f"w{n}" for n in range(4 * 2_000 + 60)]
    chain = [" ".join(words[4 * n : 4 * n + 60]) for n in range(2_000)]
    random.Random(5).shuffle(chain)
    folders = [tmp_path / "alone", tmp_path / "ray"]
    for folder in folders:
        write_documents(folder, *(chain[n::4] for n in range(4)))
    finish([*VERBS["neardedupe"], "--removal", "connected"], folders[0])
    monkeypatch.setattr("feedmill.curation.near.adding.NODES", 250)
    monkeypatch.setattr("feedmill.curation.near.stars.EDGES", 100)
    stages, original = list[str](), engine.run
    monkeypatch.setattr(engine, "run", lambda stage: stages.append(stage.name) or original(stage))
    monkeypatch.chdir(folders[1])
    report = fm.dedupe(["documents"], near=True, ngram=3, threshold=0.6, removal="connected", progress=False)
    assert (report.clusters, report.duplicates) == (1, 1_999) and stages.count("connecting") > 10
    assert outputs(folders[1]) == outputs(folders[0])
    assert not unfinished_work(folders[1])


@pytest.mark.slow
@pytest.mark.parametrize("count", [600, 20_000])
def test_near_duplicates_of_any_shape_are_those_of_brute_force(
    count: int, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains, stars and cliques: the same bytes here, in parts and on Ray, also in two dumps one after the other.

    A dump does not write again what it covers of earlier ones: only which of these are kept for others may differ.
    """
    made, ids = make_shapes(count, 8), [f"{n}-{m}" for n in range(4) for m in range(count // 4)]
    wanted = {ids[j]: ids[i] for j, i in covered(made, 0.8).items()}
    assert count / 3 < len(wanted) < count
    both, dumps = [["documents"]], [["documents/part-0.jsonl", "documents/part-1.jsonl"], ["documents/part-[23].jsonl"]]
    written = dict[tuple[str, int], dict[str, bytes]]()
    for name, runs in itertools.product(("ray", "here", "parts"), (both, dumps)):
        folder = tmp_path / f"{name}-{len(runs)}"
        write_documents(folder, *(made[n * count // 4 :][: count // 4] for n in range(4)), suffix=".jsonl")
        monkeypatch.chdir(folder)
        with contextlib.nullcontext() if name == "ray" else without_engine():
            for documents in runs:
                near = partial(fm.dedupe, documents, near=True, bands=150, rows=1, signatures="s", progress=False)
                if name == "parts":
                    for part in (2, 3, 1) * 8:
                        with contextlib.suppress(StageUnfinished), PartEngine(part, 3):
                            near()
                    with PartEngine(finish=True):
                        near()
                else:
                    near()
        rows = read_attributes(folder)
        assert {key: row["duplicate_of"] for key, row in rows.items() if "duplicate_of" in row} == wanted
        assert {key for key, row in rows.items() if row["attributes"]["dup_near"]} == wanted.keys()
        assert min(row["similarity"] for row in rows.values() if "similarity" in row) >= 0.8
        assert not unfinished_work(folder)
        written[name, len(runs)] = {path: data for path, data in outputs(folder).items() if path.startswith("attrib")}
    for runs in (1, 2):
        assert written["here", runs] == written["parts", runs] == written["ray", runs] != {}
    one, other = (b"".join(written["here", runs].values()).splitlines() for runs in (1, 2))
    changed = [row for row, same in zip(one, other, strict=True) if row != same]
    assert all(json.loads(row)["id"] in wanted.values() for row in changed) and len(changed) < len(set(wanted.values()))
