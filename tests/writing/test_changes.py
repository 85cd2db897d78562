"""Re-sharding, appending, deleting, adding parts: what is there afterwards, and what is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, EmptyResult, FeedmillError, NotFound
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.sample import Sample
from feedmill.formats.tables.dataset import TableDataset
from feedmill.formats.tar.dataset import TarDataset
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.samples.media import MediaFilter
from feedmill.writing import copying
from feedmill.writing.add_parts import add_parts
from feedmill.writing.append import append
from feedmill.writing.delete import delete
from feedmill.writing.reshard import reshard
from helpers.foreign_datasets import huggingface
from helpers.tars import make_shards, write_tar
from helpers.written_datasets import contents, files, samples


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """100 samples in 5 shards: 3 of train, 1 of val, 1 of test; one sample and no shard excluded."""
    fm.write(str(tmp_path / "d"), samples(100), max_shard_samples=20, sample_type="CrudeWebdataset")
    prepare(str(tmp_path / "d"), split_ratio="3,1,1", progress=False)
    return tmp_path / "d"


def exclude(root: Path, *entries: str) -> None:
    import yaml

    path = root / ".nv-meta/split.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.dump({**content, "exclude": list(entries)}))


class TestReshard:
    @pytest.mark.parametrize("shuffle", [None, 3])
    def test_splits_stay_apart(self, root: Path, tmp_path: Path, shuffle: int | None) -> None:
        report = reshard(str(root), str(tmp_path / "e"), max_shard_samples=7, shuffle=shuffle, workers=1)
        assert (report.samples, report.shards) == (100, 9 + 3 + 3)
        for split in ("train", "val", "test"):
            old, new = contents(root, split), contents(tmp_path / "e", split)
            assert new == old and (list(new) == list(old)) is (shuffle is None)
        assert check(str(tmp_path / "e")).findings == []
        assert (tmp_path / "e/.nv-meta/dataset.yaml").read_text() == (root / ".nv-meta/dataset.yaml").read_text()

    def test_the_bytes_do_not_depend_on_processes(self, root: Path, tmp_path: Path) -> None:
        reshard(str(root), str(tmp_path / "e"), max_shard_size="9kB", shuffle=1, workers=1)
        reshard(str(root), str(tmp_path / "f"), max_shard_size="9kB", shuffle=1, workers=2)
        assert files(tmp_path / "e") == files(tmp_path / "f")
        assert max(path.stat().st_size for path in (tmp_path / "e").rglob("*.tar")) <= 9000

    def test_what_is_excluded_is_left_out_and_said(self, root: Path, tmp_path: Path) -> None:
        exclude(root, "shards/000004.tar", "shards/000001.tar/s00025")
        report = reshard(str(root), str(tmp_path / "e"), max_shard_samples=50, workers=1)
        assert report.samples == 79 and len(report.warnings) == 2
        assert "s00025" not in contents(tmp_path / "e")

    def test_tars_and_lines_can_be_resharded(self, tmp_path: Path) -> None:
        make_shards(tmp_path / "plain", [3, 4])
        reshard(str(tmp_path / "plain"), str(tmp_path / "e"), max_shard_samples=5, workers=1)
        assert contents(tmp_path / "e") == contents(tmp_path / "plain")
        (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
        report = reshard(str(tmp_path / "x.jsonl"), str(tmp_path / "f"), max_shard_samples=2, workers=1, prefix="x/")
        assert report.shards == 2 and fm.open(tmp_path / "f")["x/2"]["json"] == {"a": 3}
        with pytest.raises(ConfigError):
            reshard(str(tmp_path / "x.jsonl"), str(tmp_path / "g"), max_shard_size="1k")

    def test_lines_keep_their_splits(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        path.write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
        reshard(str(path), str(tmp_path / "a"), max_shard_samples=4, workers=1)
        assert fm.open(tmp_path / "a").splits == {"train": 10}
        (tmp_path / "x.jsonl.split.yaml").write_text(
            "samples: 10\nlast_at: 81\nsplit_parts: {train: [[0, 2], [3, 7]], val: [[1, 2], [2, 3]], test: []}\n"
        )
        for name, shuffle in (("b", None), ("c", 1)):
            reshard(str(path), str(tmp_path / name), max_shard_samples=4, shuffle=shuffle, workers=1)
            assert fm.open(tmp_path / name).splits == {"train": 6, "val": 2, "test": 0}
            found = {s: sorted(map(int, contents(tmp_path / name, s))) for s in ("train", "val", None)}
            assert found == {"train": [0, 1, 3, 4, 5, 6], "val": [1, 2], None: list(range(10))}
            assert check(str(tmp_path / name)).findings == []

    def test_splits_that_cannot_be_kept_are_not_lost_silently(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            (tmp_path / "s" / split).mkdir(parents=True)
            huggingface(tmp_path / "s" / split, [3])
        (tmp_path / "s/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        with pytest.raises(ConfigError, match=r"splits of huggingface would be lost.*'feedmill convert"):
            reshard(str(tmp_path / "s"), str(tmp_path / "d"), max_shard_samples=2, workers=1)

    def test_media_metadata_goes_along(self, tmp_path: Path) -> None:
        from PIL import Image

        image = Image.new("RGB", (5, 4))
        fm.write(str(tmp_path / "d"), [{"__key__": f"{i}", "png": image} for i in range(4)])
        prepare(str(tmp_path / "d"), media=MediaFilter("EXTENSION"), progress=False)
        reshard(str(tmp_path / "d"), str(tmp_path / "e"), max_shard_samples=1, prefix="p/", workers=1)
        delete(str(tmp_path / "e"), ["p/2"], workers=1)
        index = sqlite3.connect(tmp_path / "e/.nv-meta/index.sqlite")
        rows = index.execute("SELECT entry_key, metadata_json FROM media_metadata ORDER BY entry_key").fetchall()
        assert [key for key, _ in rows] == ["p/0.png", "p/1.png", "p/3.png"] and json.loads(rows[0][1])["width"] == 5

    def test_nonsense_is_refused(self, root: Path, tmp_path: Path) -> None:
        for options in (
            {},
            {"max_shard_size": "x"},
            {"max_shard_samples": 0},
            {"max_shard_samples": 1, "pattern": "x.tar"},
        ):
            with pytest.raises(ConfigError):
                reshard(str(root), str(tmp_path / "e"), **options)
        with pytest.raises(ConfigError):
            reshard(str(root), str(root) + "/", max_shard_samples=3)
        with pytest.raises(NotFound):
            reshard(str(tmp_path / "none"), str(tmp_path / "e"), max_shard_samples=3)
        assert not (tmp_path / "e").exists()

    def test_two_parts_of_one_name_are_not_lost_silently(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "d/x.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"{}"), ("b.txt", b"3")])
        with pytest.raises(DataError) as error:
            reshard(str(tmp_path / "d"), str(tmp_path / "e"), max_shard_samples=5, workers=1)
        assert error.value.kind == "duplicate-part" and error.value.record == "b.txt"


class TestAppend:
    def test_a_new_split_is_a_warning(self, root: Path, tmp_path: Path) -> None:
        fm.write(str(tmp_path / "more"), samples(3, 500))
        for dry_run in (True, False):
            report = append(str(root), [str(tmp_path / "more")], split="vall", dry_run=dry_run, workers=1)
            warnings = report.dry_run.warnings if report.dry_run is not None else report.warnings
            assert warnings == [
                "the split 'vall' is new (did you mean 'val'?): until now the dataset had train, val, test"
            ]
        fm.write(str(root), samples(1, 900), split="vall", append=True)
        assert len(fm.open(root, split="vall")) == 4

    def test_new_shards_come_last(self, root: Path, tmp_path: Path) -> None:
        before = {name: word for name, word in files(root).items() if ".tar" in name}
        old = contents(root)
        fm.write(str(tmp_path / "more"), samples(50, 100))
        report = append(str(root), [str(tmp_path / "more")], split="val", max_shard_samples=20, workers=1)
        assert (report.samples, report.shards) == (50, 3)
        assert before.items() <= files(root).items()
        assert contents(root) == {**old, **contents(tmp_path / "more")}
        assert fm.open(root).splits == {"train": 60, "val": 70, "test": 20}
        assert fm.open(root, raw=True).get("s00149.json") == b'{"n":149}'
        assert check(str(root)).findings == []

    def test_it_is_what_writing_all_at_once_gives(self, tmp_path: Path) -> None:
        fm.write(str(tmp_path / "a"), samples(100), max_shard_samples=20)
        fm.write(str(tmp_path / "b"), samples(60), max_shard_samples=20)
        fm.write(str(tmp_path / "b"), samples(40, 60), max_shard_samples=20, append=True)
        assert files(tmp_path / "a") == files(tmp_path / "b")

    @pytest.mark.parametrize("split", [None, "val"])
    def test_samples_without_a_split_file_are_those_to_train_on(
        self, root: Path, tmp_path: Path, split: str | None
    ) -> None:
        (root / ".nv-meta/split.yaml").unlink()
        fm.write(str(tmp_path / "more"), samples(50, 100))
        append(str(root), [str(tmp_path / "more")], split=split, workers=1)
        assert fm.open(root).splits == ({"train": 150} if split is None else {"train": 100, "val": 50})

    def test_keys_that_are_there_are_refused_and_nothing_changes(self, root: Path) -> None:
        before = files(root)
        with pytest.raises(DataError) as error:
            fm.write(str(root), samples(3, 99), append=True)
        assert error.value.kind == "duplicate-key" and error.value.record == "s00099"
        assert {k: v for k, v in files(root).items() if ".feedmill-work" not in k} == before
        fm.write(str(root), samples(3, 100), append=True)
        assert len(fm.open(root)) == 103

    def test_refused_data_sets_leave_no_shards(self, root: Path, tmp_path: Path) -> None:
        before = files(root)
        fm.write(str(tmp_path / "more"), samples(50, 60))
        with pytest.raises(DataError, match="--prefix") as error:
            append(str(root), [str(tmp_path / "more")], max_shard_samples=20, workers=1)
        assert error.value.kind == "duplicate-key" and error.value.record == "s00060"
        assert files(root) == before

    def test_a_data_set_that_energon_prepared_grows(self, tmp_path: Path) -> None:
        make_shards(tmp_path / "d", [4, 5])
        prepare(str(tmp_path / "d"), progress=False, split_ratio="1,1,0")
        (tmp_path / "d/.nv-meta/feedmill.shards.json").unlink()
        (tmp_path / "d/.nv-meta/feedmill.members").unlink()
        fm.write(str(tmp_path / "d"), samples(3, 500), append=True, pattern="shards/shard_%03d.tar")
        ds = fm.open(tmp_path / "d", raw=True)
        assert ds.table.shards[-1] == "shards/shard_002.tar" and len(ds) == 12 and ds["s00501"].key == "s00501"
        assert check(str(tmp_path / "d")).findings == []

    def test_only_prepared_data_sets_grow(self, tmp_path: Path) -> None:
        make_shards(tmp_path / "d", [4])
        with pytest.raises(NotFound):
            fm.write(str(tmp_path / "d"), samples(3), append=True)
        with pytest.raises(ConfigError):
            append(str(tmp_path / "d"), [])


class TestDelete:
    def test_only_their_shards_are_written(self, root: Path) -> None:
        before, old = files(root), contents(root)
        report = delete(str(root), ["s00000", "s00019", "s00045"], workers=1)
        assert (report.samples, report.rewritten, report.removed, report.shards) == (3, 2, 0, 5)
        for key in ("s00000", "s00019", "s00045"):
            del old[key]
        assert contents(root) == old
        same = {name for name, word in files(root).items() if before.get(name) == word}
        assert {f"shards/00000{i}.tar" for i in (1, 3, 4)} <= same
        assert not {f"shards/00000{i}.tar" for i in (0, 2)} & same
        assert check(str(root)).findings == [] and not (root / ".feedmill-work").exists()
        with pytest.raises(NotFound):
            fm.open(root).find("s00019")
        assert fm.open(root, raw=True).get("s00046.json") == b'{"n":46}'

    def test_it_is_what_writing_without_them_gives(self, tmp_path: Path) -> None:
        fm.write(str(tmp_path / "a"), samples(20), max_shard_samples=20)
        delete(str(tmp_path / "a"), [f"s{i:05d}" for i in range(10, 20)], workers=1)
        fm.write(str(tmp_path / "b"), samples(10), max_shard_samples=20)
        assert files(tmp_path / "a") == files(tmp_path / "b")

    def test_a_shard_of_which_nothing_stays_is_removed(self, root: Path) -> None:
        exclude(root, "shards/000004.tar", "shards/000003.tar/s00060", "shards/000001.tar/s00025")
        gone = [f"s{i:05d}" for i in (*range(20, 40), *range(80, 100), 60)]
        report = delete(str(root), gone, workers=1)
        assert (report.rewritten, report.removed, report.shards) == (1, 2, 3)
        assert fm.open(root).splits == {"train": 40, "val": 19, "test": 0}
        assert sorted(p.name for p in (root / "shards").iterdir() if p.suffix == ".tar") == [
            "000000.tar", "000002.tar", "000003.tar",
        ]  # fmt: skip
        assert not list((root / "shards").glob("000001*"))
        assert check(str(root)).findings == []

    def test_samples_with_odd_headers_keep_them(self, tmp_path: Path) -> None:
        golden = Path(__file__).parents[1] / "golden/energon/tar_quirks"
        source = next((p for p in golden.rglob("*.tar")), None)
        if source is None:
            pytest.skip("no golden tars here")
        root = tmp_path / "d"
        shutil.copytree(golden, root)
        shutil.rmtree(root / ".nv-meta", ignore_errors=True)
        prepare(str(root), progress=False, on_error="skip")
        old = contents(root)
        gone = list(old)[1::2]
        delete(str(root), gone, workers=1)
        assert contents(root) == {key: parts for key, parts in old.items() if key not in gone}

    def test_it_can_be_counted_first(self, root: Path) -> None:
        before = files(root)
        report = delete(str(root), ["s00003", "nope"], on_error="skip", dry_run=True)
        size = (root / "shards/000000.tar").stat().st_size
        assert (report.samples, report.rewritten, report.missing) == (1, 1, ["nope"]) and 0 < report.bytes < size
        assert files(root) == before

    def test_missing_keys_delete_nothing(self, root: Path, tmp_path: Path) -> None:
        before = files(root)
        with pytest.raises(NotFound) as error:
            delete(str(root), ["s00003", "nope", "no"])
        assert error.value.record == "no" and files(root) == before
        with pytest.raises(ConfigError):
            delete(str(root), [])
        with pytest.raises(ConfigError) as error:
            delete(str(root), [f"s{i:05d}" for i in range(100)])
        assert error.value.kind == "empty-result" and files(root) == before
        with pytest.raises(NotFound):
            delete(str(tmp_path), ["a"])

    def test_a_shard_that_changed_behind_the_index(self, root: Path) -> None:
        shard = root / "shards/000000.tar"
        (root / ".nv-meta/feedmill.shards.json").unlink()
        data = shard.read_bytes().replace(b"s00004.json", b"x00004.json")
        shard.write_bytes(data)
        with pytest.raises(FeedmillError):
            delete(str(root), ["s00003"], workers=1)
        assert shard.read_bytes() == data


def lengths(batch: list[Sample]) -> list[Mapping[str, Any]]:
    return [{"len.json": len(sample.raw("bin")), "vec.npy": __import__("numpy").arange(3)} for sample in batch]


def too_few(batch: list[Sample]) -> list[Mapping[str, Any]]:
    return [{} for _ in batch[1:]]


class TestAddParts:
    def test_parts_of_a_data_set_with_the_same_keys(self, root: Path, tmp_path: Path) -> None:
        old = contents(root)
        rows = [{"__key__": f"s{i:05d}", "cls": i % 7, "txt": f"text {i}"} for i in reversed(range(100))]
        fm.write(str(tmp_path / "extra"), rows)
        report = add_parts(str(root), str(tmp_path / "extra"), parts=["cls"], workers=1)
        assert (report.samples, report.rewritten) == (100, 5)
        assert contents(root) == {key: {**parts, "cls": b"%d" % (int(key[1:]) % 7)} for key, parts in old.items()}
        assert fm.open(root).splits == {"train": 60, "val": 20, "test": 20}
        assert check(str(root)).findings == []
        with pytest.raises(DataError) as error:
            add_parts(str(root), str(tmp_path / "extra"), workers=1)
        assert error.value.kind == "duplicate-part"
        add_parts(str(root), str(tmp_path / "extra"), overwrite=True, workers=1)
        assert fm.open(root, raw=True)["s00008"]["txt"] == "text 8"

    def test_parts_are_kept_whatever_they_are_called(self, tmp_path: Path) -> None:
        for name, names in (("d", ("__a", "txt")), ("extra", ("__b", "cls", "__key__"))):
            write_tar(tmp_path / name / "0.tar", [(f"{key}.{part}", b"1") for key in "xy" for part in names])
            prepare(str(tmp_path / name), split_ratio="1,0,0", progress=False)
        add_parts(str(tmp_path / "d"), str(tmp_path / "extra"), into=str(tmp_path / "e"), workers=1)
        assert set(contents(tmp_path / "e")["y"]) == {"__b", "cls", "__key__"}
        add_parts(str(tmp_path / "d"), str(tmp_path / "extra"), workers=1)
        assert set(contents(tmp_path / "d")["y"]) == {"__a", "txt", "__b", "cls", "__key__"}

    def test_a_shard_that_changed_since_an_interruption_is_read_again(self, tmp_path: Path) -> None:
        for number in range(3):
            write_tar(tmp_path / f"d/s{number}.tar", [(f"k{number}{i}.txt", b"old") for i in range(3)])
        prepare(str(tmp_path / "d"), split_ratio="1,0,0", progress=False)
        fm.write(
            str(tmp_path / "x"), [{"__key__": f"k{n}{i}", "cls": n} for n in range(3) for i in range(3) if n + i < 4]
        )
        with pytest.raises(NotFound, match="no sample with this key"):
            add_parts(str(tmp_path / "d"), str(tmp_path / "x"), workers=1)
        write_tar(tmp_path / "d/s0.tar", [(f"k0{i}.txt", b"new") for i in range(3)])  # fixed, as is the bad one
        write_tar(tmp_path / "d/s2.tar", [(f"k2{i}.txt", b"old") for i in range(2)])
        prepare(str(tmp_path / "d"), split_ratio="1,0,0", progress=False)
        add_parts(str(tmp_path / "d"), str(tmp_path / "x"), workers=1)
        found = contents(tmp_path / "d")
        assert found["k00"] == {"txt": b"new", "cls": b"0"} and found["k21"] == {"txt": b"old", "cls": b"2"}
        assert check(str(tmp_path / "d")).findings == []

    def test_parts_of_a_function(self, root: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        add_parts(str(root), lengths, workers=1)
        add_parts(str(copy), lengths, workers=2)
        assert fm.open(root, raw=True)["s00003"]["len.json"] == 111
        assert files(root) == files(copy)
        with pytest.raises(DataError, match="for 20 samples"):
            add_parts(str(root), too_few, workers=1)

    def test_a_data_set_of_its_own(self, root: Path, tmp_path: Path) -> None:
        before = files(root)
        report = add_parts(str(root), lengths, into=str(tmp_path / "e"), workers=2)
        assert (report.samples, report.shards) == (100, 5) and files(root) == before
        both = fm.open(tmp_path / "e", raw=True)
        assert both.get("s00003.len.json") == b"111" and list(both[0]) == ["len.json", "vec.npy"]

    def test_missing_keys(self, root: Path, tmp_path: Path) -> None:
        fm.write(str(tmp_path / "extra"), [{"__key__": "s00007", "cls": 1}])
        before = files(root)
        with pytest.raises(NotFound) as error:
            add_parts(str(root), str(tmp_path / "extra"), workers=1)
        assert error.value.record == "s00000"
        assert {k: v for k, v in files(root).items() if ".feedmill-work" not in k} == before
        report = add_parts(str(root), str(tmp_path / "extra"), on_error="skip", workers=1)
        assert "1 parts were added" in report.warnings[0] and fm.open(root)["s00007"]["cls"] == 1
        report = add_parts(str(root), str(tmp_path / "extra"), on_error="skip", into=str(tmp_path / "f"), workers=1)
        assert report.samples == 1 and "99 samples" in report.warnings[0]
        for options in ({"on_error": "what"}, {"parts": ["nope"]}):
            with pytest.raises(FeedmillError):
                add_parts(str(root), str(tmp_path / "extra"), **options)

    def test_a_source_with_none_of_the_keys_is_an_error(self, root: Path, tmp_path: Path) -> None:
        fm.write(str(tmp_path / "extra"), [{"__key__": "other", "cls": 1}])
        before = files(root)
        with pytest.raises(
            EmptyResult, match=r"0 of 100 samples kept \(100: the source lacks the key\).*--allow-empty"
        ):
            add_parts(str(root), str(tmp_path / "extra"), on_error="skip", workers=1)
        assert {k: v for k, v in files(root).items() if ".feedmill-work" not in k} == before
        report = add_parts(str(root), str(tmp_path / "extra"), on_error="skip", allow_empty=True, workers=1)
        assert "0 parts were added" in report.warnings[0]

    def test_excluded_samples_get_their_parts_too(self, root: Path) -> None:
        exclude(root, "shards/000004.tar", "shards/000001.tar/s00025")
        add_parts(str(root), lengths, workers=1)
        exclude(root)
        assert all("len.json" in parts for parts in contents(root).values())


class TestReading:
    """However large samples are, only this many bytes of them are held at once."""

    @pytest.fixture
    def most(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The most samples that were read at once; at most two of those of `large` may be."""
        found = [0]
        for kind in (TarDataset, JsonlDataset, TableDataset):
            read = kind.read_raw

            def counting(self: Any, indices: Any, read: Any = read) -> Any:
                found[0] = max(found[0], len(indices))
                return read(self, indices)

            monkeypatch.setattr(kind, "read_raw", counting)
        monkeypatch.setattr(copying, "READ_BYTES", 50_000)
        return found

    def large(self, count: int, part: str = "txt") -> list[dict[str, Any]]:
        return [{"__key__": f"k{i:03d}", part: f"{i:020d}" * 1000} for i in range(count)]

    @pytest.mark.parametrize("kind", ["tars", "lines", "table"])
    @pytest.mark.parametrize("shuffle", [None, 5])
    def test_resharding_and_appending(self, tmp_path: Path, most: list[int], kind: str, shuffle: int | None) -> None:
        source = str(tmp_path / "s")
        if kind == "tars":
            fm.write(source, self.large(300))
        elif kind == "lines":
            source += ".jsonl"
            Path(source).write_text("".join(json.dumps(sample) + "\n" for sample in self.large(300)))
        else:
            source += ".parquet"
            pq.write_table(pa.Table.from_pylist(self.large(300)), source, compression="none")
        reshard(source, str(tmp_path / "e"), max_shard_samples=300, shuffle=shuffle, workers=1, progress=False)
        fm.write(str(tmp_path / "f"), samples(3))
        append(str(tmp_path / "f"), [source], workers=1, progress=False)
        assert 1 <= most[0] <= (3 if kind == "table" else 2)
        assert (len(fm.open(tmp_path / "e")), len(fm.open(tmp_path / "f"))) == (300, 303)
        assert check(str(tmp_path / "e")).findings == check(str(tmp_path / "f")).findings == []

    @pytest.mark.parametrize("into", [True, False])
    def test_adding_parts(self, tmp_path: Path, most: list[int], into: bool) -> None:
        fm.write(str(tmp_path / "d"), ({"__key__": f"k{i:03d}", "cls": i} for i in range(300)))
        fm.write(str(tmp_path / "s"), self.large(300)[::-1])
        fm.write(str(tmp_path / "b"), self.large(300, "a.txt"))
        target = str(tmp_path / "e") if into else None
        add_parts(str(tmp_path / "d"), str(tmp_path / "s"), into=target, workers=1, progress=False)
        found = contents(tmp_path / ("e" if into else "d"))
        assert all(found[sample["__key__"]]["txt"] == sample["txt"].encode() for sample in self.large(300))
        most[0] = 0
        add_parts(str(tmp_path / "b"), str(tmp_path / "s"), workers=1, progress=False)
        assert 1 <= most[0] <= 2

    def test_small_samples_are_read_many_at_once(
        self, tmp_path: Path, most: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fm.write(str(tmp_path / "d"), ({"__key__": f"{i}", "cls": i} for i in range(600)))
        monkeypatch.setattr(copying, "READ_BYTES", 64 << 20)
        reshard(str(tmp_path / "d"), str(tmp_path / "e"), max_shard_samples=600, workers=1, progress=False)
        assert most[0] == 256
