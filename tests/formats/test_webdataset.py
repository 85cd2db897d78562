"""Parts by file name: through the index of parts where that is enough, through the whole sample where it is not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from feedmill.errors import DataError, NotFound
from feedmill.formats.webdataset import TarDataset
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from tars import write_tar

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
    reads = []
    whole = type(dataset.store).read

    def read(store: object, path: str, *where: int) -> bytes:
        reads.append((path, *where))
        return whole(store, path, *where)

    monkeypatch.setattr(type(dataset.store), "read", read)
    names = [name for name, _ in FILES]
    assert dataset.get_many(names) == [data for _, data in FILES]
    assert [length for _, _, length in reads] == [512 + len(data) for _, data in FILES]


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
    with pytest.raises(DataError, match="run 'feedmill prepare' again") as error:
        dataset.get("a.txt")
    assert error.value.kind == "stale-index"
