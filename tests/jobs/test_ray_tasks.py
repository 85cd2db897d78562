"""The tasks of the Ray engine on a simulated cluster, for sizes that Ray itself does not reach on a test machine.

Tasks end in any order, and some are lost with their worker.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.jobs import ray_engine, ray_nodes
from feedmill.jobs.engine import Failed, Limits, Stage, Where
from feedmill.jobs.events import units_of
from feedmill.jobs.progress import Progress, Steps
from feedmill.jobs.ray_engine import Tasks
from feedmill.jobs.ray_nodes import NodeCheck, Nodes, Place, check_of, complaint, passed_variables
from feedmill.jobs.resources import Resources
from feedmill.storage import LocalStore, open_store
from helpers import worker_functions as working


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


class OutOfMemoryError(RayError):
    """As that of Ray."""


class FakeRay:
    """What `Tasks` uses of Ray. A task runs when it is submitted, and ends when `wait` says so.

    Args:
        cores: processors of each node.
        losses: number of tasks to lose.
        hung: units whose first task never ends; the second neither, if they are given twice.
    """

    class exceptions:
        RayError, OutOfMemoryError, RayTaskError = RayError, OutOfMemoryError, type("RayTaskError", (RayError,), {})

    def __init__(self, cores: int, losses: int = 0, hung: Collection[int] = ()) -> None:
        self.hung = [*hung]
        self.stuck: list[Any] = []
        self.node = {"Alive": True, "NodeID": "1", "Resources": {"CPU": cores, "memory": 4 << 30}}
        self.losses, self.most, self.canceled = losses, 0, 0
        self.memory = list[int | None]()
        self.random = random.Random(3)

    def nodes(self) -> list[dict[str, Any]]:
        return [self.node]

    def remote(self, function: Callable[..., Any]) -> Any:
        ray = self

        class Task:
            def options(self, **options: Any) -> Task:
                assert options["max_retries"] == 0
                ray.memory.append(options.get("memory"))
                return self

            def remote(self, *arguments: Any) -> list[Any]:
                reference = Reference([function(*arguments)])
                for unit in {*ray.hung} & {*arguments[2]}:
                    ray.hung.remove(unit)
                    ray.stuck.append(reference)
                return reference

        return Task()

    def wait(self, waiting: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(waiting))
        if num_returns == 1:
            moving = [one for one in waiting if one not in self.stuck]
            self.ready = self.random.sample(moving, min(64, len(moving)))
        return self.ready, [one for one in waiting if one in self.stuck]

    def get(self, reference: Any) -> Any:
        if self.losses and self.random.random() < 0.5:
            self.losses -= 1
            raise self.exceptions.OutOfMemoryError("low memory") if self.losses % 2 else RayError("lost")
        return reference.pop()

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.canceled += 1


class Reference(list[Any]):
    """Has an identity, as those of Ray."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Units run in this process, which is no worker."""
    monkeypatch.setattr("feedmill.jobs.engine.enter_unit", lambda: None)
    monkeypatch.setattr(ray_engine, "share", lambda: None)
    monkeypatch.setattr(Nodes, "another", lambda *_: None)
    monkeypatch.setattr(ray_engine.random, "uniform", lambda *_: 0.0)  # no time between tries
    yield


def tasks(
    ray: FakeRay, units: int, function: Any = working.square, steps: Steps | None = None, **options: Any
) -> Tasks:
    stage = Stage(Where("trying", "key", None), function, range(units), iter, steps=steps or Steps())
    with check_of(None) as check:
        return Tasks(ray, stage, Nodes(ray), check, **{"resources": Resources(), "max_tasks": None, **options})


def test_lost_tasks_run_again_and_results_are_in_order() -> None:
    ray = FakeRay(4, losses=40)
    assert list(tasks(ray, 500).results()) == [n * n for n in range(500)]
    assert ray.most == 12 and not ray.losses
    assert {None, 2 << 30} <= set(ray.memory) and max(filter(None, ray.memory)) <= 4 << 30


def test_max_tasks_bounds_what_waits() -> None:
    ray = FakeRay(1000)
    assert len(list(tasks(ray, 100, max_tasks=5).results())) == 100
    assert ray.most == 5


def test_stopping_cancels_only_what_no_worker_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may end this process when a task is canceled that is done just then; see `stop_work`."""
    stopped, killed = list[NodeCheck](), list[Place]()
    begun = Place("n7", "1", 4711)
    monkeypatch.setattr(ray_engine, "stop_work", stopped.append)
    monkeypatch.setattr(ray_engine, "place_of", lambda _, name: begun if name == "7-0" else None)
    monkeypatch.setattr(Nodes, "kill", lambda _, places, **__: killed.extend(places))
    ray = FakeRay(100, hung=[7, 8])
    run = tasks(ray, 1000)
    results = run.results()
    assert next(results) == 0
    results.close()
    run.stop()
    assert len(stopped) == 1 and killed == [begun] and ray.canceled == 1


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each look at the clock takes a second."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr(ray_engine, "units_of", partial(units_of, clock=clock))
    monkeypatch.setattr(ray_engine, "_LOOK", 0.0)
    return now


def test_a_hung_unit_is_named_and_tried_again_and_others_do_not_wait(
    seconds: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: Place("n7", "1", 4711))
    finished, ray = [], FakeRay(4, hung=[7])
    bar = Progress("trying", 5000, "units", enabled=False)
    run = tasks(ray, 5000, steps=Steps(bar))
    for result in run.results():
        finished.append(bar.done)
        assert result == (len(finished) - 1) ** 2
    # The unit after the hung one is not next before that was tried again; by then many had ended.
    assert finished[6] < 30 and finished[7] > 60 and finished[-1] == 5000
    assert caplog.text.count("the unit") == 1
    assert re.search(
        r"trying: the unit 7 has run for \d+ s on node n7, process 4711 \(median \d+\.\d s\):"
        " it is tried once more",
        caplog.text,
    )
    assert ray.canceled == 1 and run._lost_races == ray.stuck
    run.stop()
    assert not run._lost_races


def test_a_unit_that_waits_for_a_core_is_not_late(
    seconds: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless tasks that were submitted after it have ended: then its worker was stopped before it began."""
    ray = FakeRay(4, hung=[7, 7, 4999])
    run = tasks(ray, 5000)
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: None)
    monkeypatch.setattr(ray_engine, "_MARGIN", 2000)
    assert list(run.results()) == [n * n for n in range(5000)]
    assert run._ended_count == 5000
    assert caplog.text.count("the unit 7 has run for") == 2 and caplog.text.count("and no worker has begun it") == 3
    assert caplog.text.count("the unit 4999 has run for") == 1  # nothing was submitted after it
    assert int(seconds[0]) > 120  # it was late long before


@pytest.mark.parametrize(("cores", "wanted"), [(1, [Place("n7", "1", 4711)]), (2, [])])
def test_stopped_processes_that_hold_all_cores_are_killed(
    cores: int,
    wanted: list[Place],
    seconds: list[float],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two cores one is free for the second attempt."""
    killed = list[Place]()
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: Place("n7", "1", 4711))
    monkeypatch.setattr(Nodes, "kill", lambda _, found, stopped: killed.extend(found))
    assert list(tasks(FakeRay(cores, hung=[7]), 3000).results()) == [n * n for n in range(3000)]
    assert killed == wanted and ("hold all cores" in caplog.text) == bool(wanted)


def test_only_a_stopped_process_is_killed() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        ray_nodes._kill(process.pid, stopped=True)
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        ray_nodes._kill(process.pid, stopped=True)
        assert process.wait() == -signal.SIGKILL
    ray_nodes._kill(process.pid, stopped=True)


def test_what_waits_for_a_hung_unit_is_bounded(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_KEPT", 0)
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: Place("n7", "1", 4711))
    taken = []
    ray = FakeRay(1, hung=[0])
    run = tasks(ray, 5000)
    chunks = run._chunks
    run._chunks = (taken.append(chunk) or chunk for chunk in chunks)  # type: ignore[func-returns-value]
    assert next(run.results()) == 0
    assert len(taken) <= 4 * 8 + 8


def test_a_lost_second_attempt_leaves_the_first(
    seconds: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: Place("n7", "1", 4711))
    ray = FakeRay(4, hung=[7])
    get = ray.get

    def lose_all_while_hung(reference: Any) -> Any:
        if reference == [] or not ray.stuck or len(run._open[7].tasks) == 0 or run._waiting.get(ray.stuck[0]) is None:
            return get(reference)
        outcome = get(reference)
        if outcome.outcome().results == [49]:
            ray.stuck.clear()  # the first goes on
            raise RayError("lost")
        return outcome

    ray.get = lose_all_while_hung  # type: ignore[method-assign]
    run = tasks(ray, 3000)
    assert list(run.results()) == [n * n for n in range(3000)]
    assert "its unit runs again" not in caplog.text and not ray.canceled


def test_an_error_comes_after_the_results_before_it() -> None:
    got = []
    with pytest.raises(FeedmillError) as caught:
        for result in tasks(FakeRay(100), 500, working.refuse_seven).results():
            got.append(result)
    assert got == list(range(7)) and caught.value.kind == "bad-seven"


def test_units_that_fail_or_take_too_long_are_left_for_the_same_command(
    seconds: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_engine, "place_of", lambda *_: Place("n7", "1", 4711))
    ray = FakeRay(4, hung=[40])
    with Limits(timeout=5, attempts=1, max_failed=2):
        found = list(tasks(ray, 99, working.refuse_seven).results())
    failed = [one for one in found if isinstance(one, Failed)]
    assert [one.name for one in failed] == ["7", "40"] and len(found) == 99
    assert "time limit of 5 s: 40" in str(failed[1].error) and ray.canceled == 1
    with Limits(timeout=5, attempts=2, max_failed=2):
        found = list(tasks(FakeRay(4, hung=[40]), 99).results())
    assert found == [n * n for n in range(99)] and "(tried again, 1 of 2)" in caplog.text


def test_a_missing_node_is_one_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as none is there, and not every ten seconds."""
    monkeypatch.setattr(ray_engine, "_RESIZE", -1.0)
    ray = FakeRay(0)
    run = tasks(ray, 500)
    results = run.results()
    for number in (0, 1):
        assert [next(results) for _ in range(250)] == [n * n for n in range(250 * number, 250 * (number + 1))]
        assert caplog.text.count("no node of the cluster has 1 core: waiting for one") == number + 1
        for cores in (4, 0):
            ray.node["Resources"]["CPU"] = cores
            run._at_once()


@pytest.mark.parametrize(
    ("needs", "missing"),
    [
        (Resources(cpus=2, memory=1 << 30, custom={"model": 1}, labels={"pool": "gpu"}), False),
        (Resources(cpus=8), True),
        (Resources(gpus=1), True),
        (Resources(memory=8 << 30), True),
        (Resources(labels={"pool": "cpu"}), True),
    ],
)
def test_what_no_node_has_is_an_error_at_once(needs: Resources, missing: bool) -> None:
    ray = FakeRay(4)
    ray.node["Resources"]["model"] = 1  # type: ignore[index]
    ray.node["Labels"] = {"pool": "gpu", "ray.io/node-id": "1"}
    if not missing:
        Nodes(ray).refuse_missing(needs, "trying")
        assert Nodes(ray).slots(needs) == 1 and Nodes(ray).slots(Resources()) == 4
        return
    with pytest.raises(ConfigError, match=r"no node .* what a unit of trying needs: ") as found:
        Nodes(ray).refuse_missing(needs, "trying")
    assert str(needs) in str(found.value)
    assert "The nodes have 4 cores, 4.0 GiB of memory, 1 model, pool=gpu" in str(found.value)


def test_warnings_of_units_are_logged_once_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_WARNINGS", 3)
    ray, here = FakeRay(2), ray_engine.logger
    passed = ray_engine.Tasks._warn
    monkeypatch.setattr(here, "propagate", False)  # what is logged in a task stays on its node

    def warn(tasks: Tasks, warnings: Any) -> None:
        monkeypatch.setattr(here, "propagate", True)
        passed(tasks, warnings)
        monkeypatch.setattr(here, "propagate", False)

    monkeypatch.setattr(ray_engine.Tasks, "_warn", warn)
    run = tasks(ray, 49, working.warn_of_sevenths)
    assert len(list(run.results())) == 49
    monkeypatch.setattr(here, "propagate", True)
    run.stop()
    texts = [record.getMessage() for record in caplog.records]
    assert len(set(texts)) == len(texts) == 4
    assert {text[:14] for text in texts[:3]} == {"the remainder "} and texts[3] == (
        "trying: 28 more warnings are in Ray's logs"
    )


def test_what_is_missing_may_be_missing_on_a_node_only() -> None:
    with pytest.raises(NotFound, match=rf"no such file.* \(on the node {socket.gethostname()}\)"):
        list(tasks(FakeRay(1), 1, working.miss).results())


@pytest.mark.slow
def test_memory_is_the_same_for_a_million_tasks() -> None:
    """On 300 cores: 900 tasks wait at a time."""

    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    used = {}
    for units in (1_000, 1_000_000):
        ray = FakeRay(300)
        ray.memory = type("Nothing", (list,), {"append": lambda *_: None})()
        assert sum(tasks(ray, units).results()) == sum(n * n for n in range(units))
        assert ray.most == 900
        used[units] = resident()
    print(f"{(used[1_000_000] - used[1_000]) / 2**20:.1f} MiB more")
    assert used[1_000_000] - used[1_000] < 4 << 20


def test_a_check_leaves_nothing_in_an_object_store(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does a driver that is killed: nothing would sweep the object in a folder that verbs share."""
    store = open_store(f"{s3_bucket}/attributes/x")
    with check_of(store) as check:
        assert complaint(check) is None
        with pytest.raises(NotFound):
            list(open_store(s3_bucket).files())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = complaint(replace(check, folder=f"s3://other-bucket/{tmp_path.name}", variables=passed_variables()))
    assert found is not None and "does not reach s3://other-bucket" in found
    with check_of(LocalStore(tmp_path)) as check:
        assert complaint(check) is None
        assert complaint(replace(check, name="absent")) == f"it does not see {tmp_path}"
    assert not list(tmp_path.iterdir())


def test_variables_of_a_driver_are_set_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "_own", {})
    monkeypatch.setenv("AWS_REGION", "of the node")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    ray_nodes.set_variables({"AWS_REGION": "of the driver", "HF_TOKEN": "x"})
    assert (os.environ["AWS_REGION"], os.environ["HF_TOKEN"]) == ("of the driver", "x")
    ray_nodes.set_variables({})
    assert os.environ["AWS_REGION"] == "of the node" and "HF_TOKEN" not in os.environ
    with check_of(None) as check:
        assert "of the node" not in repr(check)  # a secret is in no log
