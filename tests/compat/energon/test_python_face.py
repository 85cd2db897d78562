"""Scripts written for Energon with their imports changed: datasets, loaders, task encoders, states."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import multiprocessing
import shutil
import socket
import subprocess
import sys
import textwrap
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, FeedmillError, NotFound, TrustError
from feedmill.indexing.prepare import prepare
from helpers.digests import GOLDEN, expected

torch = pytest.importorskip("torch")

from compat.energon import scripted  # noqa: E402
from feedmill.compat import energon  # noqa: E402
from feedmill.compat.energon import (  # noqa: E402
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    FileStoreCachePool,
    WorkerConfig,
    generic_batch,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    reraise_exception,
    stateless,
    traverse_metadataset,
)
from feedmill.compat.energon.modules import MODULES  # noqa: E402

CAPTIONS = GOLDEN / "captioning" / "ds"
POLY = GOLDEN / "crude_polylithic"
META = GOLDEN / "metadatasets"


def config(rank: int = 0, world: int = 1, workers: int = 0, **more: Any) -> WorkerConfig:
    return WorkerConfig(rank=rank, world_size=world, num_workers=workers, **more)


def train(task: Any, *, path: Any = CAPTIONS, batch_size: int | None = 4, where: Any = None, **more: Any) -> Any:
    return get_train_dataset(
        path,
        worker_config=where or config(),
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=task,
        **more,
    )


def test_the_quickstart() -> None:
    loader = get_loader(
        get_train_dataset(
            CAPTIONS,
            batch_size=1,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=config(workers=2),
        )
    )
    for batch in islice(loader, 5):
        assert isinstance(batch, CaptioningSample) and batch.image.shape[:2] == (1, 3) and len(batch.caption) == 1
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_typed_batches_and_any_layout(workers: int) -> None:
    def keys(world: int, batch_size: int) -> list[list[tuple[str, str]]]:
        loaders = [
            get_savable_loader(train(scripted.CaptioningTask(), where=config(r, world, workers), batch_size=batch_size))
            for r in range(world)
        ]
        steps = zip(*(islice(loader, 24 // world // batch_size) for loader in loaders), strict=True)
        found = [
            sorted((key, tokens) for batch in step for key, tokens in zip(batch.__key__, batch.captions, strict=True))
            for step in steps
        ]
        for loader in loaders:
            loader.close()
        return found

    two = keys(2, 4)
    assert two == keys(1, 8)
    assert sorted(chain.from_iterable(keys(1, 4))) == sorted(chain.from_iterable(two))
    batch = next(iter(get_loader(train(scripted.CaptioningTask()))))
    assert isinstance(batch, scripted.CaptionBatch) and batch.images.shape == (4, 3, 8, 8)
    assert batch.longest == max(map(len, batch.captions)) and batch.__restore_key__[0][0] == "Position"


def test_worker_processes_give_the_same() -> None:
    def images(**options: Any) -> list[Any]:
        loader = get_loader(train(scripted.CaptioningTask(), where=config(workers=2)), **options)
        found = list(islice(loader, 3))
        loader.close()
        return found

    for a, b in zip(images(processes=True), images(processes=False), strict=True):
        assert a.__key__ == b.__key__ and torch.equal(a.images, b.images)


def test_batches_may_be_made_in_the_loop_unless_processes_are_required() -> None:
    dataset = train(scripted.CaptioningTask(), where=config(workers=2))
    chosen = get_loader(dataset).loader.workers
    assert chosen.processes and chosen.adapts
    assert not get_loader(dataset, processes=True).loader.workers.adapts
    assert get_loader(dataset, processes=False).loader.workers.adapts


def test_seed_offset_and_order() -> None:
    def keys(**more: Any) -> list[str]:
        where = config(seed_offset=more.pop("seed_offset", 0))
        return [
            b.__key__[0] for b in islice(get_loader(train(DefaultTaskEncoder(), batch_size=1, where=where, **more)), 20)
        ]

    assert keys() == keys() != keys(seed_offset=5)
    assert keys(shuffle_over_epochs_multiplier=None) != keys()
    assert len(list(get_loader(train(DefaultTaskEncoder(), repeat=False)))) == -(-len_of("train") // 4)


def len_of(split: str) -> int:
    return len(list(get_loader(get_val_dataset(CAPTIONS, split_part=split, worker_config=config(), batch_size=1))))


@pytest.mark.parametrize("workers", [0, 2])
def test_without_repeat_each_loop_is_one_pass(workers: int) -> None:
    loader = get_savable_loader(train(DefaultTaskEncoder(), repeat=False, batch_size=1, where=config(workers=workers)))
    loops = [[key for batch in loader for key in batch.__key__] for _ in range(3)]
    assert loops[0] == loops[1] == loops[2] and len(set(loops[0])) == len(loops[0]) > 2
    begun = [key for batch in islice(loader, 2) for key in batch.__key__]
    state = loader.save_state_rank()
    other = get_savable_loader(train(DefaultTaskEncoder(), repeat=False, batch_size=1))
    other.restore_state_rank(state)
    assert begun + [key for batch in other for key in batch.__key__] == loops[0]
    assert [key for batch in other for key in batch.__key__] == loops[0]
    loader.close()


def test_without_repeat_virtual_epochs_end_with_the_data_and_begin_again() -> None:
    steps = len_of("train") // 4
    loader = get_savable_loader(train(DefaultTaskEncoder(), repeat=False, batch_drop_last=True, virtual_epoch_length=1))
    keys = [[batch.__key__ for batch in loader] for _ in range(2 * steps)]
    assert all(len(loop) == 1 for loop in keys) and keys[:steps] == keys[steps:]


def test_virtual_epochs_go_on() -> None:
    whole = [b.__key__ for b in islice(get_loader(train(DefaultTaskEncoder())), 9)]
    loader = get_savable_loader(train(DefaultTaskEncoder(), virtual_epoch_length=3))
    assert len(loader) == 3
    assert [b.__key__ for _ in range(3) for b in loader] == whole
    left = get_savable_loader(train(DefaultTaskEncoder(), virtual_epoch_length=3))
    assert [b.__key__ for b in islice(left, 2)] == whole[:2] and [b.__key__ for b in left] == whole[2:3]
    other = get_savable_loader(train(DefaultTaskEncoder(), virtual_epoch_length=3))
    other.restore_state_rank(json.loads(json.dumps(left.save_state_rank())))
    assert [b.__key__ for b in other] == whole[3:6]
    states = left.save_state_global(global_dst_rank=0)
    ranks = [get_savable_loader(train(DefaultTaskEncoder(), where=config(r, 2))) for r in range(2)]
    for rank in ranks:
        rank.restore_state_global(states)
    steps = [sorted(a.__key__ + b.__key__) for a, b in zip(*(islice(rank, 2) for rank in ranks), strict=True)]
    assert steps == [sorted(whole[3] + whole[4]), sorted(whole[5] + whole[6])]
    with pytest.raises(ConfigError, match="not the state of a loader in epochs"):
        other.restore_state_rank({"x": 1})
    with pytest.raises(ConfigError, match="seed"):
        get_savable_loader(train(DefaultTaskEncoder(), where=config(seed_offset=1))).restore_state_rank(states[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_begins_anew_and_may_be_limited(workers: int) -> None:
    def val(**more: Any) -> Any:
        return get_val_dataset(
            CAPTIONS, split_part="train", worker_config=config(workers=workers), batch_size=2, **more
        )

    loader = get_loader(val())
    first = [b.__key__ for b in loader]
    assert len(first) == len(loader) and [b.__key__ for b in loader] == first
    next(iter(loader))
    assert [b.__key__ for b in loader] == first
    limited = get_loader(val(limit=2))
    assert [[b.__key__ for b in limited] for _ in range(2)] == [first[:2]] * 2 and len(limited) == 2
    dropped = [b.__key__ for b in get_loader(val(batch_drop_last=True))]
    assert dropped == [keys for keys in first if len(keys) == 2]


def test_validation_over_ranks_gives_every_sample_once() -> None:
    samples = len_of("train")
    for world in (2, 3, 7):
        found = []
        for rank in range(world):
            dataset = get_val_dataset(CAPTIONS, split_part="train", worker_config=config(rank, world), batch_size=3)
            found += [key for batch in get_loader(dataset) for key in batch.__key__]
        assert len(found) == len(set(found)) == samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_validation_leaves_out_what_is_skipped(batch_size: int | None, workers: int) -> None:
    class Skipping(DefaultTaskEncoder):
        def preencode_sample(self, sample: Any) -> Any:
            if sample.__key__.endswith("1"):
                raise energon.SkipSample
            return sample

        def postencode_sample(self, sample: Any) -> Any:
            return {"key": sample.__key__}

    def keys(world: int) -> list[str]:
        found = []
        for rank in range(world):
            where = config(rank, world, workers)
            dataset = get_val_dataset(
                CAPTIONS, split_part="train", worker_config=where, batch_size=batch_size, task_encoder=Skipping()
            )
            loader = get_loader(dataset)
            batches = list(loader)
            assert len(loader) >= len(batches) and [str(b) for b in loader] == [str(b) for b in batches]
            found += [key for batch in batches for key in (batch["key"] if batch_size else [batch["key"]])]
        return sorted(found)

    whole = [s.__key__ for s in get_val(99)]
    assert keys(1) == keys(3) == sorted(key for key in whole if not key.endswith("1"))


@pytest.mark.parametrize("nonmatch", ["error", "skip", "none"])
def test_joins_end_to_end(tmp_path: Path, nonmatch: str) -> None:
    for name in ("joinL", "joinS"):
        shutil.copytree(META / name, tmp_path / name)
    (tmp_path / "join.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        f"    join: [{{path: joinL}}, {{path: joinS, nonmatch: {nonmatch}}}]\n"
        "    joiner: {__module__: megatron.energon, __class__: TextSample}\n"
    )
    if nonmatch == "error":
        with pytest.raises(ConfigError, match=r"has the key '\w+'.*nonmatch: skip"):
            prepare(str(tmp_path / "join.yaml"), progress=False)
        return
    rows = sum(prepare(str(tmp_path / "join.yaml"), progress=False).joins.values())
    dataset = get_val_dataset(tmp_path / "join.yaml", split_part="train", worker_config=config(), batch_size=None)
    samples = list(get_loader(dataset))
    assert len(samples) == rows and {len(s.__sources__) for s in samples} == ({2} if nonmatch == "skip" else {1, 2})
    endless = get_loader(train(None, path=tmp_path / "join.yaml", batch_size=2))
    assert all(len(batch.text) == 2 for batch in islice(endless, 6))


def test_single_samples() -> None:
    samples = list(get_loader(get_val_dataset(CAPTIONS, split_part="train", worker_config=config(), batch_size=None)))
    entry = next(e for e in expected("captioning")["loads"].values() if e["args"] == {"split_part": "train"})
    assert [s.__key__ for s in samples] == [s["key"] for s in entry["samples"]]
    assert all(isinstance(s, CaptioningSample) for s in samples) and isinstance(samples[0].image, torch.Tensor)


@pytest.mark.parametrize("workers", [0, 1])
def test_cookers_with_auxiliary_data_and_a_cache_pool(tmp_path: Path, workers: int) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    dataset = get_val_dataset(
        POLY / "both.yaml",
        split_part="train",
        worker_config=config(workers=workers),
        batch_size=None,
        task_encoder=scripted.CookingTask(),
    )
    samples = list(get_loader(dataset, cache_pool=pool))
    wanted = expected("crude_polylithic")["loads"]["both_cooked"]["samples"]
    assert [s.__key__ for s in samples] == [g["key"] for g in wanted]
    assert [s.__subflavors__ for s in samples] == [g["subflavors"] for g in wanted]
    assert [[(Path(x.dataset_path).name, x.index, x.shard_name) for x in s.__sources__] for s in samples[6:]] == [
        [(x["dataset"], x["index"], x["shard"]) for x in g["sources"]] for g in wanted[6:]
    ]
    assert samples[0].text.endswith(" 0.05") and samples[8].text == "text 0/2null"
    assert samples[8].image.shape == (3, 12, 24) and samples[8].image.dtype == torch.float32
    batch = next(iter(get_loader(train(scripted.CookingTask(), path=POLY / "both.yaml"))))
    assert isinstance(batch, scripted.QA) and batch.image.ndim == 4 and len(batch.__subflavors__) == 4
    pool.close()


def test_crude_data_without_cookers_is_dicts() -> None:
    dataset = get_val_dataset(POLY / "qa.jsonl", worker_config=config(), batch_size=2)
    batch = next(iter(get_loader(dataset)))
    assert batch["__key__"] == ["0", "1"] and batch["json"]["id"] == [0, 1]


def test_packing_grouping_and_hooks_that_yield() -> None:
    packs = next(iter(get_loader(train(scripted.PackingTask(), batch_size=2, packing_buffer_size=12))))
    assert len(packs["keys"]) == 2 and len(packs["keys"][0]) == 3 and packs["length"].shape == (2, 3)
    single = next(iter(get_loader(train(scripted.PackingTask(), batch_size=None, packing_buffer_size=12))))
    assert len(single["keys"]) == 3
    unpacked = next(iter(get_loader(train(scripted.PackingTask(), batch_size=2))))
    assert unpacked["post"] == [True, True]
    assert set(map(len, islice(get_loader(train(scripted.GroupingTask(), batch_size=None)), 5))) == {3}
    found = [p for batch in islice(get_loader(train(scripted.GeneratingTask(), batch_size=5)), 8) for p in batch]
    assert {number for _, number in found} == {0, 1} and len(found) == 40
    for (key, number), (after, next_number) in itertools.pairwise(found):
        assert next_number == 0 or (after, number) == (key, 0)

    with pytest.raises(ConfigError, match="packing requires both"):
        get_loader(train(DefaultTaskEncoder(), packing_buffer_size=4))


def test_encoders_on_top_of_encoders() -> None:
    class Louder(energon.AugmentTaskEncoder):
        def encode_batch(self, batch: Any) -> Any:
            return {"inner": self._task_encoder.encode_batch(batch)}

    batch = next(iter(get_loader(train(Louder(scripted.CaptioningTask())))))
    assert isinstance(batch["inner"], scripted.CaptionBatch) and batch["inner"].longest > 0


def test_seeded_hooks_may_be_called_by_others_and_may_yield() -> None:
    class Over(scripted.CaptioningTask):
        def encode_sample(self, sample: Any) -> Any:
            return super().encode_sample(sample)

    class Yielding(scripted.GeneratingTask):
        @energon.stateless(restore_seeds=True)
        def encode_sample(self, sample: Any) -> Any:
            for number in range(2):
                yield {"key": sample.__key__, "number": (number, int(torch.randint(0, 1 << 30, (1,))))}

    def images(task: Any) -> Any:
        return [b.images if hasattr(b, "images") else b for b in islice(get_loader(train(task)), 4)]

    plain, over = images(scripted.CaptioningTask()), images(Over())
    assert all(torch.equal(a, b) for a, b in zip(plain, over, strict=True))
    assert images(Yielding()) == images(Yielding()) and len({str(b) for b in images(Yielding())}) == 4
    augmented = images(energon.AugmentTaskEncoder(scripted.CaptioningTask()))
    assert all(torch.equal(a, b) for a, b in zip(plain, augmented, strict=True))


class Calling(energon.AugmentTaskEncoder):
    """Calls every hook that it overrides, as the documentation of such encoders does."""

    def cook_crude_sample(self, sample: Any) -> Any:
        return super().cook_crude_sample(sample)

    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


class DrawingByGenerator(DefaultTaskEncoder):
    def encode_sample(self, sample: Any, rng: Any) -> Any:
        return {"key": sample.__key__, "drawn": int(rng.integers(1 << 40))}


class CallingCook(DefaultTaskEncoder):
    def cook_crude_sample(self, sample: Any) -> Any:
        return super().cook_crude_sample(sample)


def test_hooks_may_call_those_that_they_override() -> None:
    def first(task: Any) -> Any:
        return next(iter(get_loader(train(task))))

    assert first(Calling(DrawingByGenerator())) == first(DrawingByGenerator())
    stock, called = first(None), first(CallingCook())
    assert called.__key__ == stock.__key__ and torch.equal(called.image, stock.image)
    assert first(Calling(DefaultTaskEncoder())).__key__ == stock.__key__


def test_parts_and_clips_are_tensors_and_pickles_want_trust(tmp_path: Path) -> None:
    import io
    import pickle

    import feedmill as fm
    from helpers.media_files import sound

    tensor = io.BytesIO()
    torch.save(torch.arange(3), tensor)
    fm.write(
        str(tmp_path / "d"),
        [{"__key__": f"k{i}", "pth": tensor.getvalue(), "pickle": pickle.dumps({"n": i})} for i in range(4)],
        progress=False,
    )

    def first(task: Any = None, **more: Any) -> Any:
        return next(iter(get_loader(train(task, path=tmp_path / "d", shuffle_over_epochs_multiplier=None, **more))))

    batch = first()
    assert torch.equal(batch["pth"][0], torch.arange(3)) and type(batch["pickle"][0]) is bytes
    assert first(trust=True)["pickle"] == {"n": [0, 1, 2, 3]}

    class Careful(DefaultTaskEncoder):
        decoder = energon.SampleDecoder()

    assert type(first(Careful(), trust=True)["pickle"][0]) is bytes
    handle = energon.AVDecoder(io.BytesIO(sound("wav")))
    assert isinstance(handle.get_audio_clips([(0, 0.1)])[0][0], torch.Tensor)
    assert isinstance(energon.SampleDecoder()("a.wav", sound("wav")), energon.AVDecoder)


def test_the_batch_index_counts_on_after_a_resume() -> None:
    whole = [b["at"] for b in islice(get_loader(train(Drawing(), batch_size=2)), 5)]
    loader = get_savable_loader(train(Drawing(), batch_size=2))
    begun = [b["at"] for b in islice(loader, 3)]
    other = get_savable_loader(train(Drawing(), batch_size=2))
    other.restore_state_rank(loader.save_state_rank())
    assert begun + [b["at"] for b in islice(other, 2)] == whole == [(2 * n, n) for n in range(5)]


def test_a_fault_behind_skipped_samples_is_named() -> None:
    class Faulty(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            if sample.__key__ < "000020":
                raise energon.SkipSample
            return sample

        def batch(self, samples: list[Any]) -> Any:
            raise ValueError("my own bug in batch")

    with pytest.raises(FeedmillError, match=r"ValueError: my own bug in batch") as caught:
        list(islice(get_loader(train(Faulty())), 9))
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_has_no_effect_is_said() -> None:
    with pytest.warns(UserWarning, match="restore_error_handler has no effect"):
        config(restore_error_handler=energon.log_exception)
    with pytest.warns(UserWarning, match="shuffle_over_epochs_multiplier=-1 has no effect"):
        train(None, shuffle_over_epochs_multiplier=-1)

    class Building(DefaultTaskEncoder):
        def build_train_datasets(self, **_: Any) -> Any:
            raise AssertionError

    with pytest.raises(ConfigError, match=r"Building\.build_train_datasets is unsupported"):
        train(Building())


def test_types_are_mapped_by_name() -> None:
    class Named(dict[str, Any]):
        pass

    task = DefaultTaskEncoder(encoded_sample_type=dict, batch_type=Named)
    batch = next(iter(get_loader(train(task, batch_size=2))))
    assert batch["image"].shape[0] == 2 and len(batch["__key__"]) == 2
    made = Batch.from_samples(list(get_val(1)), __restore_key__=None)
    assert len(made.__key__) == 1 and len(made.__sources__ or ()) == 1
    from collections import namedtuple

    point = namedtuple("point", "x y")
    grouped = generic_batch([point(torch.ones(2), "a"), point(torch.ones(3), "b")])
    assert grouped.x.tolist() == [[1, 1, 0], [1, 1, 1]] and grouped.y == ["a", "b"]


def get_val(count: int) -> Any:
    return islice(
        get_loader(get_val_dataset(CAPTIONS, split_part="train", worker_config=config(), batch_size=None)), count
    )


def test_error_handlers_are_called_and_mistakes_are_fatal() -> None:
    calls: list[Any] = []

    class Picky(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            if sample.__key__.endswith("3"):
                raise ValueError("not this one")
            return sample

    class Wrong(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            return nothing  # type: ignore[name-defined]  # noqa: F821

    where = config(global_error_handler=lambda *given: calls.append(given))
    loader = get_loader(train(Picky(), where=where))
    keys = [key for batch in islice(loader, 12) for key in batch.__key__]
    assert not any(key.endswith("3") for key in keys) and calls
    error, sample, sources = calls[0]
    assert type(error) is ValueError and str(error) == "not this one"
    assert isinstance(sample, CaptioningSample) and sample.__key__.endswith("3")
    assert sources[0].shard_name and sources[0].index >= 0 and sources[0].file_names
    with pytest.raises(FeedmillError, match="not this one"):
        list(islice(get_loader(train(Picky(), where=config(global_error_handler=reraise_exception))), 20))
    with pytest.raises(FeedmillError, match="NameError: name 'nothing'"):
        next(iter(get_loader(train(Wrong(), where=where))))


def test_metadatasets() -> None:
    pairs = get_val_datasets(META / "blend.yaml", split_part="val", worker_config=config(), batch_size=None)
    apart = [[s.__key__ for s in get_loader(dataset)] for dataset, _ in pairs]
    whole = get_val_dataset(META / "blend.yaml", split_part="val", worker_config=config(), batch_size=None)
    assert [key for keys in apart for key in keys] == [s.__key__ for s in get_loader(whole)]
    assert all(Path(source.url).name.startswith("ds") for _, source in pairs)
    batch = next(iter(get_loader(train(None, path=META / "blend.yaml"))))
    assert len(batch.__key__) == 4
    with pytest.raises(TrustError, match="goldenjoin"):
        train(None, path=META / "join.yaml")
    with pytest.raises(ConfigError, match="dataset_config applies to a single prepared folder only"):
        train(None, path=META / "blend.yaml", dataset_config="x.yaml")
    with pytest.raises(ConfigError, match="unknown argument 'colour'"):
        train(None, colour=3)
    with pytest.raises(NotFound, match="no split 'dev'"):
        train(None, split_part="dev")


@pytest.mark.parametrize("name", ["jsonl_only.yaml", "both.yaml"])
def test_traversed_references(name: str) -> None:
    found = traverse_metadataset(POLY / name)
    wanted = expected("crude_polylithic")["traverse"][name]
    assert [
        {
            "path": Path(each.path).name,
            "split_part": each.split_part,
            "aux": {key: url.name for key, url in each.aux.items()},
            "subflavors": each.subflavors,
        }
        for each in found
    ] == wanted
    with pytest.raises(ConfigError, match="a join is not a single dataset"):
        traverse_metadataset(META / "join.yaml")


def test_decoding_options_and_configs() -> None:
    raw = next(iter(get_loader(train(None, batch_size=None, auto_decode=False, dataset_config="dataset_crude.yaml"))))
    assert isinstance(raw["txt"], bytes)
    pil = next(iter(get_loader(train(DefaultTaskEncoder(), batch_size=None, image_decode="pilrgb"))))
    assert pil.image.mode == "RGB"
    crude = next(iter(get_loader(train(None, batch_size=None, dataset_config="dataset_crude.yaml"))))
    assert "__key__" in crude and {"detail.json", "txt"} <= set(crude)


def test_worker_configs() -> None:
    assert WorkerConfig.default_worker_config(3) == config(workers=3) and config() != config(1, 2)
    assert config().global_rank() == 0
    with pytest.raises(ConfigError, match="differs from that of the dataset"):
        get_loader(train(None), worker_config=config(1, 2))
    with pytest.warns(DeprecationWarning):
        get_loader(train(None), worker_config=config())


def test_names() -> None:
    for name in energon.__all__:
        assert getattr(energon, name) is not None
    with pytest.raises(ImportError, match="has no JoinedWebdatasetFactory: write the join in a metadataset"):
        energon.JoinedWebdatasetFactory  # noqa: B018
    with pytest.raises(AttributeError):
        energon.nonsense  # noqa: B018
    from feedmill.compat.energon.edataclass import edataclass

    assert energon.edataclass is edataclass
    store = energon.WebdatasetFileStore(energon.EPath(POLY) / "images")
    assert len(store["img_1.png"][0]) == 89 and len(energon.SystemFileStore(str(POLY / "sounds")).get("s0.wav")) == 844
    info = energon.SourceInfo(dataset_path=Path("a"), index=3, shard_name="s.tar", file_names=("x",))
    assert (info.dataset_path, info.index, info.shard_name, info.file_names) == ("a", 3, "s.tar", ("x",))
    path = energon.EPath("/a/b") / "c"
    assert (path, path.name, path.parent) == ("/a/b/c", "c", "/a/b")
    loader = get_loader(train(None))
    assert loader.can_restore_sample() and loader.config()["batch_size"] == 4
    for key in (("Webdataset", 1), [], "x", None, ()):
        with pytest.raises(ConfigError, match="not a restore key"):
            loader.restore_sample(key)


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_of_the_original_are_importable(name: str) -> None:
    full = f"feedmill.compat.energon.{name}"
    module = importlib.import_module(full)
    assert importlib.util.find_spec(full) is module.__spec__ and sys.modules[full] is module
    for each in MODULES[name].split():
        assert getattr(module, each) is getattr(energon, each)
    with pytest.raises(AttributeError, match=f"'{full}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{full}.nonsense")


@pytest.mark.parametrize(
    "line",
    [
        "import feedmill.compat.energon.flavors.webdataset.sample_decoder as m; m.SampleDecoder",
        "import feedmill.compat.energon.cache.base; feedmill.compat.energon.cache.base.Lazy",
        "from feedmill.compat.energon.task_encoder import *; (TaskEncoder, cooker, stateless)",
        "from feedmill.compat.energon.flavors import ocr; ocr.OCRSample",
        "import pickle; pickle.loads(b'cfeedmill.compat.energon.flavors.ocr\\nOCRSample\\n.')",
    ],
)
def test_ways_to_import_in_a_process_of_their_own(line: str) -> None:
    subprocess.run([sys.executable, "-c", line], check=True)


SCRIPT = """
    from feedmill.compat.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

    class Task(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return {"key": sample.__key__}

    dataset = get_train_dataset(
        "%s", worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2), batch_size=4,
        shuffle_buffer_size=10, max_samples_per_sequence=None, virtual_epoch_length=3, task_encoder=Task())
    loader = get_savable_loader(dataset)
    print([batch["key"] for batch in loader])
"""


def test_a_script_without_a_guard_runs(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT % CAPTIONS))
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    expected_keys = [b.__key__ for b in islice(get_loader(train(DefaultTaskEncoder())), 3)]
    assert ran.stdout.strip() == str(expected_keys)


def _rank(rank: int, port: int, out: Any) -> None:
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    where = WorkerConfig.default_worker_config(0)
    loader = get_savable_loader(train(DefaultTaskEncoder(), where=where))
    first = [b.__key__ for b in islice(loader, 2)]
    states = loader.save_state_global(global_dst_rank=1)
    after = [b.__key__ for b in islice(loader, 2)]
    again = get_savable_loader(train(DefaultTaskEncoder(), where=where))
    again.restore_state_global(states, src_rank=1)
    resumed = [b.__key__ for b in islice(again, 2)]
    out.put((rank, where.rank, first, states is None, after, resumed))
    distributed.destroy_process_group()


def test_states_of_ranks_over_torch_distributed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    out = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, port, out)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = sorted(out.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    assert [(a, b) for a, b, *_ in found] == [(0, 0), (1, 1)]
    assert found[0][2] != found[1][2] and [f[3] for f in found] == [True, False]
    assert all(after == resumed for *_, after, resumed in found)


class Drawing(DefaultTaskEncoder):
    """Says where it is, and draws random numbers."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        return {
            "key": sample.__key__,
            "restore": sample.__restore_key__,
            "at": (self.current_sample_index, self.current_batch_index),
            "drawn": float(torch.rand(())),
        }

    def batch(self, samples: list[Any]) -> Any:
        at = (self.current_sample_index, self.current_batch_index)
        return {"at": at, "samples": samples, "__restore_key__": [each["restore"] for each in samples]}


@pytest.mark.parametrize("workers", [0, 2])
def test_hooks_know_where_they_are_and_batches_are_made_again(workers: int) -> None:
    seen: dict[int, str] = {}
    for rank in (0, 1):
        loader = get_loader(train(Drawing(), where=config(rank, 2, workers)))
        for number, batch in enumerate(islice(loader, 4)):
            places = [each["at"] for each in batch["samples"]]
            assert places == sorted(places) and batch["at"] == places[0]
            assert all(number * 8 <= place < number * 8 + 8 and of == number for place, of in places)
            seen |= {each["at"][0]: each["key"] for each in batch["samples"]}
            again = get_loader(train(Drawing()))
            assert again.restore_sample(batch["__restore_key__"])["samples"][2]["drawn"] == batch["samples"][2]["drawn"]
            assert again.restore_sample(places[1][0])["samples"][0]["key"] == batch["samples"][1]["key"]
        loader.close()
    assert sorted(seen) == list(range(32))


def test_stock_batches_are_made_again() -> None:
    loader = get_loader(train(None))
    batch = next(iter(loader))
    again = loader.restore_sample(batch.__restore_key__)
    assert again.__key__ == batch.__key__ and torch.equal(again.image, batch.image)
    single = get_loader(train(None, batch_size=None))
    sample = next(iter(single))
    assert single.restore_sample(sample.__restore_key__).__key__ == sample.__key__
    crude = get_loader(train(None, batch_size=None, dataset_config="dataset_crude.yaml"))
    sample = next(iter(crude))
    assert crude.restore_sample(sample["__restore_key__"])["__key__"] == sample["__key__"]

    class Grouped(DefaultTaskEncoder):
        def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
            return 0, None

    grouped = get_loader(train(Grouped()))
    assert not grouped.can_restore_sample()
    with pytest.raises(ConfigError, match="cannot be restored by their keys"):
        grouped.restore_sample(3)

    packed = get_loader(train(scripted.PackingTask(), batch_size=2, packing_buffer_size=12))
    first, second = islice(packed, 2)
    assert packed.loader.again_packs([(0, 0), (0, 1)])["keys"] == first["keys"] != second["keys"]
    with pytest.raises(ConfigError, match="there are no packs"):
        packed.loader.again_packs([(0, 99)])


def test_failure_tolerance_is_the_failures_in_a_row_that_end_a_run() -> None:
    told: list[Any] = []
    where = config(global_error_handler=lambda *about: told.append(about))

    class Picky(DefaultTaskEncoder):
        bad: frozenset[str] = frozenset()

        @stateless(failure_tolerance=2)
        def encode_sample(self, sample: Any) -> Any:
            if sample.__key__ in self.bad:
                raise ValueError("broken")
            return sample

    first, second, third, _ = next(iter(get_loader(train(None)))).__key__
    task = Picky()
    task.bad = frozenset({first, third})
    assert len(next(iter(get_loader(train(task, where=where)))).__key__) == 4 and len(told) == 2
    task.bad = frozenset({first, second})
    with pytest.raises(FeedmillError, match="2 samples in a row have failed"):
        next(iter(get_loader(train(task, where=where))))


class Same(DefaultTaskEncoder):
    """What the stock encoder does, sample by sample."""

    def encode_sample(self, sample: Any) -> Any:
        return sample


@pytest.mark.parametrize("how", [{}, {"image_decode": "torchrgb8"}, {"image_decode": "rgb8"}])
@pytest.mark.parametrize("path", [CAPTIONS, GOLDEN / "sample_types" / "vqa", GOLDEN / "sample_types" / "imgcls"])
def test_batches_without_hooks_are_those_that_samples_make(path: Path, how: dict[str, Any]) -> None:
    def first(task: Any, workers: int = 0) -> list[Any]:
        loader = get_loader(train(task, path=path, where=config(workers=workers), **how))
        batches = list(islice(loader, 3))
        loader.close()
        return batches

    fast_ones, slow_ones = [*first(None), *first(None, 2)], first(Same())
    for fast, slow in zip(fast_ones, slow_ones + slow_ones, strict=True):
        assert type(fast) is type(slow)
        for field in dataclasses.fields(slow):
            a, b = getattr(fast, field.name), getattr(slow, field.name)
            assert type(a) is type(b), field.name
            if isinstance(b, torch.Tensor):
                assert a.dtype == b.dtype and torch.equal(a, b), field.name
            elif isinstance(b, list) and hasattr(b[0], "shape"):
                assert all((x == y).all() for x, y in zip(a, b, strict=True))
            else:
                assert a == b, field.name


def test_a_bad_picture_in_a_batch_without_hooks_gets_a_substitute(tmp_path: Path) -> None:
    shutil.copytree(CAPTIONS, tmp_path / "ds")
    shard = min((tmp_path / "ds").rglob("*.tar"))
    data = shard.read_bytes()
    at = data.index(b"\xff\xd8\xff")
    shard.write_bytes(data[:at] + b"\xff\xd8" + bytes(400) + data[at + 402 :])
    told: list[Any] = []
    where = config(global_error_handler=lambda *about: told.append(about))
    batch = next(iter(get_loader(train(None, path=tmp_path / "ds", where=where))))
    assert len(batch.__key__) == 4 and told
    with pytest.raises(FeedmillError, match="cannot be decoded"):
        bad = config(global_error_handler=reraise_exception)
        next(iter(get_loader(train(None, path=tmp_path / "ds", where=bad))))
