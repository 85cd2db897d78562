"""Several small batches are read at once in the loop: the same batches, errors and states, and nothing waits longer."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tars import write_tar

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading import batches as batches_module
from feedmill.loading import workers
from feedmill.loading.batches import BatchMaker, MadeBatch, Work, _apart
from feedmill.loading.workers import Bundles, Pace, Workers
from feedmill.planning.plan import Plan
from feedmill.storage import LocalStore
from helpers.durations import examples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("bundles"), np.random.default_rng(0)
    for shard in range(3):
        samples = [[(f"{shard}{i:03d}.bin", rng.bytes(int(rng.integers(1, 2000))))] for i in range(90)]
        write_tar(
            root / "tars" / f"{shard}.tar", [file for sample in samples for file in sample], form=tarfile.USTAR_FORMAT
        )
    with write_pbin(LocalStore(root), "a.pbin", 2) as writer:
        writer.add(rng.integers(0, 60_000, 64 * 803, dtype=np.uint16), np.full(64, 803))
    return root


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Read as many batches at once as is allowed, however long that takes; the numbers of positions of each read."""
    monkeypatch.setattr(workers, "SECONDS_TOGETHER", 1e9)
    monkeypatch.setattr(workers, "MOST_SMALL", 1)
    reads: list[int] = []
    for name in ("read", "read_batch"):
        inner = getattr(Plan, name)

        def noted(self: Plan, positions: Any, *args: Any, _inner: Any = inner) -> Any:
            found = _inner(self, positions, *args)
            if found is not None:
                reads.append(len(positions))
            return found

        monkeypatch.setattr(Plan, name, noted)
    return reads


COLUMNS = ("row", "position", "source", "index", "epoch")
KINDS = ("samples", "parts", "columns", "targets", "mixed")


def plan_of(root: Path, kind: str, shuffle: str = "block") -> Plan:
    if kind in ("samples", "parts"):
        return fm.Plan.over(fm.open(root / "tars", raw=True, decode=None), shuffle=shuffle, epochs=2)
    if kind == "mixed":
        sources = [fm.open(root / "a.pbin", seq_len=length, positions=True) for length in (128, 128)]
        return fm.Plan.over(sources, weights=[1, 2], shuffle=shuffle)
    return fm.Plan.over(fm.open(root / "a.pbin", seq_len=128), shuffle=shuffle, epochs=2)


def loader_of(plan: Plan, kind: str, batch_size: int, **options: Any) -> fm.Loader:
    if kind == "samples":
        options = {"output": "samples", **options}
    if kind == "targets":
        options = {"collate": fm.tokens.Targets(), **options}
    return fm.Loader(plan, batch_size, **{"rank": 0, "world_size": 1, "workers": 0, **options})


def content(batch: Any) -> Any:
    if isinstance(batch, list):
        return [(sample.key, {name: sample.raw(name) for name in sample}, sample.source) for sample in batch]
    shown = {name: value for name, value in batch.items() if name != "__labels__"}
    return {name: (str(v.dtype), v.tolist()) if isinstance(v, np.ndarray) else v for name, v in shown.items()}


@settings(deadline=None, max_examples=examples(25))
@given(
    kind=st.sampled_from(KINDS),
    shuffle=st.sampled_from(["none", "block", "global"]),
    batch_size=st.sampled_from([1, 7, 16, 64]),
    world=st.sampled_from([(0, 1), (1, 3)]),
    remainder=st.sampled_from(["drop", "pad"]),
    stop=st.integers(1, 12),
    steps=st.integers(1, 14),
)
def test_the_stream_and_its_states_are_those_of_batches_read_alone(
    root: Path, kind: str, shuffle: str, batch_size: int, world: tuple[int, int], remainder: str, stop: int, steps: int
) -> None:
    rank, world_size = world
    pads = kind != "samples" or remainder != "pad"
    options = {"rank": rank, "world_size": world_size, "remainder": remainder if pads else "drop"}
    plan = plan_of(root, kind, shuffle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "MOST_TOGETHER", 1)
        patch.setattr(workers, "MOST_SMALL", 1)
        alone = [content(batch) for batch in islice(loader_of(plan, kind, batch_size, **options), stop + steps)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "SECONDS_TOGETHER", 1e9)
        first = loader_of(plan, kind, batch_size, **options)
        begun = [content(batch) for batch in islice(first, stop)]
        state = first.state_dict()
        second = loader_of(plan, kind, batch_size, **options)
        second.load_state_dict(state)
        rest = [content(batch) for batch in islice(second, steps)]
    assert begun + rest == alone


@pytest.mark.parametrize("kind", KINDS)
def test_small_batches_are_read_together(root: Path, eager: list[int], kind: str) -> None:
    batches = list(islice(loader_of(plan_of(root, kind), kind, 16), 18))
    assert len(batches) == 18
    assert eager[:2] == [16, 16] and eager[2:6] == [64] * 4, "the first two show how long they take"


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_many_batches_of_small_windows_are_made_at_once(
    root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr(workers, "MOST_SMALL", 64)
    loader = loader_of(plan_of(root, "columns"), "columns", 2, output=output)
    batches = list(islice(loader, 60))
    assert eager == [2, 2, 8, 128]
    assert loader.position == 120 and loader.metrics.batches == 60 and loader.metrics.samples == 120
    assert loader.state_dict()["position"] == 120
    monkeypatch.setattr(workers, "MOST_TOGETHER", 1)
    monkeypatch.setattr(workers, "MOST_SMALL", 1)
    alone = list(islice(loader_of(plan_of(root, "columns"), "columns", 2, output=output), 60))
    for batch, other in zip(batches, alone, strict=True):
        assert list(batch) == list(other) and batch["__key__"] == other["__key__"]
        assert type(batch["input_ids"]) is type(other["input_ids"])
        assert batch["input_ids"].tolist() == other["input_ids"].tolist()
    if output == "torch":
        assert batches[50]["input_ids"].untyped_storage().nbytes() == batches[50]["input_ids"].nbytes


def test_an_iteration_that_ends_gives_none_of_the_batches_that_it_has_made(
    root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_SMALL", 64)
    loader = loader_of(plan_of(root, "columns"), "columns", 2)
    batches = iter(loader)
    begun = [content(next(batches)) for _ in range(30)]
    loader.close()
    with pytest.raises(FeedmillError, match="ended by"):
        next(batches)
    rest = [content(batch) for batch in islice(loader, 20)]
    assert begun + rest == [content(b) for b in islice(loader_of(plan_of(root, "columns"), "columns", 2), 50)]


def test_slow_reads_stay_alone(root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SECONDS_TOGETHER", 0.0)
    list(islice(loader_of(plan_of(root, "samples"), "samples", 16), 12))
    assert eager == [16] * 12


def test_a_busy_machine_reads_as_much_together(root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    taken: list[int] = []

    class Busy(Maker):
        clock, work = 1.0, 1e-4

        def read_together(self, steps: Any) -> Any:
            taken.append(len(steps))
            return super().read_together(steps)

        def __call__(self, step: Any, read: Any = None) -> MadeBatch:
            return MadeBatch(step, step, seconds={"read": self.clock}, work=self.work)

    list(Bundles(Busy(), range(20)))  # type: ignore[arg-type]
    assert taken[:4] == [4] * 4, "others had the processor"
    taken.clear()
    Busy.work = 1.0
    list(Bundles(Busy(), range(20)))  # type: ignore[arg-type]
    assert not taken, "the reads themselves take long"


def test_work_is_of_the_processor_unless_the_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    late = iter(range(0, 1_000_000, 1_000))
    monkeypatch.setattr(batches_module.time, "perf_counter", lambda: float(next(late)))
    waits = iter([7, 7, 7, 8])
    monkeypatch.setattr(batches_module, "_waits", lambda: next(waits))
    assert Work().seconds() < 900, "nothing was waited for: the others' seconds do not count"
    assert Work().seconds() == 1_000, "as for a disk"
    monkeypatch.setattr(batches_module, "_waits", lambda: None)
    assert Work().seconds() == 1_000, "a system that does not count it"


@pytest.mark.skipif(batches_module._OF_THREAD is None, reason="this system does not count what threads wait for")
def test_a_wait_is_work() -> None:
    work = Work()
    time.sleep(0.002)
    assert work.seconds() >= 0.002


@pytest.mark.parametrize("kind", ["parts", "samples"])
def test_batches_without_further_steps_are_made_with_their_first(root: Path, eager: list[int], kind: str) -> None:
    loader = loader_of(plan_of(root, kind), kind, 16)
    batches = iter(loader)
    begun = [content(next(batches)) for _ in range(4)]
    assert eager == [16, 16, 64] and loader.position == 64 and loader.metrics.samples == 64
    made = loader_of(plan_of(root, kind), kind, 16, transform=lambda sample: sample) if kind == "samples" else None
    assert made is None or [content(batch) for batch in islice(made, 4)] == begun


@pytest.mark.parametrize("kind", ["columns", "targets"])
def test_batches_are_apart_in_memory_and_begin_as_arrays_of_their_own_do(
    root: Path, eager: list[int], kind: str
) -> None:
    batches = list(islice(loader_of(plan_of(root, kind), kind, 64), 10))
    assert max(eager) > 64
    for batch in batches:
        for value in batch.values():
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous and value.flags.writeable
                assert value.nbytes < 1 << 16 or value.ctypes.data % 64 == 0
    kept = content(batches[3])
    for batch in (*batches[:3], *batches[4:]):
        for value in batch.values():
            if isinstance(value, np.ndarray):
                value[...] = 0
    assert content(batches[3]) == kept


def test_an_error_comes_at_its_batch_and_names_its_sample(
    root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(root, "samples", "none")
    inner = Plan.read

    def read(self: Plan, positions: Any, *args: Any) -> Any:
        if 100 in np.asarray(positions).tolist():
            raise FeedmillError("cannot be read", file="here")
        return inner(self, positions, *args)

    monkeypatch.setattr(Plan, "read", read)
    batches = iter(loader_of(plan, "samples", 16))
    assert len(list(islice(batches, 6))) == 6, "positions 0 to 95 come"
    with pytest.raises(FeedmillError, match="cannot be read") as caught:
        next(batches)
    assert "100" in str(caught.value)


def test_a_sample_that_fails_is_replaced_as_ever(root: Path, eager: list[int]) -> None:
    def transform(sample: Any) -> Any:
        if sample.key.endswith("7"):
            raise ValueError("not this one")
        return sample

    def seen(most: int) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "MOST_TOGETHER", most)
            loader = loader_of(plan_of(root, "samples"), "samples", 16, transform=transform, on_error="substitute")
            return [content(batch) for batch in islice(loader, 12)]

    assert seen(4) == seen(1)


def test_labels_are_those_of_each_batch(root: Path, eager: list[int]) -> None:
    def labels(most: int) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "MOST_TOGETHER", most)
            loader = loader_of(plan_of(root, "columns"), "columns", 16, labels=True)
            return [
                (content(batch), [getattr(loader.labels, name).tolist() for name in COLUMNS])
                for batch in islice(loader, 12)
            ]

    assert labels(4) == labels(1)


class Maker(BatchMaker):
    """Makes numbers of steps; `alone` counts those that were read alone."""

    is_plain = True

    def __init__(self, fails: bool = False) -> None:
        self.together: list[int] = []
        self.fails = fails

    def read_together(self, steps: Any) -> Any:
        self.together.append(len(steps))
        return None if self.fails else [None] * len(steps)

    def __call__(self, step: Any, read: Any = None) -> MadeBatch:
        if step == 13:
            raise StopIteration
        return MadeBatch(step, step, seconds={"read": 1e-6})


def test_steps_that_are_not_ready_are_not_waited_for() -> None:
    taken: list[int] = []

    def steps() -> Iterator[int]:
        for step in range(12):
            taken.append(step)
            yield step

    ready = 1
    batches = Bundles(Maker(), steps(), lambda: ready)  # type: ignore[arg-type]
    for wanted in range(6):
        assert next(batches).batch == wanted
        assert len(taken) <= wanted + 2
    ready = 100
    assert [made.batch for made in batches] == list(range(6, 12))


def test_what_the_steps_raise_comes_after_the_batches_before_it() -> None:
    def steps() -> Iterator[int]:
        yield from range(5)
        raise FeedmillError("no more")

    batches = Bundles(Maker(), steps())  # type: ignore[arg-type]
    assert [next(batches).batch for _ in range(5)] == list(range(5)) and batches.begun
    with pytest.raises(FeedmillError, match="no more"):
        next(batches)


def test_a_stop_of_the_maker_does_not_end_the_iteration_silently() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Bundles(Maker(), range(20)))  # type: ignore[arg-type]


def test_reads_that_fail_together_become_rare() -> None:
    maker = Maker(fails=True)
    assert len(list(Bundles(maker, range(100, 1_000)))) == 900  # type: ignore[arg-type]
    assert len(maker.together) == 3, "after 2, 70 and 330 batches"


def test_columns_that_are_not_rows_are_not_cut() -> None:
    rows = np.zeros((8, 128), np.int64)
    assert _apart(rows, [0, 4, 8]) and _apart(list("abcdefgh"), [0, 4, 8])
    assert not _apart(rows[:7], [0, 4, 8]) and not _apart(memoryview(b"12345678"), [0, 4, 8])
    large = np.zeros((8, 8 * 1025 + 1), np.int64)  # the second batch would begin at other than 64 bytes
    assert _apart(large, [0, 8]) and not _apart(large, [0, 4, 8])


def test_bytes_of_columns() -> None:
    assert workers._size(np.zeros((2, 3))) == 48 and workers._size([None, "ab", 3, b"c", True, 0.5]) == 3


def test_a_change_to_workers_keeps_the_order(root: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(root, "columns")
    alone = [content(batch) for batch in loader_of(plan, "columns", 16)]
    turn = iter(range(1_000_000))

    def moves(self: Pace, *_: Any) -> bool:
        if next(turn) % 5 == 4:
            self.here = not self.here
            return True
        return False

    monkeypatch.setattr(Pace, "moves", moves)
    loader = loader_of(plan, "columns", 16, workers=Workers(2, adapt=True))
    assert [content(batch) for batch in loader] == alone
    assert max(eager) > 16
