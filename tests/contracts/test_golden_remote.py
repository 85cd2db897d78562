"""What the original tools wrote, read from an object store: the samples are those of a disk."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.storage import open_store
from helpers.digests import digest

GOLDEN = Path(__file__).parents[1] / "golden"
AT_ONCE = 8
LEAST = {
    "dolma/tokens": {"dolma": 19},
    "dolma/data_zst": {"jsonl": 3, "documents": 6},
    "energon": {"webdataset": 44, "jsonl": 6},
    "modalities": {"pbin": 11, "jsonl": 7},
    "nanosets": {"ds": 31, "jsonl": 4, "documents": 3, "megatron": 5},
    "tables": {"huggingface": 1, "arrow": 8, "parquet": 9},
    "sources": {"huggingface": 6, "arrow": 8, "mds": 4, "litdata": 1, "levanter": 3, "lerobot": 3, "parquet": 21},
    "vla": {"webdataset": 7, "vla": 16, "documents": 1},
}
"""The number of folders and files of each format, so that none is left out unseen."""
SOME = 3
"""How many of them the default run reads, spread over all."""


def opened(place: str) -> Dataset | None:
    try:
        return fm.open(place)
    except (FeedmillError, ImportError):
        return None


def fields_of(sample: object) -> dict[str, object]:
    """The fields of a sample but for those that name where it is from."""
    if is_dataclass(sample):
        sample = {field.name: getattr(sample, field.name) for field in fields(sample)}
    assert isinstance(sample, Mapping)
    return {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}


def contents(dataset: Dataset) -> object:
    try:
        return [digest(fields_of(sample)) for sample in dataset.read(range(len(dataset)))]
    except FeedmillError as error:
        return error.kind


def spread(counts: dict[str, int]) -> dict[str, set[int]]:
    """For each format, which of its folders and files, in their order."""
    return {name: {round(n * (count - 1) / (SOME - 1)) for n in range(SOME)} for name, count in counts.items()}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("root", LEAST)
def test_golden_sets_are_the_same(
    root: str, every: bool, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    remote = open_store(s3_bucket)
    top = GOLDEN / root
    files = [path for path in sorted(top.rglob("*")) if path.is_file()]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda path: remote.write_bytes(str(path.relative_to(top)), path.read_bytes()), files))
    counts, chosen = dict.fromkeys(LEAST[root], 0), spread(LEAST[root])
    for path in [top, *sorted(top.rglob("*"))]:
        ours = None if path.suffix == ".tar" else opened(str(path))  # each is in a folder
        if ours is None:
            continue
        counts[ours.format] += 1
        if not every and counts[ours.format] - 1 not in chosen[ours.format]:
            continue
        url = f"{s3_bucket}/{path.relative_to(top)}".removesuffix("/.")
        theirs = fm.open(url)
        assert (theirs.format, len(theirs)) == (ours.format, len(ours)), url
        assert theirs.fingerprint() == ours.fingerprint(), url
        assert contents(theirs) == contents(ours), url
    assert counts == LEAST[root]
