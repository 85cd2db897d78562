"""Batches on a device ahead of the loop: with a stand-in for streams here, with a real device where there is one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.jobs.threads import THREAD_NAME
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from feedmill.loading.transfer import Pinned, Streamed, Transfer, known_device, mapped, tensors
from helpers.fakes import FakePlan

torch = pytest.importorskip("torch")
HERE = torch.cuda.is_available()


class FakeApi:
    """`torch.cuda` as far as it is asked for; copies go to the CPU and everything is written down."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.threads: set[str] = set()
        api = self

        class Event:
            def __init__(self, blocking: bool = False) -> None:
                assert blocking

            def record(self, stream: Any) -> None:
                api.log.append("record")

            def synchronize(self) -> None:
                api.log.append("synchronize")

        self.Event = Event

    def Stream(self, device: Any) -> Any:
        self.log.append(f"stream on {device}")
        return SimpleNamespace(device=device)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.threads.add(threading.current_thread().name)
        self.log.append("enter")
        yield
        self.log.append("leave")

    def current_stream(self, device: Any) -> str:
        assert threading.current_thread() is threading.main_thread()
        return "the loop's"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Loaders whose device is the CPU, reached as if it were another one."""
    fake = FakeApi()

    def pin(tensor: Any) -> Any:
        fake.log.append("pin")
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: fake.log.append(f"used by {stream}"))
    monkeypatch.setattr(Transfer, "lane", lambda _: Streamed(fake, torch.device("cpu"), True))
    original = Transfer.__init__

    def begin(self: Transfer, device: Any = None, pin_memory: bool | None = None, *, convert: bool = True) -> None:
        original(self, device, pin_memory, convert=convert)
        self.copies = True

    monkeypatch.setattr(Transfer, "__init__", begin)
    return fake


_before = set[threading.Thread]()
"""Threads of earlier tests, which may end in the middle of these."""


@pytest.fixture(autouse=True)
def earlier() -> Iterator[None]:
    _before.update(threading.enumerate())
    yield
    _before.clear()


def transfer_threads() -> list[str]:
    return [each.name for each in set(threading.enumerate()) - _before if each.name.startswith(THREAD_NAME)]


def position(batch: Any) -> list[int]:
    return batch["position"].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_in_the_same_order(api: FakeApi, workers: int) -> None:
    plain = [position(batch) for batch in Loader(FakePlan(length=22), 4, output="torch")]
    loader = Loader(FakePlan(length=22), 4, output="torch", device="cpu", workers=workers)
    found = []
    for step, batch in enumerate(loader):
        found.append(position(batch))
        assert isinstance(batch["x"], torch.Tensor) and loader.position == min(4 * step + 4, 22)
    assert found == plain and loader.position == 22 and not transfer_threads()
    assert loader.metrics.seconds["transfer"] > 0
    assert "transfer_seconds" in loader.metrics.snapshot()


def test_each_copy_is_complete_before_it_is_given_and_noted_as_used(api: FakeApi) -> None:
    list(Loader(FakePlan(length=8), 4, output="torch", device="cpu"))
    tensors_each = 2
    one = ["enter", *["pin"] * tensors_each, "record", "synchronize", "leave"]
    used = [word for word in api.log if word.startswith("used")]
    assert [word for word in api.log if not word.startswith(("used", "stream"))] == one * 2
    assert used == ["used by the loop's"] * 2 * tensors_each
    assert api.log[0] == "stream on cpu" and all(name.startswith(THREAD_NAME) for name in api.threads)


def test_the_next_batch_is_copied_while_one_is_in_use(api: FakeApi) -> None:
    loader = Loader(FakePlan(), 4, output="torch", device="cpu")
    batches = iter(loader)
    next(batches)
    until = time.monotonic() + 120
    while api.log.count("leave") < 2 and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)
    assert api.log.count("leave") == 2  # the next one, and no more than that
    assert loader.position == 4 and loader.state_dict()["position"] == 4
    loader.close()
    assert not transfer_threads()


def test_leaving_and_going_on(api: FakeApi) -> None:
    loader = Loader(FakePlan(length=30), 4, output="torch", device="cpu", workers=2)
    first = [position(batch) for batch in islice(loader, 3)]
    assert loader.position == 12
    other = Loader(FakePlan(length=30), 6, output="torch", device="cpu")
    other.load_state_dict(loader.state_dict())
    rest = [position(batch) for batch in other]
    assert [p for batch in first + rest for p in batch] == list(range(30))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_in_its_turn(api: FakeApi, workers: int) -> None:
    plan = FakePlan(length=22, fails_at=frozenset([9]))
    loader = Loader(plan, 4, output="torch", device="cpu", workers=workers)
    found = []
    with pytest.raises(DataError, match="position 9"):
        for batch in loader:
            found.append(position(batch))
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]] and loader.position == 8 and not transfer_threads()


def test_failures_are_counted_with_their_batch(api: FakeApi) -> None:
    loader = Loader(
        FakePlan(length=22, fails_at=frozenset([5])), 4, output="torch", device="cpu", on_error="substitute"
    )
    batches = iter(loader)
    next(batches)
    time.sleep(0.1)
    assert loader.failures == 0  # though the batch with it is there already
    next(batches)
    assert loader.failures == 1
    loader.close()


class Pages(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[:2]]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"x": np.concatenate([sample["x"] for sample in samples])}


def test_packs(api: FakeApi) -> None:
    plain = Loader(FakePlan(length=32), 2, task_encoder=Pages(), buffer=8, output="torch")
    copied = Loader(FakePlan(length=32), 2, task_encoder=Pages(), buffer=8, output="torch", device="cpu")
    assert [b["x"].tolist() for b in copied] == [b["x"].tolist() for b in plain]
    assert copied.state_dict() == plain.state_dict()


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Record:
    a: Any
    name: str = "r"


class Encoding:
    """An object of a user's library that knows how to go to a device."""

    def __init__(self, ids: Any) -> None:
        self.ids, self.went = ids, ""

    def to(self, device: Any, non_blocking: bool = False) -> Encoding:
        moved = Encoding(self.ids.to(device, non_blocking=non_blocking))
        moved.went = str(device)
        return moved


def test_tensors_are_found_wherever_they_are() -> None:
    t = torch.arange(3)
    batch = {"a": [t, "s"], "b": (t, 1), "c": Pair(t, None), "d": Record(t), "e": Encoding(t), "f": np.arange(2)}
    found = mapped(batch, lambda value: value.to("meta", non_blocking=True))
    assert len(list(tensors(batch))) == 5
    moved = [found["a"][0], found["b"][0], found["c"].a, found["d"].a, found["e"].ids]
    assert all(value.device.type == "meta" for value in moved)
    assert found["a"][1] == "s" and found["c"].b is None and found["d"].name == "r" and found["e"].went == "meta"
    assert batch["d"].a is t and isinstance(found["f"], np.ndarray) and type(found["c"]) is Pair


def test_nothing_to_copy_costs_nothing() -> None:
    loader = Loader(FakePlan(length=8), 4, output="torch", device="cpu")
    assert len(list(loader)) == 2 and loader.metrics.seconds["transfer"] == 0
    assert isinstance(Transfer(None).lane(), Pinned) and not Transfer("cpu").copies


def test_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"output='torch'"):
        Loader(FakePlan(), 4, device="cpu")
    with pytest.raises(ConfigError, match="unknown to torch"):
        known_device("nonsense")
    with pytest.raises(ConfigError, match="cannot be copied there"):
        known_device("meta")
    with pytest.raises(ConfigError, match=r"sees .* such device"):
        Loader(FakePlan(), 4, output="torch", device="cuda:99")


@pytest.mark.skipif(HERE, reason="a device is here")
def test_without_a_device() -> None:
    with pytest.raises(ConfigError, match=r"sees no such device on this machine\. Use device='cpu'"):
        Loader(FakePlan(), 4, output="torch", device="cuda")
    with pytest.raises(ConfigError, match="no accelerator"):
        Loader(FakePlan(), 4, output="torch", pin_memory=True)


@pytest.mark.skipif(not HERE, reason="needs CUDA")
def test_on_a_device() -> None:
    plain = [batch["x"].tolist() for batch in Loader(FakePlan(length=42), 4, output="torch")]
    loader = Loader(FakePlan(length=42), 4, output="torch", device="cuda", workers=2)
    found = []
    for batch in loader:
        assert batch["x"].is_cuda
        found.append(batch["x"].clone())
    assert [x.tolist() for x in found] == plain
    pinned = next(iter(Loader(FakePlan(length=42), 4, output="torch", pin_memory=True)))
    assert pinned["x"].is_pinned()
