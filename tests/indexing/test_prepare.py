"""Prepare as people use it: again after adding shards, killed, on a full disk, with wrong options."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from tests.helpers.range_server import range_server

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.formats.energon.prepared import read_info, sidecar
from feedmill.formats.energon.sidecar import read_splits
from feedmill.indexing import scanning
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore, open_store
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm
from helpers.digests import GOLDEN
from helpers.tars import make_shards, write_tar


def keys(root: Path, split: str | None = None) -> list[str]:
    return [sample.key for sample in open_dataset(root, split=split, raw=True)]


def meta(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / ".nv-meta").iterdir() if path.is_file()}


def test_a_second_run_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_shards(tmp_path, [4, 4, 4, 4, 4])
    first = prepare(str(root), split_ratio="3,1,1", progress=False)
    assert (first.scanned, first.reused, first.samples) == (5, 0, 20)
    write_tar(root / "shards" / "a_new.tar", [("new0.txt", b"0"), ("new1.txt", b"1")])
    changed = root / "shards" / "shard_001.tar"
    write_tar(changed, [("other.txt", b"x")])
    read: list[str] = []
    original = scanning.mapped
    monkeypatch.setattr(scanning, "mapped", lambda store, path, **kw: read.append(path) or original(store, path, **kw))
    second = prepare(str(root), progress=False)
    assert sorted(read) == ["shards/a_new.tar", "shards/shard_001.tar"]
    assert (second.scanned, second.reused, second.samples) == (2, 4, 4 * 4 + 1 + 2)
    info = read_info(LocalStore(root))
    assert list(info) == [f"shards/shard_00{i}.tar" for i in range(5)] + ["shards/a_new.tar"]  # known numbers stay
    splits = read_splits(LocalStore(root))
    assert splits is not None
    assert splits.parts["train"][-1] == "shards/a_new.tar"
    assert len(splits.parts["val"]) == len(splits.parts["test"]) == 1
    assert not check(str(root), progress=False).findings
    assert keys(root, "train")[-2:] == ["new0", "new1"]


def test_the_index_does_not_depend_on_how_it_came_about(tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    make_shards(grown, [3, 4])
    prepare(str(grown), split_ratio="1,0,0", progress=False)
    for root in (grown, fresh):
        make_shards(root, [3, 4, 5])
    os.utime(grown / "shards" / "shard_000.tar")
    for root in (grown, fresh):
        prepare(str(root), split_ratio="1,0,0", workers=1 if root == grown else 4, progress=False)
    ours, theirs = meta(grown), meta(fresh)
    for name in (".info.json", "split.yaml", "index.sqlite"):
        assert ours[name] == theirs[name], name
    records = [sidecar.read(LocalStore(root)) for root in (grown, fresh)]
    assert [r.digest for r in records[0].values()] == [r.digest for r in records[1].values()]


def test_excluded_samples_survive_preparing_again(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [3, 3])
    prepare(str(root), split_ratio="1,0,0", progress=False)
    split = root / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude:\n- shards/shard_000.tar/s00001"))
    prepare(str(root), split_ratio="1,0,0", progress=False)
    assert keys(root, "train") == ["s00000", "s00002", "s00003", "s00004", "s00005"]
    assert len(open_dataset(root, split="train")) == 5


KILLED = """
import os, signal, sys, threading, time
from feedmill.indexing import scanning
from feedmill.indexing.prepare import prepare
original = scanning.mapped
def slow(store, path, **options):
    time.sleep(float(sys.argv[3]))
    return original(store, path, **options)
scanning.mapped = slow
threading.Timer(float(sys.argv[2]), os.kill, [os.getpid(), signal.SIGKILL]).start()  # no other process has to wake up
prepare(sys.argv[1], split_ratio="1,0,0", workers=2, progress=False)
os._exit(0)
"""


@pytest.mark.parametrize("prepared_before", [False, True])
def test_killed_at_any_moment_the_old_index_stays_and_the_next_run_finishes(
    tmp_path: Path, prepared_before: bool
) -> None:
    root = make_shards(tmp_path / "ds", [5] * 8)
    if prepared_before:
        prepare(str(root), split_ratio="1,0,0", progress=False)
        old = keys(root)
    make_shards(root, [5] * 30)
    moments = random.Random(5)
    killed = 0
    for attempt in range(4):
        shard = 0.2 if attempt < 2 else 0.02  # the first ones cannot get through, the last ones are killed near the end
        arguments = [str(root), str(moments.uniform(0, 0.25)), str(shard)]
        killed += warm.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -signal.SIGKILL
        if prepared_before:
            now = keys(root)
            assert now in (old, [f"s{n:05d}" for n in range(150)])
    assert killed >= 2
    report = prepare(str(root), split_ratio="1,0,0", progress=False)
    assert report.samples == 150
    assert keys(root) == [f"s{n:05d}" for n in range(150)]
    assert not check(str(root), progress=False).findings
    left = [path for path in root.rglob("*") if path.name.endswith((".scanned", ".feedmill-write-test"))]
    assert left == []


def test_an_interrupted_run_is_continued_from_its_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_shards(tmp_path, [5] * 6)
    original = scanning.mapped
    read: list[str] = []

    def dies(store: object, path: str, **options: object) -> object:
        if path.endswith("004.tar"):
            raise KeyboardInterrupt
        read.append(path)
        return original(store, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(scanning, "mapped", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare(str(root), split_ratio="1,0,0", workers=1, progress=False)
    units = root / ".feedmill-work" / "shards.scanned"
    units.write_bytes(units.read_bytes() + b"torn")  # as a kill in the middle of a write leaves it
    first = list(read)
    assert len(first) >= 4
    read.clear()
    monkeypatch.setattr(scanning, "mapped", lambda s, p, **kw: read.append(p) or original(s, p, **kw))
    report = prepare(str(root), split_ratio="1,0,0", progress=False)
    assert set(read) == {"shards/shard_004.tar", "shards/shard_005.tar"}
    assert report.reused == 4
    assert not check(str(root), progress=False).findings


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("chattr") is None, reason="root ignores permissions, and there is no chattr"
)
def test_a_read_only_folder_is_refused_before_scanning(tmp_path: Path) -> None:
    root = make_shards(tmp_path / "ds", [3])
    run = ["chattr", "+i", str(root)] if os.geteuid() == 0 else ["chmod", "a-w", str(root)]
    if subprocess.run(run, capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable flag")
    try:
        with pytest.raises(StorageError, match="permission denied"):
            prepare(str(root), split_ratio="1,0,0", progress=False)
    finally:
        subprocess.run([run[0], "-i" if "chattr" in run else "u+w", str(root)], check=True)
    assert not (root / ".nv-meta").exists() or not list((root / ".nv-meta").iterdir())


def test_a_folder_that_refuses_to_be_written_to_is_refused_before_scanning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, on any machine and for root too: the system's refusal is a stand-in."""
    root = make_shards(tmp_path / "ds", [3])

    mkdir = os.mkdir

    def refuse(path: str, *rest: int, **more: int) -> None:
        if os.fspath(path).startswith(str(root)):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        mkdir(path, *rest, **more)

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(scanning, "mapped", lambda *_, **__: pytest.fail("a shard was read"))
    with pytest.raises(StorageError, match="permission denied"):
        prepare(str(root), split_ratio="1,0,0", progress=False)


def test_a_full_disk_keeps_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_shards(tmp_path, [3, 3])
    prepare(str(root), split_ratio="1,0,0", progress=False)
    before = meta(root)
    make_shards(root, [3, 3, 3])
    from feedmill.formats.energon import index as energon_index

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(energon_index, "write_index", full)
    with pytest.raises(FeedmillError, match=r"the disk is full.*run the same command again"):
        prepare(str(root), split_ratio="1,0,0", progress=False)
    now = meta(root)
    assert {name: now[name] for name in before} == before
    assert keys(root) == [f"s{n:05d}" for n in range(6)]
    monkeypatch.undo()
    assert prepare(str(root), split_ratio="1,0,0", progress=False).samples == 9


WRONG = [
    ({"split_ratio": "8,-1,1"}, ConfigError, "invalid split ratio"),
    ({"split_ratio": "a,b"}, ConfigError, "invalid split ratio"),
    ({"split_ratio": "0,0,0"}, ConfigError, "invalid split ratio"),
    ({"split_parts": ["train:nope_.*"]}, ConfigError, r"matches none of 2 shards .*Write '\.\*'"),
    ({"split_parts": ["train_*"]}, ConfigError, "NAME:REGEX"),
    ({"split_parts": ["train:("]}, ConfigError, "not a regular expression"),
    ({"exclude": "("}, ConfigError, "not a regular expression"),
    ({"exclude": "shard"}, NotFound, "no tar files"),
    ({"sample_type": "CaptionSample"}, ConfigError, "(?i)did you mean.*CaptioningSample"),
    ({"sample_type": "ImageSample", "field_map": {"image": "jpg"}}, ConfigError, "no sample has a part 'jpg'"),
    ({"sample_type": "CaptioningSample", "field_map": {"image": "txt"}}, ConfigError, "caption"),
    ({"sample_type": "TextSample", "field_map": {"text": "txt", "tetx": "txt"}}, ConfigError, "tetx"),
    ({"sample_type": "CrudeWebdataset", "field_map": {"a": "txt"}}, ConfigError, "cannot have a field map"),
    ({"tar_index_only": True}, NotFound, "not prepared"),
    ({"sample_type": "CrudeWebdataset", "dataset_yaml_name": "split.yaml"}, ConfigError, "'split.yaml'"),
    ({"sample_type": "CrudeWebdataset", "dataset_yaml_name": "index.sqlite"}, ConfigError, "'index.sqlite'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_options_are_refused_and_nothing_is_written(
    options: dict, error: type[Exception], message: str, tmp_path: Path
) -> None:
    root = make_shards(tmp_path, [2, 2])
    with pytest.raises(error, match=message):
        prepare(str(root), **{"split_ratio": None, **options}, progress=False)
    assert not (root / ".nv-meta" / ".info.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"split_ratio": "x"},
        {"split_ratio": [1, 1, 1, 1]},
        {"split_parts": ["train"]},
        {"split_parts": ["train:("]},
        {"split_parts": ["train:nope"]},
        {"split_parts": ["train:*1.tar"], "on_error": "skip"},
        {"sample_type": "TextSample", "field_map": {}},
        {"dataset_yaml_name": ""},
        {"dataset_yaml_name": "../x.yaml"},
        {"dataset_yaml_name": "split.yaml"},
        {},
    ],
)
def test_what_needs_no_shard_is_judged_before_any_is_read(
    options: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_shards(tmp_path, [2, 2])
    (root / ".nv-meta").mkdir()
    if not options:
        (root / ".nv-meta" / "split.yaml").write_text("split_parts: 3")
    monkeypatch.delattr("feedmill.indexing.prepare_tars.scan_all")
    with pytest.raises(ConfigError):
        prepare(str(root), **options, progress=False)
    assert [path.name for path in (root / ".nv-meta").iterdir()] == ([] if options else ["split.yaml"])


@pytest.mark.parametrize("url", ["missing", "missing.jsonl", "empty"])
def test_a_wrong_path_is_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=url):
        prepare(str(tmp_path / url), progress=False)


@pytest.mark.parametrize("name", ["{a,b}.tar", "x{0..2}.tar", "a\udcff.tar"])
def test_shards_that_the_index_could_not_name_are_refused_before_scanning(name: str, tmp_path: Path) -> None:
    write_tar(tmp_path / name, [("0.txt", b"")])
    with pytest.raises(ConfigError, match="invalid shard name") as caught:
        prepare(str(tmp_path), split_ratio="1,0,0", progress=False)
    assert caught.value.file == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_names_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    from helpers.tars import tar_bytes

    root = tmp_path / "ds"
    root.mkdir()
    raw = tar_bytes([("caf\xe9.txt", b"1")], form=1)
    (root / "0.tar").write_bytes(raw.replace("caf\xe9".encode(), b"caf\xff\xfe"))
    fixed = bytearray((root / "0.tar").read_bytes())
    fixed[148:156] = b" " * 8
    fixed[148:156] = f"{sum(fixed[:512]):06o}\0 ".encode()
    (root / "0.tar").write_bytes(fixed)
    with pytest.raises(DataError, match=r"0\.tar 'caf.*\.txt' at byte 0: the member's name is not valid UTF-8"):
        prepare(str(root), split_ratio="1,0,0", progress=False)
    assert not list(root.rglob("*.idx"))  # an index of before would not fit it
    assert len(open_dataset(root, raw=True)) == 1  # still readable without an index


def test_a_sample_loader_template_is_written_and_runs_only_when_trusted(tmp_path: Path) -> None:
    from feedmill.errors import TrustError

    root = make_shards(tmp_path, [2], parts=("txt",))
    prepare(str(root), split_ratio="1,0,0", sample_type="TextSample", progress=False)
    loader = root / ".nv-meta" / "sample_loader.py"
    assert 'text=raw["txt"]' in loader.read_text()
    with pytest.raises(TrustError):
        open_dataset(root)
    (sample,) = open_dataset(root, trust=True).read([1])
    assert json.loads(sample.text)["n"] == 1
    edited = loader.read_text().replace("raw dict", "raw parts")
    loader.write_text(edited)
    prepare(str(root), split_ratio="1,0,0", sample_type="TextSample", progress=False)
    assert loader.read_text() == edited  # a person's work is not overwritten


def test_shuffled_tars_follow_pythons_generator(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1] * 10)
    prepare(str(root), split_ratio="5,3,2", shuffle_tars=True, progress=False)
    shards = [f"shards/shard_{i:03d}.tar" for i in range(10)]
    random.Random(42).shuffle(shards)
    splits = read_splits(LocalStore(root))
    assert splits is not None
    assert splits.parts == {"train": shards[:5], "val": shards[5:8], "test": shards[8:]}


def test_an_object_store_is_prepared_in_place(tmp_path: Path, s3_bucket: str) -> None:
    root = make_shards(tmp_path, [3, 4])
    url = f"{s3_bucket}/ds"
    remote = open_store(url)
    for path in sorted(root.rglob("*.tar")):
        remote.write_bytes(path.relative_to(root).as_posix(), path.read_bytes())
    report = prepare(url, split_ratio="1,1,0", sample_type="TextSample", field_map={"text": "txt"}, progress=False)
    assert report.samples == 7
    assert json.loads(open_dataset(url, split="val")[3].text)["n"] == 6
    assert prepare(url, progress=False).reused == 2
    assert not check(url, progress=False).findings


def test_the_index_can_be_read_by_whoever_reads_the_shards(tmp_path: Path) -> None:
    root = make_shards(tmp_path / "ds", [1, 1])
    for path, mode in (
        (root, 0o755),
        (root / "shards" / "shard_000.tar", 0o644),
        (root / "shards" / "shard_001.tar", 0o440),
    ):
        path.chmod(mode)
    before = os.umask(0o077)
    try:
        prepare(str(root), split_ratio="1,0,0", progress=False)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in root.rglob("*")}
    assert modes[".nv-meta"] == 0o755
    assert modes["index.sqlite"] == modes[".info.json"] == modes["shard_000.tar.idx"] == 0o644
    assert modes["shard_001.tar.idx"] == 0o640


def test_media_metadata_is_kept_and_completed_when_shards_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from feedmill.samples import mediacollection as media
    from feedmill.samples.media import MediaFilter

    png = (GOLDEN / "negative" / "glob_filter" / "0.tar").read_bytes()
    root = tmp_path / "ds"
    root.mkdir()
    (root / "0.tar").write_bytes(png)
    prepare(str(root), media=MediaFilter.parse(glob="*.png"), progress=False)
    renamed = bytearray(png)
    for at in range(0, len(png), 512):  # the same members under other keys
        if png[at + 257 : at + 262] == b"ustar":
            renamed[at : at + 1] = b"Z"
            renamed[at + 148 : at + 156] = b" " * 8
            renamed[at + 148 : at + 156] = f"{sum(renamed[at : at + 512]):06o}\0 ".encode()
    (root / "1.tar").write_bytes(renamed)
    probed: list[str] = []
    original = media.probe_json
    monkeypatch.setattr(media, "probe_json", lambda name, *rest: probed.append(name) or original(name, *rest))
    report = prepare(str(root), progress=False)
    assert (report.reused, report.media, len(probed)) == (1, 2, 1)
    assert probed[0].startswith("Z")
    both = prepare(str(root), media=MediaFilter.parse(extension=True), progress=False)
    assert both.media >= 2
    with sqlite3.connect(root / ".nv-meta" / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM media_metadata").fetchone() == (2,)
        filters = connection.execute("SELECT strategy, patterns FROM media_filters ORDER BY 1 DESC").fetchall()
    assert filters == [("GLOB", "*.png"), ("EXTENSION", "")]


def test_a_shard_in_a_bucket_is_fetched_once_for_its_hash_and_its_samples(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [40])
    data = (root / "shards" / "shard_000.tar").read_bytes()
    with range_server() as server:
        server.objects["a/shard_000.tar"] = data
        store = RemoteStore("s3://bkt/a", **server.options)
        found = scanning.scan_one(store, store.stat("shard_000.tar"), digest=True, blocks=True)
        words = sidecar.with_words(store, {"shard_000.tar": found.record})  # which adds nothing, so it asks for nothing
        assert words == {"shard_000.tar": found.record}
        assert sum(min(end, len(data)) - begin for begin, end in server.asked) == len(data)
    here = LocalStore(root / "shards")
    expected = scanning.scan_one(here, here.stat("shard_000.tar"), digest=True)
    assert found.record.digest == expected.record.digest == xxhash.xxh3_128_hexdigest(data)
    asked_for = sidecar.with_words(here, {"shard_000.tar": expected.record})["shard_000.tar"]
    assert (found.record.word, found.record.middle, found.record.blocks) == (
        asked_for.word,
        asked_for.middle,
        asked_for.blocks,
    )
    assert found.scan.keys == expected.scan.keys and len(found.scan.keys) == 40


def test_names_of_shards_tell_the_splits(tmp_path: Path) -> None:
    """As they do before it is prepared; a test must not become training data by that."""

    def shards(*names: str) -> None:
        for name in names:
            write_tar(tmp_path / f"{name}.tar", [(f"{name}.txt", b"1")])

    shards("train-0", "test-0")
    assert prepare(tmp_path, progress=False).splits == {"train": 1, "test": 1}
    shards("dev-0", "test-1", "train-1", "more")
    report = prepare(tmp_path, progress=False)
    assert report.splits == {"train": 2, "val": 1, "test": 2}
    assert "1 file (more.tar) in no split: names of other shards tell splits" in report.warnings[0]
    assert keys(tmp_path, "test") == ["test-0", "test-1"] and keys(tmp_path, "val") == ["dev-0"]
    assert prepare(tmp_path, split_ratio="1", progress=False).splits["train"] == 6
    shards("test-2")
    assert prepare(tmp_path, progress=False).splits["train"] == 7, "the user's splits are not those of the names"
    card = (
        "---\nconfigs: [{config_name: a, data_files: [{split: train, path: t*}, {split: held, path: more.tar}]}]\n---\n"
    )
    (tmp_path / "README.md").write_text(card)
    shutil.rmtree(tmp_path / ".nv-meta")
    assert prepare(tmp_path, progress=False).splits == {"train": 5, "held": 1}
