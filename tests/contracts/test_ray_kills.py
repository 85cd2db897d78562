"""What a Ray cluster does to a job: workers, nodes and drivers are killed, nodes join, memory runs out."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs import ray_engine
from feedmill.jobs.engine import Where
from feedmill.jobs.events import units_of
from feedmill.jobs.ray_engine import RayEngine
from feedmill.jobs.run import run
from feedmill.storage import LocalStore
from helpers import worker_functions as working
from helpers.document_folders import write_documents
from helpers.engine_verbs import (
    FAILING,
    VERBS,
    copied,
    download,
    in_bucket,
    locks,
    make,
    outputs,
    run_with_failing,
    start,
    tagged,
    unfinished_work,
    upload,
)
from helpers.kills import finish
from helpers.ray_cluster import NODE, RAY_MISSING, two_nodes, workers_of

pytestmark = pytest.mark.slow

KILLED = ("tokenize", "dedupe", "neardedupe", "tag")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents whose units take long enough to be killed in the middle."""
    folder = tmp_path_factory.mktemp("large") / "in"
    make(folder, scale=60)
    return folder


@pytest.mark.parametrize("verb", KILLED)
def test_killed_on_ray(verb: str, cluster: Any, large: Path, tmp_path: Path) -> None:
    """A worker, a node or the driver is killed at a random time, ten times each; then the command is run again."""
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_driver_leaves_no_task(number: int, cluster: Any, large: Path, tmp_path: Path) -> None:
    folder = copied(large, tmp_path)
    driver = start([*VERBS["neardedupe"], "--engine", "ray", "--address", cluster.address], folder)
    wait_for_work(folder, driver)
    time.sleep(0.5)
    driver.send_signal(number)
    _, err = driver.communicate(timeout=180)
    assert driver.returncode in (130, -number, 128 + number) and "Traceback" not in err and "***" not in err
    deadline = time.monotonic() + 120
    while workers_of(cluster):
        assert time.monotonic() < deadline
        time.sleep(0.2)


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


def test_a_node_with_another_version_is_named(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("from feedmill import _version; _version.__version__ = '9.9'")
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


def test_a_node_that_joins_during_a_stage_is_used(cluster: Any, engine: Any, tmp_path: Path) -> None:
    results = run(working.name_of_node, range(150), where=Where("trying", "key", LocalStore(tmp_path)))
    found = {next(results)}
    node = cluster.add_node(**NODE)
    try:
        found |= set(results)
    finally:
        cluster.remove_node(node)
    assert len(found) == 3


def test_a_disturbed_job_says_what_failed_and_its_bytes_are_equal(tmp_path: Path) -> None:
    """Of its nodes one has a tenth of the speed, one joins and one leaves, while a worker is stopped for good; a unit
    always fails. The others are finished, late ones by a second attempt, and only the one runs again.
    """
    folders = [tmp_path / "calm", tmp_path / "disturbed"]
    for folder in folders:
        write_documents(folder, *([f"text {n}"] for n in range(60)))
    calm, folder = folders
    finish(FAILING, calm)

    def node(name: str, seconds: float) -> dict[str, Any]:
        return {**NODE, "env_vars": {"NAME_OF_NODE": name, "SECONDS_OF_NODE": str(seconds)}}

    with two_nodes({"SECONDS_OF_NODE": "0.4"}) as own:
        both, stopped = list(own.worker_nodes), list[int]()
        own.add_node(**node("slow", 4))
        words = [*FAILING, "--max-failed-units", "2", "--attempts", "2", "--engine", "ray", "--address", own.address]

        def disturb() -> None:
            wait_for(lambda: notes(folder) > 8)
            lines = map(str.split, (folder / "tagged").read_text().splitlines())
            stopped.append([int(process) for _, name, process in lines if name != "slow"][-1])
            os.kill(stopped[0], signal.SIGSTOP)
            parent = int(Path(f"/proc/{stopped[0]}/stat").read_text().rpartition(")")[2].split()[1])
            own.add_node(**node("joined", 0.4))
            wait_for(lambda: "joined" in (folder / "tagged").read_text())
            other = next(one for one in both if one.all_processes["raylet"][0].process.pid != parent)
            own.remove_node(other, allow_graceful=False)

        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(run_with_failing, {3: "kill"}, words, folder)
            disturb()  # here, as Ray's nodes are started in the main thread
            printed = ended.result()
        assert "1 of 60 units have failed (59 units finished)" in printed and "ended its worker 2 times" in printed
        assert "it is tried once more" in printed  # by name only if it was stopped within a unit
        assert {"slow", "joined"} <= set((folder / "tagged").read_text().split())
        assert tagged(folder) == {str(n) for n in range(60) if n != 3}
        finish(words, folder)
        assert tagged(folder) == {"3"}
    assert outputs(folder) == {name: data for name, data in outputs(calm).items() if name != "tagged"}
    assert not unfinished_work(folder)


def test_a_stopped_worker_of_a_single_core_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unit, and all others, wait for its core."""
    looks = itertools.count()  # a look takes a second of the clock by which units are late
    monkeypatch.setattr(ray_engine, "units_of", partial(units_of, clock=lambda: float(next(looks))))
    jobs = [(str(tmp_path / "stopped"), number) for number in range(40)]
    with two_nodes() as own:
        own.remove_node(next(iter(own.worker_nodes)))
        with RayEngine(own.address):
            assert list(run(working.stop_once, jobs, where=Where("trying", "key", LocalStore(tmp_path)))) == [
                *range(40)
            ]


def notes(folder: Path) -> int:
    """Return how many documents `FAILING` has tagged."""
    path = folder / "tagged"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_through_a_client(tmp_path: Path) -> None:
    for module in ("ray", "grpc"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("Ray's client is not installed: pip install 'ray[client]'")
    where = Where("trying", "key", LocalStore(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with two_nodes(ray_client_server_port=port), RayEngine(f"ray://127.0.0.1:{port}"):
        assert list(run(working.square, range(50), chunk=7, where=where)) == [n * n for n in range(50)]
        with pytest.raises(FeedmillError, match="seven is not accepted") as caught:
            list(run(working.refuse_seven, range(20), where=where))
        assert caught.value.kind == "bad-seven"


def test_out_of_memory(tmp_path: Path) -> None:
    """Ray ends the unit that takes memory when a few percent more of the machine's are in use than before."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    from ray._private.utils import psutil  # type: ignore[attr-defined]

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


def test_the_memory_of_the_driver_does_not_grow_with_the_units(engine: Any, tmp_path: Path) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    where, used = Where("trying", "key", LocalStore(tmp_path)), {}
    for units in (1_000, 1_000_000):
        results = run(working.square, range(units), chunk=500, where=where)
        assert sum(1 for _ in results) == units
        used[units] = resident()
    print(f"{(used[1_000_000] - used[1_000]) / 2**20:.1f} MiB more")
    assert used[1_000_000] - used[1_000] < 20 << 20
