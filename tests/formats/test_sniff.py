"""What a path is: token data beside everything else that has the same endings."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.img2dataset import is_img2dataset
from feedmill.formats.sniff import sniff
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore, open_store
from feedmill.tokens.verbs.merge import merge
from helpers.nanoset_golden import documents
from helpers.tars import make_shards, write_tar


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = LocalStore(tmp_path)
    with write_ds(store, "ds/x.ds", 2, tokenizer_name="t") as ds:
        ds.add(*documents([2, 3]))
    with write_megatron(store, "megatron/x", "u2") as megatron:
        megatron.add(*documents([2, 3]))
    with write_dolma(store, "dolma/x.npy", "u2") as dolma:
        dolma.add(*documents([2, 3]))
    return tmp_path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("ds", "ds"),
        ("ds/x.ds", "ds"),
        ("megatron", "megatron"),
        ("megatron/x.bin", "megatron"),
        ("megatron/x.idx", "megatron"),
        ("dolma", "dolma"),
        ("dolma/x.npy", "dolma"),
    ],
)
def test_token_data_is_recognised(root: Path, path: str, kind: str) -> None:
    assert sniff(str(root / path)).kind == kind
    dataset = open_dataset(root / path)
    assert (dataset.format, len(dataset)) == (kind, 2)
    assert dataset[1]["input_ids"].tolist() == [3, 4, 5]
    with pytest.raises(NotFound, match="token files have no splits"):
        open_dataset(root / path, split="train")


def test_where_there_is_no_split_the_advice_can_be_followed(tmp_path: Path) -> None:
    root = make_shards(tmp_path / "d", [2, 2])
    tar = root / "shards/shard_000.tar"
    with pytest.raises(NotFound, match=rf"Open it without a split, or run 'feedmill prepare {tar.parent}'"):
        open_dataset(tar, split="train")
    with pytest.raises(NotFound, match=r"their folder can have splits\. Open it without a split\.$"):
        open_dataset(f"{root}/shards/*.tar", split="train")
    with pytest.raises(NotFound, match=f"the folder is not prepared. Run 'feedmill prepare {root}'"):
        open_dataset(root, split="train")
    prepare(str(tar.parent), progress=False)
    assert len(open_dataset(tar)) == 2 and len(open_dataset(tar.parent, split="train")) == 4


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "a.jsonl", "a.tar"])
def test_a_folder_is_a_folder_whatever_its_name_ends_with(tmp_path: Path, name: str) -> None:
    root = str(make_shards(tmp_path / name, [2, 2]))
    with pytest.raises(NotFound, match="the folder is not prepared"):
        open_dataset(root, split="train")
    assert len(open_dataset(root)) == 4
    assert prepare(root, split_ratio="1,1", progress=False).splits == {"train": 1, "val": 1, "test": 0}
    assert len(open_dataset(f"file://{root}", split="val")) == 2 and not check(root).findings
    assert Recipe.load(root).plan().report(10) is not None
    (tmp_path / "empty.yaml").mkdir()
    with pytest.raises(NotFound, match="it is empty"):
        open_dataset(tmp_path / "empty.yaml")


@pytest.mark.parametrize("name", ["x.ds", "x.npy", "x.bin", "x.idx", "x.pbin"])
def test_a_token_file_that_is_not_there_is_called_a_file(tmp_path: Path, s3_bucket: str, name: str) -> None:
    for path in (str(tmp_path / name), f"{s3_bucket}/{name}"):
        with pytest.raises(NotFound, match=r"there is no such file\.") as caught:
            open_dataset(path)
        assert (caught.value.file, caught.value.fix) == (path, "Check the path.")
        assert [str(finding) for finding in check(path).findings] == [str(caught.value)]
        with pytest.raises(NotFound, match=r"there is no such file\."):
            merge([path], f"{tmp_path}/m.pbin")


def test_a_folder_in_an_object_store_may_be_named_like_a_file(s3_bucket: str) -> None:
    with write_ds(open_store(f"{s3_bucket}/all.ds"), "x.ds", 2, tokenizer_name="t") as ds:
        ds.add(*documents([2, 3]))
    assert len(open_dataset(f"{s3_bucket}/all.ds")) == 2


def test_lines_beside_other_data_are_no_dataset(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
        (tmp_path / f"{name}.jsonl.idx").write_bytes(bytes(8) + b"\3" + bytes(7))  # not of Megatron
    assert sniff(str(tmp_path)).kind == "documents"
    (tmp_path / "c.csv").write_bytes(b"")
    with pytest.raises(NotFound, match=r"Open the file itself, e\.g\. .*/a\.jsonl"):
        sniff(str(tmp_path))


def test_a_folder_of_files_that_are_not_megatron_s_names_one(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "model.idx").write_bytes(pickle.dumps([(0, 5)]))  # of another tool
    with pytest.raises(NotFound, match=r"Open the file itself, e\.g\. .*/model\.bin"):
        sniff(str(tmp_path))


def test_a_folder_of_megatron_files_is_one_dataset(root: Path) -> None:
    store = LocalStore(root)
    with write_megatron(store, "megatron/a/y", "u2") as megatron:
        megatron.add(*documents([4, 5, 6]))
    found = open_dataset(str(root / "megatron"))
    assert found.lengths.tolist() == [4, 5, 6, 2, 3]
    assert (found.describe()["sequences"], found.describe()["shards"]) == (5, 2)
    (root / "megatron/a/y.idx").unlink()
    with pytest.raises(NotFound, match=r"y\.idx"):
        open_dataset(str(root / "megatron"))


def test_the_index_of_lines_is_no_token_data(tmp_path: Path) -> None:
    (tmp_path / "raw.idx").write_bytes(pickle.dumps([(0, 5)]))
    with pytest.raises(ConfigError, match="but of lines or shards"):
        sniff(str(tmp_path / "raw.idx"))


def test_an_empty_manifest_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").touch()
    with pytest.raises(NotFound, match="it lists no shards") as caught:
        sniff(str(tmp_path))
    assert caught.value.kind == "empty-file"


def test_a_file_of_another_kind_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(
        NotFound, match=r"notes\.txt: this kind of file is not a dataset\. To make .* use \'feedmill import"
    ):
        sniff(str(tmp_path / "notes.txt"))
    (tmp_path / "recipe.yaml").write_text("source: x")
    with pytest.raises(ConfigError, match="'feedmill plan', or load"):
        sniff(str(tmp_path / "recipe.yaml"))
    with pytest.raises(NotFound, match=r"none\.yaml: there is no such file"):
        sniff(str(tmp_path / "none.yaml"))


def test_documents_with_attributes_name_the_verbs_that_read_them(tmp_path: Path) -> None:
    """Dolma's documents."""
    for folder in ("documents", "attributes"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.jsonl.gz").write_bytes(b"")
    verbs = "convert, tokenize, tag, dedupe, filter, documents decontaminate, documents stat"
    with pytest.raises(NotFound, match=f"These are documents: use serve, {verbs}"):
        sniff(str(tmp_path))


def test_records_without_a_description_name_a_way(tmp_path: Path) -> None:
    name = "robots.tfrecord-00000-of-00002"
    (tmp_path / name).write_bytes(b"data")
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(NotFound, match=r"Open the folder with features\.json"):
            sniff(str(place))


def test_the_first_version_of_lerobot_is_named(tmp_path: Path) -> None:
    for name in ("meta_data/info.json", "train/data-00000-of-00001.arrow", "videos/0.mp4"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(
        NotFound, match=r"Version 1 of LeRobot is not supported\. Convert it to a LeRobot dataset of version"
    ):
        sniff(str(tmp_path))


def lines(path: Path, count: int, **more: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"file": path.name, "n": n, **more}) + "\n" for n in range(count)))


def test_names_of_files_tell_the_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `load_dataset` reads such a folder; a recipe must not train on its test."""
    for name, count in (("train-00000-of-00002", 2), ("train-00001-of-00002", 3), ("test-00000-of-00001", 1)):
        lines(tmp_path / f"data/{name}.jsonl", count)
    whole = open_dataset(tmp_path)
    assert (len(whole), whole.split, dict(whole.splits)) == (6, None, {"train": 5, "test": 1})
    assert "it has splits by the names of its files (train 2, test 1), and all files are read" in caplog.text
    caplog.clear()
    assert len(open_dataset(tmp_path, split="*")) == 6
    train = open_dataset(tmp_path, split="train")
    assert ([sample.key for sample in train], train.split) == (list("01234"), "train")
    assert train[4]["json"] == {"file": "train-00001-of-00002.jsonl", "n": 2}
    assert pickle.loads(pickle.dumps(train)).fingerprint() == train.fingerprint() != whole.fingerprint()
    used = {}
    for split in ({}, {"split": "*"}, {"split": "test"}):
        report = fm.plan({"source": {"path": str(tmp_path), **split}})
        used[split.get("split")] = report.facts["sources"][0]["samples"]
    assert used == {None: 5, "*": 6, "test": 1}
    assert not caplog.text
    with pytest.raises(NotFound, match="no split 'val': by the names of its files, there are train, test"):
        open_dataset(tmp_path, split="val")


@pytest.mark.parametrize("kind", ["tar", "parquet", "npy", "pbin"])
def test_splits_by_names_in_other_formats(kind: str, tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2)):
        path = tmp_path / split / f"0.{kind}"
        path.parent.mkdir()
        if kind == "tar":
            write_tar(path, [(f"{split}{n}.json", b"{}") for n in range(count)])
        elif kind == "parquet":
            pq.write_table(pa.table({"n": range(count)}), path)
        elif kind == "npy":
            np.save(path, np.arange(2 * count, dtype=np.uint16))
        else:
            with write_pbin(LocalStore(tmp_path), f"{split}/0.pbin", 2) as out:
                out.add(np.arange(count), np.ones(count, np.int64))
    windows = {"seq_len": 2, "reuse_last_target": False} if kind == "npy" else {}
    found = {split: len(open_dataset(tmp_path, split=split, **windows)) for split in ("train", "validation")}
    assert found == {"train": 3, "validation": 2}
    whole = open_dataset(tmp_path, **windows)
    assert len(whole) == 5 and dict(whole.splits) == ({} if windows else found)
    assert "train 1, validation 1" in whole.notes[0]


def test_a_card_of_the_hub_tells_the_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recipe takes those of the default configuration, as `load_dataset` does, or must name one."""
    for name, count in (("en/a", 2), ("en/b", 3), ("fr/a", 4), ("more", 1)):
        lines(tmp_path / f"{name}.jsonl", count)
    card = tmp_path / "README.md"
    en = "{config_name: en, default: true, data_files: [{split: train, path: en/a*}, {split: held, path: en/b*}]}"
    card.write_text(f"---\nconfigs: [{en}, {{config_name: fr, data_files: 'fr/*'}}]\n---\n")

    def samples(**split: str) -> int:
        return fm.plan({"source": {"path": str(tmp_path), **split}}).facts["sources"][0]["samples"]

    assert (samples(), samples(split="held"), samples(split="fr/train"), samples(split="*")) == (2, 3, 4, 10)
    assert (
        "1 file (more.jsonl) not read: in no split by the head of its README.md, and 'train' was opened" in caplog.text
    )
    assert dict(open_dataset(tmp_path).splits) == {"train": 2, "held": 3, "fr/train": 4}
    card.write_text(card.read_text().replace("default: true, ", ""))
    with pytest.raises(
        NotFound, match="en/train, en/held, fr/train, of the configurations en, fr, and none is the default"
    ):
        samples()
    assert samples(split="en/train") == 2
    card.write_text("---\nconfigs: [{\n---\n")
    assert samples(split="*") == 10
    with pytest.raises(ConfigError, match=r"README\.md: not YAML"):
        samples()


def test_files_of_no_split_and_patterns_over_splits_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train", "test", "more"):
        lines(tmp_path / f"{name}.jsonl", 2)
    assert fm.plan({"source": {"path": str(tmp_path)}}).facts["sources"][0]["samples"] == 2
    assert "1 file (more.jsonl) not read: in no split by the names of its files" in caplog.text
    caplog.clear()
    assert len(open_dataset(str(tmp_path / "*.jsonl"))) == 6 and "(train 1, test 1), and all files" in caplog.text
    caplog.clear()
    assert len(open_dataset(str(tmp_path / "t*n.jsonl"))) == 2 and not caplog.text


def test_files_whose_names_tell_nothing_have_no_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("training", "training2", "deep/contest"):
        lines(tmp_path / f"{name}.jsonl", 1)
    shutil.move(tmp_path / "training.jsonl", tmp_path / "pretraining.jsonl")
    assert not open_dataset(tmp_path / "deep").splits and not caplog.text
    lines(tmp_path / "only/train-1.jsonl", 1)
    lines(tmp_path / "only/train-2.jsonl", 1)
    assert not open_dataset(tmp_path / "only").splits and not caplog.text


def test_files_with_splits_of_their_own_are_opened_one_by_one(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 4)
    lines(tmp_path / "b.jsonl", 4)
    prepare(str(tmp_path / "b.jsonl"), split_ratio="2,1,1", progress=False)
    with pytest.raises(ConfigError, match=r"b\.jsonl: it has splits of its own \(train, val, test\)"):
        open_dataset(tmp_path)
    with pytest.raises(ConfigError, match="it has splits of its own"):
        open_dataset(str(tmp_path / "*.jsonl"))


def test_a_folder_of_img2dataset_is_known_by_its_own_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(*_: object, **__: object) -> None:
        raise AssertionError("the files of all folders are listed")

    (tmp_path / "below").mkdir()
    (tmp_path / "below/00000_stats.json").write_text("{}")
    monkeypatch.setattr(LocalStore, "files", files)
    assert is_img2dataset(LocalStore(tmp_path)) is None
    (tmp_path / "00007_stats.json").write_text("{}")
    assert is_img2dataset(LocalStore(tmp_path)) == ""
    assert is_img2dataset(LocalStore(tmp_path / "missing")) is None
