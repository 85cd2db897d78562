"""Energon's factories, `load_dataset`, and factories of users, which run only under trust."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError, TrustError
from helpers.digests import GOLDEN

torch = pytest.importorskip("torch")

from feedmill.compat.energon.dataset_config import get_dataset_from_config  # noqa: E402
from feedmill.compat.energon.flavors.webdataset.config import MAIN_FOLDER_NAME  # noqa: E402
from feedmill.compat.energon.metadataset.loader_interface import DatasetBlendMode  # noqa: E402

from feedmill.compat import energon  # noqa: E402
from feedmill.compat.energon import (  # noqa: E402
    BaseWebdatasetFactory,
    CaptioningSample,
    CaptioningWebdataset,
    CrudeJsonlDatasetFactory,
    CrudeWebdataset,
    DefaultCrudeJsonlDatasetFactory,
    DefaultDecoderWebdatasetFactory,
    EPath,
    StandardWebdatasetFactory,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
)

KEYS = [f"s{number:02d}" for number in range(12)]
FIELDS = {"image": "jpg", "caption": "txt"}
WHERE = WorkerConfig(rank=0, world_size=1, num_workers=0)


class Loud(DefaultDecoderWebdatasetFactory[CaptioningSample]):
    """A factory as users write it, with its own decoder."""

    __sample_type__ = CaptioningSample

    def __init__(self, path: Any, *, auto_decode: bool = True, **options: Any) -> None:
        super().__init__(path, auto_decode=auto_decode, **options)
        self._decoder = self._decode

    def _decode(self, raw: dict[str, Any]) -> dict[str, Any]:
        if raw["__key__"] == "s03":
            raise ValueError("no")
        return {**raw, "txt": raw["txt"].decode().upper()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = fm.open(str(GOLDEN / "captioning" / "ds"), raw=True)[0].raw("jpg")
    path = tmp_path / "d"
    samples = [{"__key__": key, "jpg": image, "txt": f"caption {key}"} for key in KEYS]
    fm.write(str(path), samples, pattern="parts/data-%d.tar", max_shard_samples=4, progress=False)
    for name in (path / MAIN_FOLDER_NAME).iterdir():
        name.unlink()
    return path


@pytest.fixture
def prepared(folder: Path) -> Path:
    shards = sorted(str(name.relative_to(folder)) for name in folder.rglob("*.tar"))
    parts, counts = BaseWebdatasetFactory.prepare_dataset(
        folder, shards, split_parts_ratio=[("train", 1.0)], shuffle_seed=None
    )
    assert parts == {"jpg", "txt"} and counts == [(name, 4) for name in shards]
    kind = "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}"
    text = f"{kind}\nfield_map: {json.dumps(FIELDS)}\nsubflavors: {{from: yaml}}\n"
    (folder / MAIN_FOLDER_NAME / "dataset.yaml").write_text(text)
    return folder


def keys(dataset: Any) -> list[str]:
    return [sample.__key__ for sample in get_loader(dataset)]


def test_prepare_dataset_refuses_what_it_does_not_do(folder: Path) -> None:
    shards = ["parts/data-{0..2}.tar"]
    for options in ({"split_config": "x.yaml"}, {"shuffle_seed": 7}, {"fix_duplicates": True}):
        with pytest.raises(ConfigError, match="prepare_dataset does not support"):
            BaseWebdatasetFactory.prepare_dataset(folder, shards, split_parts_ratio=[("train", 1)], **options)
    with pytest.raises(ConfigError, match="a ratio is for train, val and test"):
        BaseWebdatasetFactory.prepare_dataset(folder, shards, split_parts_ratio=[("extra", 1.0)])


def test_the_factory_of_a_description(prepared: Path) -> None:
    factory = get_dataset_from_config(
        prepared, training=False, worker_config=WHERE, sample_type=CaptioningSample, subflavors={"more": 1}
    )
    assert factory.subflavors == {"from": "yaml", "more": 1} and len(factory) == 12
    assert factory.paths[0].name == "d" and factory.as_file_store()["s01.txt"][0] == b"caption s01"
    dataset = factory.build()
    assert keys(dataset) == KEYS == keys(dataset) and len(dataset) == 12
    shuffled = get_dataset_from_config(prepared, worker_config=WHERE).build()
    assert sorted(keys(shuffled)) == KEYS and keys(shuffled) != KEYS
    with pytest.raises(ConfigError, match="the samples are no VQASample"):
        get_dataset_from_config(prepared, worker_config=WHERE, sample_type=energon.VQASample)


@pytest.mark.parametrize("workers", [0, 2])
def test_factories_in_python(prepared: Path, workers: int) -> None:
    where = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    options: Any = {"training": False, "worker_config": where, "subflavors": {"a": 1}}
    typed = CaptioningWebdataset(prepared, field_map=FIELDS, **options)
    standard = StandardWebdatasetFactory(prepared, sample_type=CaptioningSample, field_map=FIELDS, **options)
    for factory in (typed, standard):
        samples = list(get_loader(factory.build()))
        assert [sample.__key__ for sample in samples] == KEYS
        assert samples[0].image.dtype == torch.float32 and samples[0].__subflavors__ == {"a": 1}
        assert samples[0].__sources__[0].index == 0 and isinstance(samples[0], CaptioningSample)
    crude = list(get_loader(CrudeWebdataset(prepared, part_filter=["txt"], **options).build()))
    assert crude[2]["txt"] == "caption s02" and "jpg" not in crude[2] and crude[2]["__subflavors__"] == {"a": 1}
    with pytest.raises(TypeError, match=r"CaptioningWebdataset has no option of this name \(did you mean 'subset'\?\)"):
        CaptioningWebdataset(prepared, field_map=FIELDS, subst=1)
    with pytest.raises(TrustError, match="run its own code"):
        CaptioningWebdataset(prepared, sample_loader="load.py", part_filter=["txt"])
    with pytest.raises(ConfigError, match="either 'field_map' or 'sample_loader'"):
        CaptioningWebdataset(prepared)


def test_jsonl(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "rows.jsonl") == 2
    factory = CrudeJsonlDatasetFactory(tmp_path / "rows.jsonl", training=False, worker_config=WHERE)
    assert [row["json"].strip() for row in get_loader(factory.build())] == [b'{"n": 1}', b'{"n": 2}']
    decoded = DefaultCrudeJsonlDatasetFactory(tmp_path / "rows.jsonl", training=False, worker_config=WHERE)
    assert [row["json"] for row in get_loader(decoded.build())] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("allowed", ["argument", "environment"])
def test_a_factory_of_the_user_runs_under_trust(prepared: Path, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = f"__module__: {__name__}\n__class__: Loud\nfield_map: {json.dumps(FIELDS)}\nsubflavors: {{kind: loud}}\n"
    (prepared / MAIN_FOLDER_NAME / "dataset.yaml").write_text(named)
    with pytest.raises(TrustError, match="asks to run 'Loud'"):
        get_train_dataset(prepared, worker_config=WHERE, batch_size=2)
    more: dict[str, Any] = {"trust": True} if allowed == "argument" else {}
    if not more:
        monkeypatch.setenv("FEEDMILL_ENERGON_TRUST", "1")
    (prepared / "mix.yaml").write_text("splits:\n  train:\n    datasets: [{path: ., subflavors: {outer: 1}}]\n")
    for path, subflavors in ((prepared, {"kind": "loud"}), (prepared / "mix.yaml", {"kind": "loud", "outer": 1})):
        batches = list(islice(get_loader(get_train_dataset(path, worker_config=WHERE, batch_size=4, **more)), 6))
        captions = {key: caption for b in batches for key, caption in zip(b.__key__, b.caption, strict=True)}
        assert captions == {key: f"CAPTION {key.upper()}" for key in KEYS if key != "s03"}
        assert all(part == subflavors for b in batches for part in b.__subflavors__)
    strict = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=energon.reraise_exception)
    failing = get_val_dataset(prepared, split_part="train", worker_config=strict, batch_size=1, **more)
    with pytest.raises(FeedmillError, match="Loud failed: ValueError: no"):
        list(get_loader(failing))


def test_a_class_that_is_no_factory_is_refused(prepared: Path) -> None:
    (prepared / MAIN_FOLDER_NAME / "dataset.yaml").write_text("__module__: pathlib\n__class__: Path\n")
    with pytest.raises(ConfigError, match=r"pathlib\.Path is not a dataset class that Feedmill knows"):
        get_train_dataset(prepared, worker_config=WHERE, batch_size=2, trust=True)


def test_the_datasets_of_a_metadataset(prepared: Path) -> None:
    inner = "splits:\n  train:\n    datasets: [{path: ., weight: 1}, {path: ., weight: 3, subflavors: {b: 2}}]\n"
    (prepared / "inner.yaml").write_text(inner)
    outer = "splits:\n  train:\n    blend: [{path: inner.yaml, weight: 4}, {path: ., weight: 1}]\n"
    (prepared / "outer.yaml").write_text(f"__class__: MetadatasetV2\n{outer}")
    found = load_dataset(prepared / "outer.yaml").get_datasets(training=False, split_part="train", worker_config=WHERE)
    assert found.blend_mode is DatasetBlendMode.DATASET_WEIGHT
    assert [loaded.weight for loaded in found.datasets] == [0.2, 0.6, 0.2]
    assert [loaded.dataset.subflavors.get("b") for loaded in found.datasets] == [None, 2, None]
    assert keys(found.datasets[1].dataset.build()) == KEYS
    repeated = "splits:\n  train:\n    blend_epochized: [{path: ., repetitions: 2}, {path: ., repetitions: 0.5}]\n"
    (prepared / "repeated.yaml").write_text(f"__class__: MetadatasetV2\n{repeated}")
    counted = load_dataset(prepared / "repeated.yaml").get_datasets(
        training=True, split_part="train", worker_config=WHERE, subflavors={"x": 1}
    )
    assert counted.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [loaded.repetitions for loaded in counted.datasets] == [2, 0.5]
    assert counted.datasets[0].dataset.subflavors["x"] == 1
    single = load_dataset(prepared).get_datasets(training=True, split_part="train", worker_config=WHERE)
    assert single.blend_mode is DatasetBlendMode.NONE and single.datasets[0].weight is None
    assert [ref.split_part for ref in load_dataset(prepared / "outer.yaml").traverse(split_part="train")] == [
        "train"
    ] * 3


def test_splits_are_what_the_file_says(prepared: Path) -> None:
    from feedmill.compat.energon.metadataset.metadataset_v2 import AuxDatasetReference, AuxFilesystemReference

    (prepared / "said.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: ., weight: 3, subflavors: {a: 1}, aux: {media: 'filesystem://media', more: .}}\n"
        "      - join: [{path: .}, {path: ., nonmatch: skip}]\n"
        "        joiner: {__module__: a, __function__: b}\n"
        "  val: {path: ., split_part: train}\n"
    )
    splits = load_dataset(prepared / "said.yaml").splits
    first, second = splits["train"].blend
    assert (first.path, first.weight, first.subflavors) == (EPath(prepared), 3, {"a": 1})
    assert first.aux == {
        "media": AuxFilesystemReference(fs_path=EPath(prepared / "media")),
        "more": AuxDatasetReference(path=EPath(prepared)),
    }
    assert [part.nonmatch for part in second.join] == [None, "skip"] and second.joiner == {
        "__module__": "a",
        "__function__": "b",
    }
    assert (splits["val"].path, splits["val"].split_part, splits["val"].aux) == (EPath(prepared), "train", None)
    (prepared / "bad.yaml").write_text((prepared / "said.yaml").read_text().replace("weight", "wait"))
    with pytest.raises(ConfigError, match="wait"):
        _ = load_dataset(prepared / "bad.yaml").splits
