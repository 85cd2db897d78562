"""Batches made by processes: the same stream, whatever happens to the processes, and nothing left behind."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.jobs.processes import Served
from feedmill.loading.failures import Substitute
from feedmill.loading.loader import Loader
from feedmill.loading.workers import Workers
from helpers.fakes import FakePlan

PATIENCE = 60


def open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "memfd:feedmill" in target:
            found.add(name)
    return found


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> None:
    """What other tests have left is not searched again after each of these."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No worker process and no memory file outlives a test."""
    started: list[Any] = []
    original = Served.Process

    def process(self: Served, *args: Any, **kwargs: Any) -> Any:
        started.append(original(self, *args, **kwargs))
        return started[-1]

    monkeypatch.setattr(Served, "Process", process)
    yield
    gc.collect()
    assert not [p for p in started if p.is_alive()] and open_files() == set()


def jitter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random(5000), "pid": os.getpid()}


def once(folder: str, what: str, at: int, sample: dict[str, Any]) -> dict[str, Any]:
    """Die or hang at a position, the first time that it comes."""
    if sample["position"] == at:
        try:
            os.close(os.open(f"{folder}/{what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return sample
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE)
    return sample


def always_die(at: int, sample: dict[str, Any]) -> dict[str, Any]:
    if sample["position"] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def fail(at: int, sample: dict[str, Any]) -> dict[str, Any]:
    if sample["position"] == at:
        raise ValueError("surprise")
    return sample


def with_lambda(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "f": lambda: 1}


def tensors(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {
        "x": torch.stack([torch.from_numpy(sample["noise"]) for sample in samples]),
        "half": torch.full((20000,), samples[0]["position"], dtype=torch.bfloat16),
    }


def positions(batches: list[dict[str, Any]]) -> list[int]:
    return [p for batch in batches for p in batch["position"].tolist()]


@pytest.mark.parametrize(
    ("count", "prefetch"),
    [pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(2, 2, marks=pytest.mark.slow), (3, 1)],
)
def test_processes_give_the_same_stream_and_state(count: int, prefetch: int) -> None:
    wanted = list(islice(Loader(FakePlan(), 4, transform=jitter), 12))
    loader = Loader(FakePlan(), 4, transform=jitter, workers=Workers(count, processes=True), prefetch=prefetch)
    found = list(islice(loader, 5))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 20
    again = Loader(FakePlan(), 2, rank=0, world_size=1, transform=jitter, workers=Workers(count, processes=True))
    again.load_state_dict(state)
    rest = list(islice(again, 14))
    assert positions(found + rest) == positions(wanted)
    noise = np.concatenate([batch["noise"] for batch in found + rest])
    assert np.array_equal(noise, np.concatenate([batch["noise"] for batch in wanted]))
    assert os.getpid() not in {pid for batch in found for pid in batch["pid"].tolist()}
    found[0]["noise"][:] = 1  # what was given out may be changed, and lives as long as it is wanted
    loader.close()
    again.close()
    del found, rest, noise
    assert repr(loader).endswith(f"{count} processes)")


@pytest.mark.parametrize("what", ["die", "hang"])
def test_a_worker_that_dies_or_hangs_is_replaced(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Minutes pass while a worker hangs."""

        late = 0.0

        def monotonic(self) -> float:
            self.late += 100 * ((tmp_path / "hang").exists() and "restarted" not in caplog.text)
            return time.monotonic() + self.late

    monkeypatch.setattr("feedmill.jobs.pool.time", Clock())
    workers = Workers(2, processes=True, timeout=50 if what == "hang" else None)
    loader = Loader(FakePlan(), 4, transform=partial(once, str(tmp_path), what, 14), workers=workers)
    with caplog.at_level(logging.WARNING, "feedmill"):
        assert positions(list(islice(loader, 8))) == list(range(32))
    loader.close()
    assert "restarted, 1 of 3" in caplog.text


def test_what_always_dies_ends_the_run_and_is_named() -> None:
    loader = Loader(FakePlan(), 4, transform=partial(always_die, 9), workers=Workers(1, processes=True, restarts=1))
    batches = iter(loader)
    assert positions([next(batches), next(batches)]) == list(range(8))
    said = r"was killed \(SIGKILL\) while working on .*from position 8 on"
    with pytest.raises(FeedmillError, match=said) as caught:
        next(batches)
    assert caught.value.kind == "worker-died" and loader.position == 8


def test_errors_come_in_their_place_with_the_worker_s_traceback() -> None:
    loader = Loader(FakePlan(), 4, transform=partial(fail, 6), workers=Workers(2, processes=True))
    batches = iter(loader)
    assert positions([next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"position 6 .*ValueError: surprise") as caught:
        next(batches)
    assert any("in fail" in note for note in caught.value.__notes__)


def test_failures_are_counted_in_the_main_process(tmp_path: Path) -> None:
    policy = Substitute(quarantine=tmp_path / "bad.jsonl", budget=1)
    plan = FakePlan(fails_at=frozenset([6, 21]))
    loader = Loader(plan, 4, workers=Workers(2, processes=True), on_error=policy)
    with pytest.raises(DataError, match=r"budget of 1 is exceeded .2 so far"):
        list(islice(loader, 8))
    assert loader.failures == 2 and loader.position == 20
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be sent to other processes"):
        next(iter(Loader(FakePlan(), 4, transform=lambda s: s, workers=Workers(2, processes=True))))
    with pytest.raises(ConfigError, match="batch cannot be sent"):
        next(iter(Loader(FakePlan(), 4, transform=with_lambda, workers=Workers(1, processes=True))))


def test_tensors_and_outputs() -> None:
    torch = pytest.importorskip("torch")
    workers = Workers(1, processes=True)
    loader = Loader(FakePlan(), 4, transform=jitter, collate=tensors, workers=workers, output="torch")
    batch = next(iter(loader))
    plain = next(iter(Loader(FakePlan(), 4, transform=jitter)))
    assert torch.equal(batch["x"], torch.from_numpy(plain["noise"])) and batch["half"].dtype == torch.bfloat16
    loader.close()
    del batch
    loader = Loader(FakePlan(), 4, transform=jitter, workers=workers, output="torch")
    batch = next(iter(loader))
    assert torch.equal(batch["noise"], torch.from_numpy(plain["noise"]))
    loader.close()
    del batch
    samples = next(iter(lists := Loader(FakePlan(), 4, workers=workers, output="samples")))
    assert [sample["position"] for sample in samples] == [0, 1, 2, 3]
    lists.close()


def test_memory_files_are_used_again() -> None:
    loader = Loader(FakePlan(), 16, transform=jitter, workers=Workers(2, processes=True), prefetch=2)
    most = 0
    for number, batch in enumerate(islice(loader, 40)):
        most = max(most, len(open_files()))
        assert batch["noise"].shape == (16, 5000) and batch["position"][0] == 16 * number
    loader.close()
    assert 1 <= most <= 8  # four in flight, one in use, and those on their way
    del batch


def test_auto_takes_processes_for_code_of_the_user_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.loading.workers.available_cores", lambda: 9)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Loader(FakePlan(), 2, workers="auto").workers == Workers(3)
    assert Loader(FakePlan(), 2, workers="auto", transform=jitter).workers == Workers(3, processes=True, adapt=True)
    assert Loader(FakePlan(), 2, workers="auto", transform=lambda s: s).workers == Workers(3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert Loader(FakePlan(), 2, workers="auto").workers == Workers(1)


@pytest.mark.parametrize("arguments", [
    {"count": -1}, {"count": 0, "processes": True}, {"count": 1, "timeout": 5}, {"count": 1, "restarts": -1},
    {"count": 1, "processes": True, "timeout": 0}, {"count": 1, "processes": True, "timeout": 5, "adapt": True},
])  # fmt: skip
def test_workers_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Workers(**arguments)
    with pytest.raises(ConfigError):
        Loader(FakePlan(), 2, workers="many")


def test_a_loop_that_is_left_ends_its_processes() -> None:
    before = set(multiprocessing.active_children())  # of earlier tests
    loader = Loader(FakePlan(), 4, transform=jitter, workers=Workers(2, processes=True))
    for _ in loader:
        break
    del loader, _
    gc.collect()
    assert not set(multiprocessing.active_children()) - before
