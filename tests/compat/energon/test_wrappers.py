"""Energon's wrappers as views: what they yield, their lengths, and their states."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from itertools import chain, islice
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from helpers.digests import GOLDEN

torch = pytest.importorskip("torch")

from feedmill.compat.energon import (  # noqa: E402
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    homogeneous_concat_mix,
)
from feedmill.compat.energon import loader as loaders  # noqa: E402

DATA: list[str] = []
WHOLE = [f"s{number:02d}" for number in range(13)]
WHERE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module", autouse=True)
def captions(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("captions"))
    image = (fm.open(str(GOLDEN / "captioning" / "ds"), raw=True)[0]).raw("jpg")
    samples = [{"__key__": key, "jpg": image, "txt": f"caption {key}"} for key in WHOLE]
    fm.write(path, samples, max_shard_samples=5, progress=False)
    fields = {"image": "jpg", "caption": "txt"}
    fm.prepare(path, sample_type="CaptioningSample", field_map=fields, progress=False)
    DATA[:] = [path]


def val(batch_size: int | None = None, where: WorkerConfig = WHERE) -> Any:
    return get_val_dataset(DATA[0], split_part="train", worker_config=where, batch_size=batch_size)


def train(batch_size: int | None = None, task: Any = None, **more: Any) -> Any:
    return get_train_dataset(
        DATA[0],
        worker_config=WHERE,
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=task,
        **more,
    )


def keys(items: Any) -> list[Any]:
    return [item.__key__ if hasattr(item, "__key__") else item for item in items]


def upper(sample: Any) -> Any:
    if sample.__key__.endswith("1"):
        raise SkipSample
    sample.caption = sample.caption.upper()
    return sample


def twice(sample: Any) -> Any:
    for number in range(2):
        yield (sample.__key__, number)


def by_last_digit(sample: Any) -> tuple[Any, int | None]:
    return sample.__key__[-1] in "02468", None


def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[first : first + 2] for first in range(0, len(samples), 2)]


VIEWS: dict[str, Any] = {
    "map": lambda: MapDataset(val(), upper, worker_config=WHERE),
    "map of batches": lambda: MapDataset(val(3), keys_of_batch, worker_config=WHERE),
    "map that yields": lambda: MapDataset(val(), twice, worker_config=WHERE),
    "map of batches that yields": lambda: MapDataset(val(2), batch_twice, worker_config=WHERE),
    "map of maps": lambda: MapDataset(MapDataset(val(), twice, worker_config=WHERE), list, worker_config=WHERE),
    "filter": lambda: FilterDataset(val(), filter_fn=is_even, worker_config=WHERE),
    "iterator": lambda: IterMapDataset(val(), every_second, len_map_fn=lambda n: n // 2, worker_config=WHERE),
    "batch": lambda: BatchDataset(val(), 4, keys, worker_config=WHERE),
    "batch of batches": lambda: BatchDataset(val(2), 2, keys, drop_last=True, worker_config=WHERE),
    "groups": lambda: GroupBatchDataset(val(), 2, by_last_digit, keys, worker_config=WHERE),
    "packs": lambda: PackingDataset(val(), 4, pairs, keys, worker_config=WHERE),
    "limit": lambda: LimitDataset(val(), 3, worker_config=WHERE),
    "limit of endless": lambda: LimitDataset(train(), 5, worker_config=WHERE),
    "repeated and limited": lambda: LimitDataset(RepeatDataset(val(3), worker_config=WHERE), 7, worker_config=WHERE),
    "repetitions": lambda: RepeatDataset(val(), repeats=1.5, worker_config=WHERE),
    "concatenation": lambda: ConcatDataset(val(), val(2), worker_config=WHERE),
    "blend": lambda: BlendDataset((val(), 2), (val(2), 1), worker_config=WHERE),
    "mix": lambda: MixBatchDataset((val(1), 1), (val(1), 1), batch_size=3, batch_mix_fn=keys, worker_config=WHERE),
    "epochs": lambda: EpochizeDataset(train(2), 3, worker_config=WHERE),
}


def keys_of_batch(batch: Any) -> list[str]:
    return list(batch.__key__)


def batch_twice(batch: Any) -> Any:
    yield batch.__key__[0]
    yield batch.__key__[-1] + "b"


def is_even(sample: Any) -> bool:
    return int(sample.__key__[-1]) % 2 == 0


def every_second(items: Any) -> Any:
    for number, item in enumerate(items):
        if number % 2:
            yield item


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_resumes_from_its_state_at_every_item(name: str) -> None:
    dataset = VIEWS[name]()
    assert isinstance(dataset, SavableDataset)
    loader = get_savable_loader(dataset)
    assert isinstance(loader, torch.utils.data.DataLoader)
    whole = keys(loader)
    assert len(whole) > 1 and len(loader) == len(dataset) > 0
    if name != "epochs":  # which go on
        assert keys(get_savable_loader(VIEWS[name]())) == whole == keys(loader)
    for stop in range(0, len(whole), 2):
        begun = get_savable_loader(VIEWS[name]())
        first = keys(islice(begun, stop))
        state = json.loads(json.dumps(begun.save_state_rank()))
        resumed = get_savable_loader(VIEWS[name]())
        resumed.restore_state_rank(state)
        assert first + keys(resumed) == whole
        assert resumed.config() == begun.config()


def test_what_views_yield() -> None:
    def items(name: str) -> list[Any]:
        return keys(get_loader(VIEWS[name]()))

    assert items("map") == [key for key in WHOLE if not key.endswith("1")]
    assert items("map of batches") == [WHOLE[first : first + 3] for first in range(0, len(WHOLE), 3)]
    assert items("map that yields") == [(key, number) for key in WHOLE for number in range(2)]
    assert items("map of maps") == [[key, number] for key in WHOLE for number in range(2)]
    assert items("filter") == [key for key in WHOLE if int(key[-1]) % 2 == 0]
    assert items("iterator") == WHOLE[1::2]
    assert items("batch") == [WHOLE[first : first + 4] for first in range(0, len(WHOLE), 4)]
    assert sorted(chain.from_iterable(items("groups"))) == WHOLE
    assert list(chain.from_iterable(items("packs"))) == WHOLE
    assert items("limit") == WHOLE[:3]
    batches = [WHOLE[first : first + 3] for first in range(0, len(WHOLE), 3)]
    assert items("repeated and limited") == (batches * 3)[:7]
    assert items("repetitions") == WHOLE + WHOLE[: len(WHOLE) // 2]
    assert items("concatenation")[: len(WHOLE)] == WHOLE and items("concatenation")[len(WHOLE)] == WHOLE[:2]
    blended = items("blend")
    assert Counter(type(item) for item in blended[:9]) == {str: 6, list: 3}
    assert len(blended) == len(WHOLE) + -(-len(WHOLE) // 2)
    assert sum(map(len, items("mix"))) == 2 * len(WHOLE)


def test_epochs_go_on_and_limits_begin_again() -> None:
    stream = keys(islice(get_loader(train(2)), 6))
    epochs = get_loader(VIEWS["epochs"]())
    assert keys(epochs) + keys(epochs) == stream and len(epochs) == 3
    limited = get_loader(LimitDataset(train(2), 3, worker_config=WHERE))
    assert keys(limited) == keys(limited) == stream[:3]


def test_lengths_of_repeating_data_are_those_of_one_pass() -> None:
    samples = len(WHOLE)
    assert len(train()) == samples and len(train(4)) == len(get_loader(train(4))) == -(-samples // 4)
    assert len(train(4, batch_drop_last=True)) == samples // 4
    assert len(train(4, virtual_epoch_length=99)) == 99
    ranks = [WorkerConfig(rank=rank, world_size=3, num_workers=2) for rank in range(3)]
    assert sum(len(val(None, where)) for where in ranks) == samples
    assert [val(None, ranks[0]).len_worker(number) for number in (0, 1)] == [
        -(-len(val(None, ranks[0])) // 2),
        len(val(None, ranks[0])) // 2,
    ]


def test_hooks_of_views_run_in_workers_and_restore() -> None:
    dataset = BatchDataset(MapDataset(val(), upper, worker_config=WHERE), 4, keys_of_samples, worker_config=WHERE)
    loader = get_loader(dataset)
    assert loader.loader.workers.count == 0 and loader.can_restore_sample()
    batch = next(iter(loader))
    assert all(key == key.upper() for key in batch["captions"])
    assert loader.restore_sample(batch["__restore_key__"]) == batch


def keys_of_samples(samples: list[Any]) -> dict[str, Any]:
    return {"captions": [s.caption for s in samples], "__restore_key__": [s.__restore_key__ for s in samples]}


def test_batches_of_one_type_are_joined() -> None:
    def joined(*kinds: Any) -> Any:
        weights = [(train(1, task), 1) for task in kinds]
        mixed = MixBatchDataset(*weights, batch_size=3, batch_mix_fn=homogeneous_concat_mix, worker_config=WHERE)
        return next(iter(get_loader(mixed)))

    class Plain(DefaultTaskEncoder):
        def encode_batch(self, batch: Any) -> Any:
            return {"image": batch.image}

    assert joined(None, None).image.shape[0] == 3
    assert joined(Plain(), Plain())["image"].shape[0] == 3


def test_errors_of_functions_go_to_the_handler() -> None:
    calls: list[Any] = []
    where = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=lambda *given: calls.append(given))

    def failing(batch: Any) -> Any:
        if "0" in batch.__key__[0][-1:]:
            raise ValueError("no zeros")
        return batch

    got = keys(get_loader(MapDataset(val(1, where), failing, worker_config=where)))
    assert got == [[key] for key in WHOLE if not key.endswith("0")]
    assert {type(error) for error, _, _ in calls} == {ValueError} and calls[0][1].__key__[0].endswith("0")

    def always(_: Any) -> Any:
        raise ValueError("never")

    with pytest.raises(Exception, match="3 items in a row have failed"):
        keys(get_loader(MapDataset(val(1, where), always, failure_tolerance=3, worker_config=where)))


def test_what_cannot_be_a_view() -> None:
    with pytest.raises(ConfigError, match="PackingDataset needs the single samples"):
        get_loader(PackingDataset(val(2), 4, pairs, keys, worker_config=WHERE))
    other = WorkerConfig(rank=1, world_size=2, num_workers=0)
    with pytest.raises(ConfigError, match="worker_config differs"):
        MapDataset(val(), upper, worker_config=other)
    with pytest.warns(UserWarning, match="ShuffleBufferDataset has no effect"):
        assert keys(get_loader(ShuffleBufferDataset(val(), 5, worker_config=WHERE))) == WHOLE
    loader = get_savable_loader(VIEWS["blend"]())
    with pytest.raises(ConfigError, match="not the state of a loader of the same datasets"):
        loader.restore_state_rank(get_savable_loader(VIEWS["concatenation"]()).save_state_rank())
    with pytest.raises(ConfigError, match="no single loader"):
        loader.loader  # noqa: B018
    empty = RepeatDataset(FilterDataset(val(1), filter_fn=lambda _: False, worker_config=WHERE), worker_config=WHERE)
    with pytest.raises(ConfigError, match="an empty dataset cannot be repeated"):
        next(iter(get_loader(empty)))


def test_a_late_item_ends_the_process_if_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    noticed = threading.Event()

    def exit_now(status: int) -> None:
        ended.append(status)
        noticed.set()

    monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    monkeypatch.setattr(os, "_exit", exit_now)
    monkeypatch.setattr(loaders, "_PAUSE", 0)

    def slow(batch: Any) -> Any:
        assert noticed.wait(120)
        return batch

    late = MapDataset(val(1), slow, worker_config=WHERE)
    loader = get_loader(late, watchdog_timeout_seconds=0.2, fail_on_timeout=True)
    assert len(keys(loader)) == len(WHOLE)
    assert ended[:2] == [(os.getpid(), signal.SIGTERM), 1]


def test_without_a_request_no_item_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "_watched", None)
    assert len(keys(get_loader(val(), watchdog_timeout_seconds=0.001))) == len(WHOLE)
