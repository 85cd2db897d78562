"""The contract of engines on a Ray cluster of two nodes: the bytes of one machine, and what is lost runs again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, FeedmillError, StorageError
from feedmill.jobs.engine import Where
from feedmill.jobs.run import run
from feedmill.storage import LocalStore
from helpers import pipeline
from helpers import worker_functions as working
from helpers.document_folders import texts, write_documents
from helpers.engine_verbs import (
    SOME,
    VERBS,
    are_equal,
    copied,
    copies,
    download,
    filter_in_bucket,
    in_bucket,
    locks,
    make,
    outputs,
    start,
    unfinished_work,
    upload,
)
from helpers.kills import command, finish

RAY_MISSING = "Ray is not installed: pip install 'feedmill[ray]'"
on_ray = pytest.mark.xdist_group("ray")  # one process of pytest-xdist has the cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    from helpers.ray_cluster import two_nodes  # imports Ray with its settings

    with two_nodes() as found:
        yield found


@pytest.fixture
def engine(cluster: Any) -> Iterator[Any]:
    from feedmill.jobs.ray_engine import RayEngine

    with RayEngine(cluster.address) as found:
        yield found


def call(words: list[str]) -> None:
    """Run a command in this process."""
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        assert not app(words, prog_name="feedmill", standalone_mode=False)


@on_ray
@pytest.mark.parametrize("verb", SOME)
def test_ray(verb: str, engine: Any, inputs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(inputs, tmp_path)
    monkeypatch.chdir(folder)
    call(VERBS[verb])
    assert outputs(folder) == alone(verb)
    assert not unfinished_work(folder)


@on_ray
@pytest.mark.parametrize(
    "verb", [v if v in ("tokenize", "neardedupe") else pytest.param(v, marks=pytest.mark.slow) for v in VERBS]
)
def test_a_bucket_without_a_shared_folder(
    verb: str, cluster: Any, inputs: Path, alone: Any, s3_bucket: str, tmp_path: Path
) -> None:
    """The nodes have home folders of their own, and with them cache folders."""
    place = f"{s3_bucket}/ray"
    upload(inputs, place)
    filter_in_bucket(tmp_path, place)
    finish([*in_bucket(VERBS[verb], place), "--engine", "ray", "--address", cluster.address], tmp_path)
    there = download(place, tmp_path / "there")
    assert not unfinished_work(there) and not locks(there)
    assert are_equal(verb, there, tmp_path, alone(verb))
    caches = [home / ".cache/feedmill" for home in Path(os.environ["RAY_TMPDIR"]).glob("home*")]
    assert verb != "neardedupe" or any(cache.is_dir() for cache in caches)
    assert not any(map(copies, caches))


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("verb", ["tokenize", "dedupe", "neardedupe"])
def test_a_driver_killed_on_a_bucket(
    verb: str, cluster: Any, inputs: Path, alone: Any, s3_bucket: str, tmp_path: Path
) -> None:
    numbers, engine = random.Random(verb), ["--engine", "ray", "--address", cluster.address]
    for number in range(4):
        place = f"{s3_bucket}/{number}"
        upload(inputs, place)
        words = in_bucket(VERBS[verb], place)
        driver = start([*words, *engine], tmp_path)
        time.sleep(numbers.uniform(3, 15))
        driver.kill()
        driver.communicate()
        finish([*words, *([*engine, "--max-tasks", "3"] if number % 2 else ["--engine", "part", "--finish"])], tmp_path)
        there = download(place, tmp_path / f"there{number}")
        assert not unfinished_work(there) and not locks(there)
        assert outputs(there) == alone(verb)


@on_ray
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


@on_ray
@pytest.mark.parametrize("words", [["stat", "documents", "--json"], ["check", "tars", "--json"]])
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


@on_ray
def test_an_error_of_a_unit_is_the_same_error(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    got = []
    with pytest.raises(FeedmillError) as caught:
        for result in run(working.refuse_seven, range(20), where=where):
            got.append(result)
    assert got == list(range(7)) and caught.value.kind == "bad-seven" and type(caught.value).__name__ == "DataError"


@on_ray
def test_a_unit_that_always_ends_its_worker_is_named(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_engine._TRIES", 2)
    where = Where("trying", "key", LocalStore(tmp_path))
    with pytest.raises(FeedmillError, match=r"ended its worker 2 times .*: shard-7") as caught:
        list(run(working.exit_on_seven, [f"shard-{i}" for i in range(9)], where=where))
    assert "raylet" not in capsys.readouterr().out  # where a verb prints JSON
    assert caught.value.kind == "worker-died"


@on_ray
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


@pytest.mark.slow
@on_ray
def test_out_of_memory(tmp_path: Path) -> None:
    """Ray ends the unit that takes memory when a few percent more of the machine's are in use than before."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    from ray._private.utils import psutil  # type: ignore[attr-defined]

    from feedmill.jobs.ray_engine import RayEngine
    from helpers.ray_cluster import two_nodes

    memory = psutil.virtual_memory()
    most = 1 - (memory.available - (2 << 30)) / memory.total
    limits = {"RAY_memory_usage_threshold": f"{most:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    where = Where("trying", "key", LocalStore(tmp_path))
    with (
        two_nodes(limits) as own,
        RayEngine(own.address),
        pytest.raises(FeedmillError, match=r"ended its worker 3 times .*low on memory.*: 6\. Declare more") as caught,
    ):
        list(run(working.take_memory, [0, 6], where=where))
    assert caught.value.kind == "worker-died"


@on_ray
def test_a_full_disk_is_that_of_a_node(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    with pytest.raises(StorageError, match=rf"the disk is full \(on the node {socket.gethostname()}\)") as caught:
        list(run(working.fill_the_disk, range(3), where=where))
    assert caught.value.kind == "enospc"


@pytest.mark.slow
@on_ray
def test_a_node_with_another_version_is_named(cluster: Any, tmp_path: Path) -> None:
    from feedmill.jobs.ray_engine import RayEngine
    from helpers.ray_cluster import NODE

    (tmp_path / "sitecustomize.py").write_text("import feedmill; feedmill.__version__ = '9.9'")
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    node = cluster.add_node(**NODE, env_vars=variables)
    try:
        with (
            RayEngine(cluster.address),
            pytest.raises(ConfigError, match=r"has feedmill 9.9, and this machine") as caught,
        ):
            list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))
    finally:
        cluster.remove_node(node)
    assert socket.gethostname() in caught.value.what


@pytest.mark.slow
@on_ray
def test_a_node_that_joins_during_a_stage_is_used(cluster: Any, engine: Any, tmp_path: Path) -> None:
    from helpers.ray_cluster import NODE

    results = run(working.name_of_node, range(150), where=Where("trying", "key", LocalStore(tmp_path)))
    found = {next(results)}
    node = cluster.add_node(**NODE)
    try:
        found |= set(results)
    finally:
        cluster.remove_node(node)
    assert len(found) == 3


@pytest.mark.slow
@on_ray
def test_through_a_client(tmp_path: Path) -> None:
    for module in ("ray", "grpc"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("Ray's client is not installed: pip install 'ray[client]'")
    from feedmill.jobs.ray_engine import RayEngine
    from helpers.ray_cluster import two_nodes

    where = Where("trying", "key", LocalStore(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with two_nodes(ray_client_server_port=port), RayEngine(f"ray://127.0.0.1:{port}"):
        assert list(run(working.square, range(50), chunk=7, where=where)) == [n * n for n in range(50)]
        with pytest.raises(FeedmillError, match="seven is not accepted") as caught:
            list(run(working.refuse_seven, range(20), where=where))
        assert caught.value.kind == "bad-seven"


@on_ray
def test_a_missing_token_is_one_line(cluster: Any, tmp_path: Path) -> None:
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "absent")}
    done = subprocess.run(
        command("tag", "documents", "-t", "char_length_v1", "--engine", "ray", "--address", cluster.address),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "did not accept this machine" in done.stderr
    assert "RAY_AUTH_TOKEN_PATH to a file" in done.stderr and "Traceback" not in done.stderr


@on_ray
def test_a_node_that_does_not_see_the_work_is_named(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_engine._written", lambda *_: contextlib.nullcontext("absent"))
    with pytest.raises(ConfigError, match="does not see") as caught:
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))
    assert caught.value.kind == "unfit-node"


@on_ray
@pytest.mark.parametrize("late", ["the folder", "the version"])
def test_a_node_that_joins_later_is_checked_by_its_first_unit(
    late: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_check_nodes", lambda _: None)
    if late == "the folder":
        monkeypatch.setattr("feedmill.jobs.ray_engine._written", lambda *_: contextlib.nullcontext("absent"))
    else:
        monkeypatch.setattr("feedmill.jobs.ray_engine.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"does not see|it has feedmill") as caught:
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))
    assert caught.value.kind == "unfit-node"


@on_ray
def test_other_versions_are_refused(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.ray_engine.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"it has feedmill .*, and this machine 9.9"):
        list(run(working.square, range(3), where=Where("trying", "key", LocalStore(tmp_path))))


@on_ray
def test_results_come_in_order_and_a_run_can_be_closed(engine: Any, tmp_path: Path) -> None:
    where = Where("trying", "key", LocalStore(tmp_path))
    assert list(run(working.square, range(300), chunk=7, where=where)) == [n * n for n in range(300)]
    results = run(working.note_and_sleep, [str(tmp_path / "n")] * 3, where=where)
    results.close()


@pytest.mark.slow
@on_ray
def test_the_memory_of_the_driver_does_not_grow_with_the_units(engine: Any, tmp_path: Path) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    where, used = Where("trying", "key", LocalStore(tmp_path)), {}
    for units in (1_000, 1_000_000):
        results = run(working.square, range(units), chunk=500, where=where)
        assert sum(1 for _ in results) == units
        used[units] = resident()
    assert used[1_000_000] - used[1_000] < 20 << 20


def test_no_cluster_is_one_line() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    done = subprocess.run(
        command("tag", "documents", "-t", "char_length_v1", "--engine", "ray", "--address", "127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "there is no Ray cluster at '127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\nfrom feedmill.cli.app import main\n"
        "sys.argv = ['feedmill', 'tag', 'documents', '-t', 'char_length_v1', '--engine', 'ray']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'feedmill[ray]'" in done.stderr


KILLED = ("tokenize", "dedupe", "neardedupe", "tag")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents whose units take long enough to be killed in the middle."""
    folder = tmp_path_factory.mktemp("large") / "in"
    make(folder, scale=60)
    return folder


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("verb", KILLED)
def test_killed_on_ray(verb: str, cluster: Any, large: Path, tmp_path: Path) -> None:
    """A worker, a node or the driver is killed at a random time, ten times each; then the command is run again."""
    from helpers.ray_cluster import NODE, workers_of

    calm = copied(large, tmp_path / "calm")
    began = time.monotonic()
    finish(VERBS[verb], calm)
    seconds = time.monotonic() - began
    wanted, numbers, killed = outputs(calm), random.Random(verb), 0
    for number in range(30):
        folder = copied(large, tmp_path / f"run{number}")
        driver = start([*VERBS[verb], "--engine", "ray", "--address", cluster.address], folder)
        wait_for_work(folder, driver)
        time.sleep(numbers.uniform(0, 1.2 * seconds))
        victim = ("worker", "node", "driver")[number % 3]
        alive = driver.poll() is None
        if victim == "driver":
            driver.kill()
        elif victim == "worker":
            for process in workers_of(cluster)[:1]:
                process.kill()
        else:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            cluster.add_node(**NODE)
        _, err = driver.communicate(timeout=180)
        assert driver.returncode == (-signal.SIGKILL if victim == "driver" and alive else 0), err
        killed += alive
        if driver.returncode:
            finish([*VERBS[verb], *(["--engine", "ray", "--address", cluster.address] if number % 2 else [])], folder)
        assert outputs(folder) == wanted, f"{verb}, {victim}, run {number}"
        assert not unfinished_work(folder)
        shutil.rmtree(folder)
    assert killed > 10


def wait_for_work(folder: Path, driver: subprocess.Popen[str]) -> None:
    """Wait until the driver has begun, or has ended."""
    before = set(folder.rglob("*"))
    while driver.poll() is None and set(folder.rglob("*")) == before:
        time.sleep(0.02)


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("verb", VERBS)
def test_begun_here_and_finished_on_ray(verb: str, cluster: Any, large: Path, tmp_path: Path) -> None:
    calm = copied(large, tmp_path / "calm")
    finish(VERBS[verb], calm)
    folder, numbers = copied(large, tmp_path / "killed"), random.Random(verb)
    driver = start(VERBS[verb], folder)
    wait_for_work(folder, driver)
    time.sleep(numbers.uniform(0, 1))
    driver.kill()
    driver.communicate()
    finish([*VERBS[verb], "--engine", "ray", "--address", cluster.address], folder)
    assert outputs(folder) == outputs(calm)
    assert not unfinished_work(folder)


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_driver_leaves_no_task(number: int, cluster: Any, large: Path, tmp_path: Path) -> None:
    from helpers.ray_cluster import workers_of

    folder = copied(large, tmp_path)
    driver = start([*VERBS["neardedupe"], "--engine", "ray", "--address", cluster.address], folder)
    wait_for_work(folder, driver)
    time.sleep(0.5)
    driver.send_signal(number)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode in (130, -number, 128 + number) and "Traceback" not in err and "***" not in err
    deadline = time.monotonic() + 20
    while any("_call" in " ".join(process.cmdline()) for process in workers_of(cluster)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
