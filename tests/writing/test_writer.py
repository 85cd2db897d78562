"""Writing datasets: what is read back, where shards end, what is refused, what a broken run leaves."""

from __future__ import annotations

import contextlib
import errno
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, StorageError
from feedmill.formats.energon.prepared import read_info
from feedmill.formats.offsets import hash_words
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.jobs.work_folder import FOLDER
from feedmill.kernels.files.tar import sample_name
from feedmill.storage import LocalStore
from feedmill.storage.limits import parse_size
from feedmill.writing.shard import Layout
from feedmill.writing.work import identity
from helpers.durations import examples
from helpers.written_datasets import Broken, breaking, contents, files, samples


def test_what_was_written_is_read(tmp_path: Path) -> None:
    with fm.writer(str(tmp_path / "d"), max_shard_samples=40, sample_type="CrudeWebdataset") as w:
        w.write_samples(samples(100))
    ds = fm.open(tmp_path / "d")
    assert len(ds) == 100 and ds.splits == {"train": 100} and ds.describe()["shards"] == 3
    raw = fm.open(tmp_path / "d", raw=True)
    for want, got in zip(samples(100), raw, strict=True):
        assert got.key == want["__key__"] and got["json"] == want["json"] and got.raw("bin") == want["bin"]
    assert raw.get("s00077.json") == b'{"n":77}'
    assert check(str(tmp_path / "d")).findings == []
    assert not (tmp_path / "d" / FOLDER).exists()


COMPONENT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/."), min_size=1, max_size=40)
FOLDER_NAME = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"), min_size=1, max_size=9)
KEYS = st.builds(lambda folders, last: "/".join([*folders, last]), st.lists(FOLDER_NAME, max_size=3), COMPONENT)
ANYTHING = st.dictionaries(
    KEYS,
    st.dictionaries(st.sampled_from(["bin", "a.b", "tar.gz", "ü", "x y"]), st.binary(max_size=1300), min_size=1),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None)
@given(ANYTHING, st.integers(1, 5), st.integers(1, 9000))
def test_anything_comes_back(rows: dict[str, dict[str, bytes]], most: int, size: int) -> None:
    good = {key: parts for key, parts in rows.items() if not refused(key)}
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(DataError):
        with fm.writer(f"{folder}/d", max_shard_samples=most, max_shard_size=size) as w:
            for key, parts in rows.items():
                with contextlib.suppress(DataError):
                    w.write({"__key__": key, **parts})
        assert contents(f"{folder}/d") == good
        counts = read_info(LocalStore(f"{folder}/d"))
        for path, count in counts.items():
            assert count == 1 or (count <= most and (Path(folder) / "d" / path).stat().st_size <= size)
        assert check(f"{folder}/d").findings == []
        return
    assert not good


def refused(key: str) -> bool:
    """Whether a reader would cut the key elsewhere, skip it, or leave the folder with it."""
    first = key.partition("/")[0]
    if len(first) > 3 and first.startswith("__") and first.endswith("__"):
        return True
    parts = key.removeprefix("./").split("/")  # tars of '.' have it before all names
    return sample_name(f"{key}.x") != (key, "x") or any(part in ("", ".", "..") for part in parts)


def test_the_index_is_the_one_that_prepare_makes(tmp_path: Path) -> None:
    root = tmp_path / "d"
    fm.write(str(root), samples(90), max_shard_samples=25)
    ours = {p.name: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    prepare(str(root), rescan=True, progress=False)
    theirs = {p.name: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert ours == theirs


def test_the_bytes_do_not_depend_on_how_it_was_written(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "a"), samples(300), max_shard_samples=70)
    fm.write(str(tmp_path / "b"), list(samples(300)), max_shard_samples=70, workers=3)
    with fm.writer(str(tmp_path / "c"), max_shard_samples=70) as w:
        for sample in samples(300):
            w.write(sample)
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


def produced(bounds: tuple[int, int]) -> Iterator[dict[str, Any]]:
    return samples(bounds[1] - bounds[0], bounds[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_one_shard_for_each_item(tmp_path: Path, workers: int) -> None:
    fm.write(str(tmp_path / "a"), samples(90), max_shard_samples=30)
    items = [(0, 30), (30, 60), (60, 90)]
    report = fm.write(str(tmp_path / "b"), items, produce=produced, workers=workers)
    assert (report.samples, report.shards) == (90, 3)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_an_item_without_samples_has_no_shard(tmp_path: Path) -> None:
    report = fm.write(str(tmp_path / "d"), [(0, 5), (5, 5), (5, 9)], produce=produced, workers=1)
    assert (report.samples, report.shards) == (9, 2)
    assert sorted(p.name for p in (tmp_path / "d/shards").glob("*.tar")) == ["000000.tar", "000002.tar"]


def test_shards_end_before_a_limit(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "d"), samples(200), max_shard_samples=None, max_shard_size="40kB")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "d").rglob("*.tar"))]
    assert max(sizes) <= 40_000 and min(sizes[:-1]) > 40_000 - 3 * 1536
    big = [{"__key__": str(i), "bin": bytes(50_000 if i == 1 else 10)} for i in range(3)]
    report = fm.write(str(tmp_path / "e"), big, max_shard_size=40_000)
    assert report.shards == 3  # the one that fits no shard has its own


@dataclass
class Pair:
    __key__: str
    image: Any
    caption: str
    label: int | None = None


def test_dataclasses_are_written_by_a_field_map(tmp_path: Path) -> None:
    picture = np.full((4, 5, 3), 9, np.uint8)
    made = [Pair("a", picture, "a cat", 3), Pair("b", picture, "a dog")]
    where = {"image": "png", "caption": "json[text]", "label": "json[label]"}
    fm.write(str(tmp_path / "d"), made, field_map=where)
    ds = fm.open(tmp_path / "d")
    assert ds[0]["json"] == {"text": "a cat", "label": 3} and ds[1]["json"] == {"text": "a dog"}
    with pytest.raises(ConfigError, match="label"):
        fm.write(str(tmp_path / "e"), made, field_map={"image": "png", "caption": "txt"})
    with pytest.raises(ConfigError, match="one level"):
        fm.write(str(tmp_path / "f"), made, field_map={"caption": "json[a][b]"})


def test_typed_samples_come_back_as_they_were(tmp_path: Path) -> None:
    typed = {"sample_type": "CaptioningSample", "field_map": {"image": "png", "caption": "txt"}}
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    first = [
        fm.samples.CaptioningSample(__key__=f"{i}", __restore_key__=(), image=picture, caption=f"n {i}")
        for i in range(4)
    ]
    fm.write(str(tmp_path / "a"), first, **typed)
    ds = fm.open(tmp_path / "a")
    assert isinstance(ds[2], fm.samples.CaptioningSample) and ds[2].caption == "n 2"
    assert np.array_equal(ds[2].image, picture)
    fm.write(str(tmp_path / "b"), ds, **typed)  # a dataset is an iterable of samples
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_dataset_with_a_field_map_is_written_as_it_is_stored(tmp_path: Path) -> None:
    picture, photo = Image.effect_noise((32, 32), 40), io.BytesIO()
    picture.save(photo, "JPEG", quality=40)  # another encoding would change the bytes
    rows = [{"__key__": f"{i}", "jpg": photo.getvalue(), "json": {"text": f"n {i}", "other": i}} for i in range(6)]
    fields = {"image": "jpg", "caption": "json[text]"}
    fm.write(tmp_path / "a", rows, sample_type="CaptioningSample", field_map=fields)
    ds = fm.open(tmp_path / "a")
    fm.write(tmp_path / "b", ds)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    fm.write(tmp_path / "c", ds.filter(lambda sample: sample.caption == "n 4", progress=False))
    fm.write(tmp_path / "c", ds.select([1]), append=True)
    chosen = fm.open(tmp_path / "c")
    assert [sample.caption for sample in chosen] == ["n 4", "n 1"]
    raw = chosen.opened_as(view=None, decode=None)
    assert [sample["jpg"] for sample in raw] == [photo.getvalue()] * 2
    with pytest.raises(ConfigError, match="the field map has no part for the field 'image'"):
        fm.write(tmp_path / "d", ds.map(lambda sample: sample))  # the results of a function are not stored anywhere


BAD = [
    ({"txt": "x"}, "missing-field"),
    ({"__key__": 3, "txt": "x"}, "missing-field"),
    ({"__key__": "a.b", "txt": "x"}, "bad-name"),
    ({"__key__": "", "txt": "x"}, "bad-name"),
    ({"__key__": "/a", "txt": "x"}, "bad-name"),
    ({"__key__": "a/", "txt": "x"}, "bad-name"),
    ({"__key__": "a//b", "txt": "x"}, "bad-name"),
    ({"__key__": "../a", "txt": "x"}, "bad-name"),
    ({"__key__": "a/../b", "txt": "x"}, "bad-name"),
    ({"__key__": "a/./b", "txt": "x"}, "bad-name"),
    ({"__key__": "__meta__", "txt": "x"}, "bad-name"),
    ({"__key__": "__meta__/a", "txt": "x"}, "bad-name"),
    ({"__key__": "a\0b", "txt": "x"}, "bad-name"),
    ({"__key__": "x" * 5000, "txt": "x"}, "bad-name"),
    ({"__key__": "\ud800", "txt": "x"}, "bad-name"),
    ({"__key__": "a"}, "no-parts"),
    ({"__key__": "a", "": b"x"}, "bad-name"),
    ({"__key__": "a", "a/b": b"x"}, "bad-name"),
    ({"__key__": "a", 1: b"x"}, "bad-name"),
    ({"__key__": "__a", "txt": "x", "b__": b"x"}, "bad-name"),
    ({"__key__": "a", None: b"x", "txt": "x"}, "bad-name"),
    ({"__key__": "a", "txt": 3}, "no-conversion"),
    ({"__key__": "a", "xyz": object()}, "no-conversion"),
    ({"__key__": "s00000", "txt": "again"}, "duplicate-key"),
    (17, "missing-field"),
    ("a", "missing-field"),
]


@pytest.mark.parametrize(("bad", "kind"), BAD)
def test_a_bad_sample_is_refused_and_the_others_are_written(tmp_path: Path, bad: Any, kind: str) -> None:
    with fm.writer(str(tmp_path / "d")) as w:
        w.write_samples(samples(3))
        with pytest.raises(DataError) as error:
            w.write(bad)
        assert error.value.kind == kind
        str(error.value).encode()
        w.write_samples(samples(2, 3))
    assert len(fm.open(tmp_path / "d")) == 5


@pytest.mark.parametrize("key", ["a/b.c/d", "1", "ü", "a b", "x" * 150, "d/" * 90 + "k", "__a", "a__b__/c", "a\n"])
def test_odd_keys_come_back(tmp_path: Path, key: str) -> None:
    fm.write(str(tmp_path / "d"), [{"__key__": key, "a.txt": "x", "json": [1]}, {"__key__": "last", "txt": "y"}])
    ds = fm.open(tmp_path / "d")
    assert ds[0].key == key and ds[key]["a.txt"] == "x" and ds.get(f"{key}.json") == b"[1]" and len(ds) == 2
    assert check(str(tmp_path / "d")).findings == []


def test_a_key_of_an_earlier_shard_is_refused_in_parallel_too(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        fm.write(str(tmp_path / "d"), [(0, 5), (3, 8)], produce=produced, workers=1)
    assert error.value.kind == "duplicate-key"
    assert not (tmp_path / "d/.nv-meta/.info.json").exists()


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        fm.write(str(tmp_path / "d"), [])
    assert error.value.kind == "no-samples"


def test_a_data_set_is_not_replaced_unasked(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    fm.write(root, samples(50), max_shard_samples=10)
    with pytest.raises(ConfigError) as error:
        fm.write(root, samples(5))
    assert error.value.kind == "exists" and len(fm.open(root)) == 50
    fm.write(root, samples(5), overwrite=True)
    assert len(fm.open(root)) == 5 and len(list((tmp_path / "d").rglob("*.tar"))) == 1
    fm.write(str(tmp_path / "e"), samples(5))
    assert files(tmp_path / "d") == files(tmp_path / "e")


def test_a_replaced_dataset_is_readable_until_the_new_one_is_complete(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    fm.write(root, samples(50), max_shard_samples=10)
    before = files(tmp_path / "d")
    with pytest.raises(Broken):
        fm.write(root, breaking(64), max_shard_samples=20, overwrite=True)
    assert len(fm.open(root)) == 50
    assert {name: data for name, data in files(tmp_path / "d").items() if ".feedmill-work" not in name} == before
    with pytest.raises(ConfigError) as error:
        fm.write(root, samples(100), max_shard_samples=20)
    assert error.value.kind == "exists"
    report = fm.write(root, samples(100), max_shard_samples=20, overwrite=True)
    assert (report.reused, report.shards) == (3, 5)
    fm.write(str(tmp_path / "e"), samples(100), max_shard_samples=20)
    assert files(tmp_path / "d") == files(tmp_path / "e")


@pytest.mark.parametrize("renames", [0, 1, 5, 12])
def test_a_run_that_ends_while_a_dataset_is_replaced_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    root = str(tmp_path / "d")
    fm.write(root, samples(50), max_shard_samples=10)
    rename, left = LocalStore.rename, [renames]

    def breaking_rename(self: LocalStore, *arguments: Any) -> None:
        if not left[0]:
            raise Broken
        left[0] -= 1
        rename(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "rename", breaking_rename)
        with pytest.raises(Broken):
            fm.write(root, samples(100), max_shard_samples=20, overwrite=True)
    assert len(fm.open(root)) == 100  # whoever opens it finishes it
    assert fm.write(root, samples(100), max_shard_samples=20).reused == 5
    fm.write(str(tmp_path / "e"), samples(100), max_shard_samples=20)
    assert files(tmp_path / "d") == files(tmp_path / "e")


def test_other_work_removes_what_would_have_replaced_a_dataset(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    fm.write(root, samples(50), max_shard_samples=10)
    with pytest.raises(Broken):
        fm.write(root, breaking(64), max_shard_samples=20, overwrite=True)
    fm.write(root, [{**sample, "__key__": f"x{n}"} for n, sample in enumerate(samples(5))], append=True)
    assert len(fm.open(root)) == 55 and not (tmp_path / "d/.feedmill-work").exists()


def test_tars_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/precious.tar").write_bytes(b"x")
    for options in ({}, {"overwrite": True}):
        with pytest.raises(ConfigError) as error:
            fm.write(str(tmp_path / "d"), samples(5), **options)
        assert error.value.kind == "exists"
    assert (tmp_path / "d/precious.tar").read_bytes() == b"x"


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with fm.writer(str(tmp_path / "d")) as w:
        w.write_samples(samples(3))
        with pytest.raises(StorageError) as error:
            fm.writer(str(tmp_path / "d"))
        assert error.value.kind == "busy"
    assert len(fm.open(tmp_path / "d")) == 3


def test_an_interrupted_run_is_continued(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "a"), samples(100), max_shard_samples=20)
    root = str(tmp_path / "b")
    with pytest.raises(Broken):
        fm.write(root, breaking(64), max_shard_samples=20)
    with pytest.raises(FeedmillError):
        fm.open(root).describe()["indexed"] or fm.open(root, split="train")
    assert not (tmp_path / "b/.nv-meta/.info.json").exists()
    report = fm.write(root, samples(100), max_shard_samples=20)
    assert (report.reused, report.shards) == (3, 5)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_other_samples_after_an_interruption_are_noticed(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    with pytest.raises(Broken):
        fm.write(root, breaking(55), max_shard_samples=20)
    for other in (samples(100, 1), samples(10)):
        with pytest.raises(DataError) as error:
            fm.write(root, other, max_shard_samples=20)
        assert error.value.kind == "changed"
    fm.write(root, samples(100, 1), max_shard_samples=20, overwrite=True)
    assert fm.open(root)[0].key == "s00001"


def test_other_limits_after_an_interruption_begin_anew(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    with pytest.raises(Broken):
        fm.write(root, breaking(99), max_shard_samples=20)
    assert fm.write(root, samples(99), max_shard_samples=50).reused == 0
    assert sorted(p.name for p in (tmp_path / "d").rglob("*.tar")) == ["000000.tar", "000001.tar"]
    fm.write(str(tmp_path / "e"), samples(99), max_shard_samples=50)
    assert files(tmp_path / "d") == files(tmp_path / "e")


def test_a_damaged_shard_of_an_interrupted_run_is_written_again(tmp_path: Path) -> None:
    root = tmp_path / "d"
    with pytest.raises(Broken):
        fm.write(str(root), breaking(75), max_shard_samples=20)
    (root / "shards/000001.tar").write_bytes(b"torn")
    assert fm.write(str(root), samples(100), max_shard_samples=20).reused == 1
    fm.write(str(tmp_path / "e"), samples(100), max_shard_samples=20)
    assert files(root) == files(tmp_path / "e")


def test_a_full_disk_stops_it_and_leaves_no_shard_with_a_hole(tmp_path: Path, monkeypatch: Any) -> None:
    from feedmill.writing.shard import ShardFile

    put = ShardFile._put
    left = [6]

    def full(self: ShardFile, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            self._file = Full()  # type: ignore[assignment]
        put(self, data)

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardFile, "_put", full)
    root = tmp_path / "d"
    with pytest.raises(StorageError) as error:
        fm.write(str(root), samples(3000), max_shard_samples=700)
    assert error.value.kind == "enospc" and "full" in str(error.value)
    assert not [p for p in root.rglob("*") if p.name.endswith(".feedmill-tmp")]
    monkeypatch.undo()
    fm.write(str(root), samples(3000), max_shard_samples=700)
    fm.write(str(tmp_path / "e"), samples(3000), max_shard_samples=700)
    assert files(root) == files(tmp_path / "e")


def test_layouts_and_sizes() -> None:
    layout = Layout("a/x%04d-b.tar")
    assert layout.shard(12) == "a/x0012-b.tar" and layout.number("a/x0012-b.tar") == 12
    assert layout.number("a/x12-b.tar") is None and layout.number("a/xabcd-b.tar") is None
    assert layout.number("a/x12345-b.tar") == 12345
    assert (parse_size("1GiB"), parse_size("2.5k"), parse_size(7), parse_size(None)) == (1 << 30, 2500, 7, None)
    for pattern in ("a.tar", "%06d.zip", "/abs/%d.tar", "../%d.tar", ".x/%d.tar", "%d-%d.tar", "%s.tar"):
        with pytest.raises(ConfigError):
            Layout(pattern)
    for bad in ("many", "-3", "1.5.2G", ""):
        with pytest.raises(ConfigError):
            parse_size(bad)
    with pytest.raises(ConfigError):
        Layout(samples=0)


def test_other_items_after_an_interruption_begin_anew(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    with pytest.raises(DataError):
        fm.write(root, [(0, 5), (5, 10), (3, 8)], produce=produced, workers=1)
    report = fm.write(root, [(20, 25), (5, 10)], produce=produced, workers=1)
    assert (report.reused, report.samples) == (0, 10) and fm.open(root)[0].key == "s00020"


def shouting(value: Any) -> bytes:
    return str(value).upper().encode()


def whispering(value: Any) -> bytes:
    return str(value).lower().encode()


def named(item: tuple[int, int]) -> list[dict[str, Any]]:
    if item[0] < 0:
        raise Broken
    return [{"__key__": f"k{i}", "word": f"Word {i}"} for i in range(*item)]


@pytest.mark.parametrize("produce", [None, named])
def test_another_encoder_after_an_interruption_begins_anew(tmp_path: Path, produce: Any) -> None:
    root = str(tmp_path / "d")
    limits: dict[str, Any] = {"max_shard_samples": 4, "produce": produce, "workers": produce and 1}

    def items(*, broken: bool = False) -> Any:
        pairs = [(0, 40), (-1, 0)] if broken else [(0, 40), (40, 80)]
        return (sample for pair in pairs for sample in named(pair)) if produce is None else pairs

    with pytest.raises(Broken):
        fm.write(root, items(broken=True), encode={"word": shouting}, **limits)
    if produce is not None:  # what was to be made is the same again
        job = Path(root, ".feedmill-work/job.json")
        content = orjson.loads(job.read_bytes())
        job.write_bytes(orjson.dumps({**content, "items": hash_words([repr(item) for item in items()])}))
    report = fm.write(root, items(), encode={"word": whispering}, **limits)
    assert report.reused == 0
    assert [bytes(sample["word"]) for sample in fm.open(root, raw=True, decode=None).read_raw(range(80))] == [
        b"word %d" % i for i in range(80)
    ]


def test_functions_are_told_apart_by_what_they_carry_and_are_the_same_in_every_process() -> None:
    def with_quality(quality: int) -> Any:
        return lambda value: bytes([quality]) + value

    assert identity(with_quality(80)) == identity(with_quality(80)) != identity(with_quality(90))
    assert identity(partial(shouting, 1)) == identity(partial(shouting, 1)) != identity(partial(shouting, 2))
    assert identity(partial(shouting, 1)) != identity(partial(whispering, 1))

    class Called:
        def __init__(self, quality: int) -> None:
            self.quality = quality

        def __call__(self, value: bytes) -> bytes:
            return value

    assert identity(Called(1)) == identity(Called(1)) != identity(Called(2))
