"""Parts by file name: through the index of parts where that is enough, through the whole sample where it is not."""

from __future__ import annotations

import gzip
import os
import sqlite3
from pathlib import Path

import pytest

from feedmill.errors import DataError, NotFound
from feedmill.formats.tar.dataset import TarDataset
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from helpers.tars import sparse_tar, tar_bytes, write_tar

FILES = [("a.txt", b"one"), ("a.json", b"{}"), ("b.txt", b"two"), ("b.empty.bin", b""), ("c/ü.txt", b"three" * 300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tar(tmp_path / "0.tar", FILES)
    write_tar(tmp_path / "1.tar", [("z.txt", b"last")])
    prepare(str(tmp_path), split_ratio="1,1,0", progress=False)
    return tmp_path


def opened(folder: Path, split: str | None = None) -> TarDataset:
    dataset = open_dataset(folder, split=split, raw=True)
    assert isinstance(dataset, TarDataset)
    return dataset


def test_plain_parts_are_read_without_their_sample(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(folder)
    dataset.get("z.txt")  # opens the index
    reads = []
    whole = type(dataset.store).read

    def read(store: object, path: str, *where: int) -> bytes:
        reads.append((path, *where))
        return whole(store, path, *where)

    monkeypatch.setattr(type(dataset.store), "read", read)
    names = [name for name, _ in FILES]
    assert dataset.get_many(names) == [data for _, data in FILES]
    assert [length for _, _, length in reads] == [512 + len(data) for _, data in FILES]


def test_sparse_parts_are_expanded_by_name_too(tmp_path: Path) -> None:
    whole = bytes(1000) + b"AAAA" + bytes(3996) + b"BBB" + bytes(997)
    for number, kind in enumerate(("gnu", "0.0", "0.1", "1.0")):
        name = f"{number}.bin".encode()  # a key of its own for each form
        (tmp_path / f"{number}.tar").write_bytes(renamed(sparse_tar(kind), name))
    prepare(str(tmp_path), progress=False)
    dataset = open_dataset(tmp_path, raw=True, decode=None)
    for number in range(4):
        assert dataset.get(f"{number}.bin") == whole
        assert dataset[number]["bin"] == whole


def renamed(data: bytes, name: bytes) -> bytes:
    """The tar with the member k.bin under another name of its length, checksums fixed."""
    out = bytearray(data.replace(b"k.bin", name))
    for at in range(0, len(out), 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = f"{sum(out[at : at + 512]):06o}\0 ".encode()
    return bytes(out)


def test_an_index_without_parts_is_enough(folder: Path) -> None:
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as connection:
        connection.execute("DROP TABLE sample_parts")
    assert opened(folder).get_many([name for name, _ in FILES]) == [data for _, data in FILES]


def test_a_part_that_is_not_there(folder: Path) -> None:
    with pytest.raises(NotFound, match=r"no part 'jpg' \(it has: json, txt\)"):
        opened(folder).get("a.jpg")
    with pytest.raises(NotFound, match="no sample with this key"):
        opened(folder).get("nope.txt")
    with pytest.raises(NotFound, match=r"the sample is in 1\.tar"):
        opened(folder, "train").get("z.txt")
    assert opened(folder, "val").get("z.txt") == b"last"


@pytest.mark.parametrize(
    "changed",
    [
        [("x.txt", b"ONE"), ("x.json", b"{}"), *FILES[2:]],  # another key, same layout
        [("x.txt", b"ONE"), *FILES[1:]],
        [("a.xml", b"one"), ("q.txt", b"{}"), *FILES[2:]],
    ],
)
def test_another_samples_bytes_are_never_given(folder: Path, changed: list[tuple[str, bytes]]) -> None:
    dataset = opened(folder)
    write_tar(folder / "0.tar", changed)
    for ask in (lambda: dataset.get("a.txt"), lambda: dataset["a"]):
        with pytest.raises(DataError, match="run 'feedmill prepare' again") as error:
            ask()
        assert (error.value.kind, error.value.file) == ("stale-index", str(folder / "0.tar"))


def test_samples_by_key_go_through_the_view(folder: Path) -> None:
    dataset = opened(folder).opened_as(view=lambda samples: [sample.key for sample in samples])
    assert [dataset[key] for key in ("a", "b", "c/ü", "z")] == ["a", "b", "c/ü", "z"]
    assert opened(folder)["b"].home is not None
    write_tar(folder / "0.tar", [("x.txt", b"ONE"), ("x.json", b"{}"), *FILES[2:]])
    assert dataset["b"] == "b"
    with pytest.raises(DataError, match="expected the sample 'a' here, found 'x'"):
        _ = dataset["a"]


def test_a_shard_replaced_in_mid_run_is_noticed(folder: Path) -> None:
    """Same size, same time of change, and the descriptor gone from the cache: only the header tells."""
    from feedmill.storage import local

    dataset = opened(folder)
    assert dataset.get("a.txt") == b"one"
    path = folder / "0.tar"
    status = path.stat()
    swapped = [("b.txt", b"two"), ("a.json", b"{}"), ("a.txt", b"one"), *FILES[3:]]
    write_tar(path, swapped)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    local._kept.clear()
    local._current.clear()
    with pytest.raises(DataError):
        dataset.get("a.txt")


TAIL = "data follows the end-of-archive marker (10,240 bytes); its samples are not read"


@pytest.mark.parametrize("indexed", [False, True])
def test_two_tars_in_one_file_are_reported_when_opened(
    indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", 0 if indexed else 1 << 40)
    two = tar_bytes([("a.txt", b"1")]) + tar_bytes([("b.txt", b"2")])
    (tmp_path / "0.tar").write_bytes(two)
    (tmp_path / "1.tar").write_bytes(tar_bytes([("c.txt", b"3")])[:1024])
    write_tar(tmp_path / "2.tar", [("d.txt", b"4")])
    expected = [
        f"{tmp_path / '0.tar'}: {TAIL}",
        f"{tmp_path / '1.tar'}: no end-of-archive marker; it may lack samples",
    ]
    for _ in range(2):  # scanned, and from the index
        caplog.clear()
        dataset = open_dataset(tmp_path)
        assert [sample.key for sample in dataset] == ["a", "c", "d"]
        assert dataset.describe()["remarks"] == expected == [record.message for record in caplog.records]
    prepare(str(tmp_path), progress=False)
    assert "remarks" not in open_dataset(tmp_path).describe()  # `prepare` reported them


def test_two_tars_in_a_compressed_file_are_reported_once_it_is_unpacked(tmp_path: Path) -> None:
    two = tar_bytes([("a.txt", b"1")]) + tar_bytes([("b.txt", b"2")])
    (tmp_path / "0.tar.gz").write_bytes(gzip.compress(two))
    dataset = open_dataset(tmp_path)
    assert len(dataset) == 1 and dataset.describe()["remarks"] == [f"{tmp_path / '0.tar.gz'}: {TAIL}"]


def test_remarks_about_many_shards_are_counted(tmp_path: Path) -> None:
    for number in range(23):
        (tmp_path / f"{number:02}.tar").write_bytes(tar_bytes([(f"{number}.txt", b"1")])[:1024])
    remarks = open_dataset(tmp_path).describe()["remarks"]
    assert len(remarks) == 21 and remarks[-1].startswith("3 more")
