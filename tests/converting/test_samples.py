"""Samples of any dataset in any format, and back: the same keys and the same bytes."""

from __future__ import annotations

import errno
import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, StorageError
from feedmill.indexing.check import check
from feedmill.writing.write import write
from helpers.conversion_sources import files, parts, rot, sample_set, samples
from helpers.durations import examples, slow_but
from helpers.tars import write_tar

BINARY = ("webdataset", "wds", "vla", "mds", "npz", "parquet")


def place(root: Path, to: str, name: str = "out") -> Path:
    return root / (f"{name}.jsonl" if to == "jsonl" else name)


def convert(source: Path, destination: Path, to: str, **options: Any) -> Any:
    return fm.convert(source, destination, to, **{"workers": 1, "progress": False, "max_shard_samples": 40, **options})


FORMATS = (*BINARY, "jsonl")
AS_ROWS = [("jsonl", "parquet"), ("jsonl", "jsonl"), ("parquet", "jsonl"), ("parquet", "parquet")]
NEXT = [(first, FORMATS[(place + step) % 7]) for place, first in enumerate(FORMATS) for step in (1, 3)]
"""Each format before two others, and after two."""


@pytest.mark.parametrize(("first", "second"), slow_but(product(FORMATS, FORMATS), *AS_ROWS, *NEXT))
def test_a_round_trip_through_every_pair_gives_the_same_samples(tmp_path: Path, first: str, second: str) -> None:
    text = "jsonl" in (first, second)
    source = sample_set(tmp_path / "source", binary=not text)
    a = place(tmp_path, first, "a")
    b = place(tmp_path, second, "b")
    convert(source, a, first)
    if (first, second) in AS_ROWS:
        b = tmp_path / f"b.{second}"  # as rows
    convert(a, b, second, max_shard_samples=33)
    convert(b, tmp_path / "back", "wds", max_shard_samples=50)
    found, wanted = parts(tmp_path / "back"), parts(source)
    if text:  # the text of JSON may be spaced in another way; a table of columns has them as values
        found, wanted = [objects(p) for p in found], [objects(p) for p in wanted]
    assert found == wanted


def objects(sample: tuple[str, dict[str, bytes]]) -> tuple[str, Any]:
    key, values = sample
    return key, {name: json.loads(v) if name.endswith("json") else v for name, v in values.items()}


@pytest.mark.parametrize("to", slow_but((*BINARY, "jsonl"), "mds", "parquet", "wds"))
def test_the_bytes_do_not_depend_on_the_processes(tmp_path: Path, to: str) -> None:
    source = sample_set(tmp_path / "source", binary=to != "jsonl")
    one = convert(source, place(tmp_path / "one", to), to, workers=1, max_shard_samples=20)
    two = convert(source, place(tmp_path / "two", to), to, workers=3, max_shard_samples=20)
    assert files(tmp_path / "one") == files(tmp_path / "two") and one.digest == two.digest


def test_the_digest_is_of_the_samples_alone(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    found = {convert(source, tmp_path / f"{n}", "wds", max_shard_samples=n).digest for n in (7, 30, 1000)}
    assert len(found) == 1


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["txt", "json", "a.txt", "bin", "x.jpg", "cls"]), st.binary(max_size=9), min_size=1
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["wds", "vla", "webdataset", "parquet"]),
)
def test_any_parts_come_back(tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, bytes]], to: str) -> None:
    root = tmp_path_factory.mktemp("any")
    write(str(root / "s"), [{"__key__": f"k{i}", **sample} for i, sample in enumerate(made)], progress=False)
    convert(root / "s", root / "d", to, max_shard_samples=5)
    convert(root / "d", root / "e", "wds")
    assert parts(root / "e") == [(f"k{i}", sample) for i, sample in enumerate(made)]


def test_what_is_prepared_keeps_splits_and_its_description(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with fm.writer(str(source), max_shard_samples=10, sample_type="TextSample", field_map={"text": "txt"}) as w:
        w.write_samples(samples(40))
    (source / ".nv-meta/split.yaml").write_text(
        "split_parts:\n  train: [shards/000000.tar, shards/000001.tar]\n  val: [shards/000003.tar]\n"
        "  test: [shards/000002.tar]\nexclude: []\n"
    )
    report = convert(source, tmp_path / "d", "webdataset", max_shard_samples=15)
    assert fm.open(tmp_path / "d").splits == {"train": 20, "val": 10, "test": 10} and report.plan.losses == []
    assert fm.open(tmp_path / "d", split="val")[0].text == "words 30 é"
    assert check(str(tmp_path / "d")).findings == []
    other = convert(source, tmp_path / "w", "wds")
    assert [loss.content for loss in other.plan.losses] == [False, False]
    assert "splits" in other.plan.losses[0].what and "sample type" in other.plan.losses[1].what
    assert convert(source, tmp_path / "v", "wds", split="val").samples == 10
    with pytest.raises(FeedmillError, match="no split"):
        convert(source, tmp_path / "x", "wds", split="dev")
    assert not (tmp_path / "x").exists()


def test_splits_become_those_of_lines_and_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with fm.writer(str(source), max_shard_samples=10) as w:
        w.write_samples(samples(40))
    (source / ".nv-meta/split.yaml").write_text(
        "split_parts:\n  train: [shards/000000.tar, shards/000003.tar]\n  val: [shards/000001.tar]\n"
        "  test: [shards/000002.tar]\n  none: []\nexclude: []\n"
    )
    report = convert(source, tmp_path / "d.jsonl", "jsonl", allow_loss=True)
    assert not any("splits" in loss.what for loss in report.plan.losses)
    counts = {"train": 20, "val": 10, "test": 10, "none": 0}
    assert fm.open(tmp_path / "d.jsonl").splits == counts and check(str(tmp_path / "d.jsonl")).findings == []
    assert fm.open(tmp_path / "d.jsonl", split="val")[0]["json"]["txt"] == "words 10 é"
    convert(tmp_path / "d.jsonl", tmp_path / "e", "webdataset")
    assert fm.open(tmp_path / "e").splits == counts
    assert fm.open(tmp_path / "e", split="train")[10]["txt"] == "words 30 é"


def test_splits_that_share_samples_are_told_by_more_than_their_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * 10)
    (tmp_path / "a.jsonl.split.yaml").write_text(
        "samples: 10\nlast_at: 81\nsplit_parts: {train: [[0, 6]], val: [[4, 8]]}\n"  # 6 + 4 are 10, but two are in none
    )
    report = convert(path, tmp_path / "d", "webdataset")
    assert "(4 samples are in none of them, or in several)" in report.plan.losses[0].what and report.samples == 10


def test_fields_are_taken(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    convert(source, tmp_path / "d", "wds", fields=["t*", "json"])
    assert all(set(values) == {"txt", "json"} for _, values in parts(tmp_path / "d"))
    with pytest.raises(DataError, match="no selected fields"):
        convert(source, tmp_path / "e", "wds", fields=["png"])


def test_limits_of_shards(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    convert(source, tmp_path / "d", "wds", max_shard_size="50kB")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "d").glob("*.tar"))]
    assert len(sizes) > 3 and max(sizes) <= 51_200 + 1024
    convert(tmp_path / "d", tmp_path / "m", "mds", max_shard_size="4kB")
    assert len(list((tmp_path / "m").glob("*.mds"))) > 5


def test_bytes_are_no_json(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    with pytest.raises(ConfigError, match="bytes of 'bin'") as error:
        convert(source, tmp_path / "d.jsonl", "jsonl")
    assert error.value.kind == "loses-content" and not list(tmp_path.glob("*d.jsonl*"))
    assert convert(source, tmp_path / "d.jsonl", "jsonl", allow_loss=True).samples == 90
    assert set(json.loads((tmp_path / "d.jsonl").read_text().split("\n")[3])) == {"__key__", "txt", "json"}


def test_samples_of_nothing_but_json_are_lines(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source", binary=False)
    report = convert(source, tmp_path / "d.jsonl", "jsonl", fields=["json"])
    assert "keys" in report.plan.losses[0].what
    assert fm.open(tmp_path / "d.jsonl")[7]["json"] == {"n": 7, "f": 10.5, "l": [None, "a"]}
    convert(tmp_path / "d.jsonl", tmp_path / "e", "webdataset")
    assert fm.open(tmp_path / "e")["7"]["json"]["n"] == 7


def test_missing_parts_are_told_apart_where_the_format_can(tmp_path: Path) -> None:
    made = [{"__key__": f"{i}", "txt": "x", **({"bin": b"\xff"} if i % 2 else {})} for i in range(8)]
    write(str(tmp_path / "s"), made, progress=False)
    convert(tmp_path / "s", tmp_path / "p", "parquet")
    convert(tmp_path / "p", tmp_path / "back", "wds")
    assert parts(tmp_path / "back") == parts(tmp_path / "s")
    with pytest.raises(ConfigError, match="without 'bin'"):
        convert(tmp_path / "s", tmp_path / "m", "mds")
    convert(tmp_path / "s", tmp_path / "m", "mds", allow_loss=True)
    assert fm.open(tmp_path / "m")[0].raw("bin") == b""


def test_columns_get_the_suffix_of_their_kind(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    picture = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(picture, "PNG")
    image = {"bytes": picture.getvalue(), "path": None}
    table = pa.table(
        {
            "caption": ["a cat", None],
            "label": [3, 4],
            "vector": pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32())),
            "image": pa.array([image, image], pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "more": [{"a": [1, None]}, None],
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    report = convert(tmp_path / "s.parquet", tmp_path / "d", "webdataset")
    assert report.plan.names["caption"] == "caption.txt"
    first, second = fm.open(tmp_path / "d")
    assert (first["caption.txt"], first["label.json"], first["more.json"]) == ("a cat", 3, {"a": [1, None]})
    assert np.array_equal(first["vector.npy"], np.asarray([1, 2], np.float32))
    assert [name for name in first if name.startswith("image")] == ["image.png"]
    assert set(second) == {"label.json", "vector.npy", "image.png"}
    convert(tmp_path / "s.parquet", tmp_path / "m", "mds", fields=["caption", "label", "vector"])
    again = fm.open(tmp_path / "m")[1]
    assert again["caption"] is None and again["label"] == 4 and again["vector"].tolist() == [3.0]
    convert(tmp_path / "m", tmp_path / "p", "parquet")
    assert pq.read_table(tmp_path / "p").column("label").to_pylist() == [3, 4]
    assert pq.read_table(tmp_path / "p").column("vector").to_pylist() == [[1.0, 2.0], [3.0]]


def damaged(root: Path) -> Path:
    source = sample_set(root / "source", per_shard=30)
    shard = source / "shards/000001.tar"
    data = bytearray(shard.read_bytes())
    data[6 * 512 + 124 : 6 * 512 + 132] = b"\xff" * 8  # a size that is no number
    rot(shard, bytes(data))
    (source / "shards/000002.tar").unlink()
    return source


@pytest.mark.parametrize("to", ["wds", "parquet"])
def test_bad_samples_stop_it_or_are_listed(tmp_path: Path, to: str) -> None:
    source = damaged(tmp_path)
    with pytest.raises(FeedmillError, match="on-error skip"):
        convert(source, tmp_path / "d", to, max_shard_samples=10)
    report = convert(source, tmp_path / "e", to, max_shard_samples=10, on_error="skip")
    assert report.samples + report.skipped == 90 and 31 <= report.skipped < 40
    assert {bad.index for bad in report.examples} >= set(range(60, 90))
    again = convert(source, tmp_path / "f", to, max_shard_samples=10, on_error="skip", error_budget=40)
    assert again.samples == report.samples
    with pytest.raises(DataError, match=r"budget of 20 is exceeded") as error:
        convert(source, tmp_path / "g", to, max_shard_samples=10, on_error="skip", error_budget=20)
    assert error.value.kind == "too-many-bad"
    proof = json.loads((tmp_path / "e/.feedmill/convert.json").read_text())
    assert proof["skipped"] == report.skipped and len(proof["skipped_examples"]) == report.skipped


def test_keys_that_come_twice(tmp_path: Path) -> None:
    write_tar(tmp_path / "s/0.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    write_tar(tmp_path / "s/1.tar", [("b.txt", b"3"), ("c.txt", b"4")])
    with pytest.raises(DataError) as error:
        convert(tmp_path / "s", tmp_path / "d", "wds")
    assert error.value.kind == "duplicate-key"
    assert convert(tmp_path / "s", tmp_path / "e", "wds", max_shard_samples=2).samples == 4
    with pytest.raises(DataError) as error:
        convert(tmp_path / "s", tmp_path / "f", "webdataset", max_shard_samples=2)
    assert error.value.kind == "duplicate-key"


def test_a_wids_index(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    convert(source, tmp_path / "d", "wds", wids=True)
    assert parts(tmp_path / "d/wids.json") == parts(source)


def test_a_manifest(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    convert(source, tmp_path / "d", "vla")
    rows = [json.loads(line) for line in (tmp_path / "d/manifest.jsonl").read_text().splitlines()]
    assert rows[0] == {"shard": "shards/shard-000000.tar", "num_sequences": 40} and len(rows) == 3


@pytest.mark.parametrize("make", ["lerobot_v2", "lerobot_v3"])
def test_columns_with_keys_of_their_own(tmp_path: Path, make: str) -> None:
    from helpers import foreign_datasets as sourcedata

    (tmp_path / "s").mkdir()
    source = getattr(sourcedata, make)(tmp_path / "s", [3, 2])
    names = {"n.json", "text", "observation.state.npy", "task.txt"}
    convert(source, tmp_path / "d", "webdataset")
    first = fm.open(tmp_path / "d")[0]
    assert names <= set(first) and first["n.json"] == 0 and "/" in first.key
    for to in ("parquet", "mds"):
        convert(source, tmp_path / to, to)
        convert(tmp_path / to, tmp_path / f"{to}-back", "wds")
        assert parts(tmp_path / f"{to}-back") == [(key, values) for key, values in parts(tmp_path / "d")]


@pytest.mark.parametrize("to", ["wds", "vla", "webdataset"])
def test_columns_that_begin_with_underscores_are_parts(tmp_path: Path, to: str) -> None:
    table = pa.table({"text": ["a", "b"], "__index_level_0__": [5, 6]})  # as pandas writes an index
    pq.write_table(table, tmp_path / "x.parquet")
    convert(tmp_path / "x.parquet", tmp_path / "d", to)
    assert parts(tmp_path / "d")[1] == ("1", {"text": b"b", "__index_level_0__.json": b"6"})


def test_splits_of_tables_that_number_their_rows(tmp_path: Path) -> None:
    from helpers import foreign_datasets as sourcedata

    for split, counts in (("train", [3, 2]), ("test", [4])):
        (tmp_path / "s" / split).mkdir(parents=True)
        sourcedata.huggingface(tmp_path / "s" / split, counts)
    (tmp_path / "s/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    convert(tmp_path / "s", tmp_path / "d", "webdataset")
    assert fm.open(tmp_path / "d").splits == {"train": 5, "test": 4}
    assert fm.open(tmp_path / "d", split="test")[2].key == "test/2"


def test_media_metadata_goes_along_where_all_is_taken(tmp_path: Path) -> None:
    import sqlite3

    from feedmill.indexing.prepare_media import prepare_media
    from feedmill.samples.media import MediaFilter

    picture = io.BytesIO()
    Image.new("RGB", (5, 4), "red").save(picture, "PNG")
    made = [{"__key__": f"k{i}", "png": picture.getvalue(), "txt": "x"} for i in range(6)]
    write(str(tmp_path / "s"), made, progress=False)
    prepare_media(str(tmp_path / "s"), MediaFilter("EXTENSION"), progress=False)
    report = convert(tmp_path / "s", tmp_path / "d", "webdataset", max_shard_samples=4)
    assert report.plan.losses == []
    with sqlite3.connect(tmp_path / "d/.nv-meta/index.sqlite") as connection:
        keys = [key for (key,) in connection.execute("SELECT entry_key FROM media_metadata ORDER BY entry_key")]
    assert keys == [f"k{i}.png" for i in range(6)]
    lost = convert(tmp_path / "s", tmp_path / "e", "webdataset", fields=["txt"]).plan.losses
    assert any("prepare-media" in loss.what for loss in lost)


@pytest.mark.parametrize("to", [*BINARY, "jsonl"])
def test_a_full_disk_is_one_message_and_leaves_nothing(tmp_path: Path, to: str, monkeypatch: Any) -> None:
    source = tmp_path / "source"
    texts = np.random.default_rng(1).integers(97, 123, (20, 30_000), np.uint8)  # more than one buffer each
    write(str(source), [{"__key__": f"s{n}", "txt": text.tobytes()} for n, text in enumerate(texts)], progress=False)
    convert(source, place(tmp_path, to, "whole"), to)
    before = set(tmp_path.rglob("*"))

    room = [10_000]

    def full(self: Any, data: Any) -> int:
        if "out" not in str(self.name) or len(data) < room[0]:
            return io.FileIO.write(self, data)
        room[0] = 1 << 30  # what is given up is closed in peace
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="the disk is full"):
        patch.setattr("feedmill.storage.staging.WriteBehind.write", full)
        patch.setattr("feedmill.converting.targets.parquet._GROUP_BYTES", 100)
        convert(source, place(tmp_path, to), to)
    left = {path.name for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert left <= {"lock", "job.json"}
    convert(source, place(tmp_path, to), to)
    assert files(place(tmp_path, to)) == files(place(tmp_path, to, "whole"))


@pytest.mark.parametrize("to", BINARY)
def test_keys_that_are_no_text_are_told_or_left_out(tmp_path: Path, to: str) -> None:
    write_tar(tmp_path / "x.tar", [("a.txt", b"1"), ("\udce9.txt", b"2"), ("c.txt", b"3")])  # a name in Latin-1
    with pytest.raises(DataError):
        convert(tmp_path / "x.tar", tmp_path / "d", to)
    report = convert(tmp_path / "x.tar", tmp_path / "d", to, on_error="skip", overwrite=True)
    assert (report.samples, report.skipped, report.examples[0].key) == (2, 1, "\\udce9")


@pytest.mark.parametrize("line", ['{"__key__": "b", "txt": "\\ud800"}', '{"__key__": "\\ud800", "txt": "b"}'])
@pytest.mark.parametrize("to", ["webdataset", "wds", "vla", "mds", "npz"])
def test_lines_that_are_no_text_are_told_or_left_out(tmp_path: Path, to: str, line: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"__key__": "a", "txt": "x"}\n' + line + "\n")
    with pytest.raises(DataError):
        convert(tmp_path / "x.jsonl", tmp_path / "d", to)
    report = convert(tmp_path / "x.jsonl", tmp_path / "d", to, on_error="skip", overwrite=True)
    assert (report.samples, report.skipped) == (1, 1)


def test_a_lists_part_does_not_depend_on_the_rows_beside_it(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    rows = [[1.0, 2.0], [1.0, None], None, []]
    pq.write_table(pa.table({"n": range(4), "v": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "p/0.parquet")
    report = convert(tmp_path / "p", tmp_path / "o", "wds")
    assert report.plan.names["v"] == "v.npy, or v.json for lists with nulls"
    assert [set(sample) for sample in fm.open(tmp_path / "o", raw=True)] == [
        {"n.json", "v.npy"}, {"n.json", "v.json"}, {"n.json"}, {"n.json", "v.npy"}
    ]  # fmt: skip
    for to in ("mds", "npz"):
        convert(tmp_path / "p", tmp_path / to, to)
        assert [sample["v"] for sample in fm.open(tmp_path / to)] == [[1.0, 2.0], [1.0, None], None, []]
    together = [type(sample["v"]) for sample in fm.open(tmp_path / "p").read(range(4))]
    assert together == [type(sample["v"]) for sample in fm.open(tmp_path / "p")]


@pytest.mark.parametrize("to", ["parquet", "mds", "npz", "jsonl"])
def test_a_part_without_a_name_is_refused_where_it_could_not_come_back(to: str, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    write_tar(tmp_path / "s/0.tar", [("0.txt", b"a"), ("1.txt", b"b"), ("1.", b"c"), ("2.", b"d")])
    with pytest.raises(DataError, match=r"'1': a part has no name: .* --fields '\?\*'"):
        convert(tmp_path / "s", place(tmp_path, to), to)
    report = convert(tmp_path / "s", place(tmp_path, to, "skipped"), to, on_error="skip")
    assert report.samples == 1 and [bad.key for bad in report.examples] == ["1", "2"]
    write_tar(tmp_path / "s/0.tar", [("0.txt", b"a"), ("1.txt", b"b"), ("1.", b"c")])
    assert convert(tmp_path / "s", place(tmp_path, to, "named"), to, fields=["?*"]).samples == 2


@pytest.mark.parametrize("to", ["webdataset", "mds", "npz"])
def test_lines_with_keys_have_the_parts_that_columns_become(to: str, tmp_path: Path) -> None:
    """A name that does not decode its value gets a suffix that does; null is no part."""
    row = {"title": "a", "n": 1, "v": [1.5], "o": {"x": None}, "none": None, "html": "<p>", "cls": "7", "a.npy": [1]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"__key__": "k", **row}) + "\n")
    plan = convert(tmp_path / "a.jsonl", tmp_path / to, to).plan
    sample = fm.open(tmp_path / to)[0]
    found = {name: sample[name] for name in sample if name != "__key__"}
    names = {"n": "n.json", "v": "v.json", "o": "o.json", "a.npy": "a.npy.json"}
    texts = {"title.txt": "a", "html": "<p>", "cls": "7"}
    if to == "webdataset":
        assert found == {**texts, "html": b"<p>", "cls": 7, **{new: row[old] for old, new in names.items()}}
        assert not plan.losses
    else:
        assert found == {**texts, **{new: json.dumps(row[old]).replace(" ", "") for old, new in names.items()}}
        assert any("'n.json'" in loss.what and "JSON values become text" in loss.what for loss in plan.losses)
    for fields in (["title"], ["title.txt"]):
        convert(tmp_path / "a.jsonl", tmp_path / f"{fields[0]}-", to, fields=fields)
        assert [name for name in fm.open(tmp_path / f"{fields[0]}-")[0] if name != "__key__"] == ["title.txt"]
    (tmp_path / "b.jsonl").write_text('{"__key__": "k", "n": 1, "n.json": 2}\n')
    with pytest.raises(DataError, match=r"two names would become the part 'n\.json'"):
        convert(tmp_path / "b.jsonl", tmp_path / "b", to)
