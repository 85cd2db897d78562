"""Golden `negative`: what Energon refuses or gets wrong, each doing what its `wanted` says."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from feedmill.errors import DataError
from feedmill.formats.energon.sidecar import read_splits
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.samples.media import MediaFilter
from feedmill.storage import LocalStore
from helpers.digests import GOLDEN, expected

REFUSED = {
    # case -> kind, what the message must name
    "dup_across": ("duplicate-key", ["1.tar", "'k0'", "at byte 1024", "'0.tar'", "Rename"]),
    "dup_apart": ("split-samples", ["0.tar", "'k0'", "not adjacent", "--regroup"]),
    "empty_shard": ("no-samples", ["1.tar", "no sample", "--exclude", "--on-error skip"]),
    "only_skipped": ("no-samples", ["0.tar", "no sample"]),
    "truncated_tar": ("truncated", ["0.tar", "'b.txt'", "at byte 2048", "found 440", "feedmill edit repair"]),
    "tgz": ("compressed-shard", ["0.tgz", "compressed", "Decompress"]),
}


def copy(case: str, tmp_path: Path) -> str:
    return str(shutil.copytree(GOLDEN / "negative" / case, tmp_path / case))


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_file_offset_member_and_fix(case: str, tmp_path: Path) -> None:
    root = copy(case, tmp_path)
    kind, words = REFUSED[case]
    with pytest.raises(DataError) as caught:
        prepare(root, split_ratio="1,0,0", progress=False)
    assert caught.value.kind == kind
    for word in words:
        assert word in str(caught.value)
    left = [path.name for path in Path(root).rglob("*") if path.is_file() and path.suffix not in (".tar", ".tgz")]
    assert [name for name in left if name not in ("lock", "shards.scanned")] == []
    assert case == "tgz" or kind in {finding.kind for finding in check(root, progress=False).findings}


def test_one_bad_shard_is_left_out_only_when_asked(tmp_path: Path) -> None:
    root = copy("empty_shard", tmp_path)
    report = prepare(root, split_ratio="1,0,0", on_error="skip", progress=False)
    assert report.shards == 1
    assert [error.kind for error in report.left_out] == ["no-samples"]
    assert report.left_out[0].file is not None
    assert report.left_out[0].file.endswith("1.tar")


def test_every_shard_lands_in_a_split(tmp_path: Path) -> None:
    root = copy("ratio_rounding", tmp_path)
    for exact in (False, True):
        prepare(root, split_ratio="7,2,1", energon_exact=exact, progress=False)
        splits = read_splits(LocalStore(root))
        assert splits is not None
        assert {name: len(shards) for name, shards in splits.parts.items()} == {"train": 7, "val": 2, "test": 1}
        assert len({shard for shards in splits.parts.values() for shard in shards}) == 10


def media(root: str) -> tuple[list[str], list[tuple[str, str]]]:
    with sqlite3.connect(f"{root}/.nv-meta/index.sqlite") as connection:
        keys = [key for (key,) in connection.execute("SELECT entry_key FROM media_metadata")]
        return keys, connection.execute("SELECT strategy, patterns FROM media_filters").fetchall()


def test_a_glob_filter_stores_metadata(tmp_path: Path) -> None:
    root = copy("glob_filter", tmp_path)
    report = prepare(root, split_ratio="1,0,0", media=MediaFilter.parse(glob="*.png"), progress=False)
    assert report.media == 1
    keys, filters = media(root)
    assert len(keys) == 1
    assert keys[0].endswith(".png")
    assert filters == [("GLOB", "*.png")]


def test_one_cut_image_spoils_only_itself(tmp_path: Path) -> None:
    root = copy("truncated_image", tmp_path)
    report = prepare(root, split_ratio="1,0,0", media=MediaFilter.parse(extension=True), progress=False)
    assert report.samples == 3
    assert report.media == 2
    assert len(report.warnings) == 1
    assert "0.tar" in report.warnings[0]
    assert len(media(root)[0]) == 2


def test_the_golden_cases_are_all_looked_at() -> None:
    known = set(REFUSED) | {"ratio_rounding", "glob_filter", "truncated_image"}
    joins = {name for name in expected("negative")["energon"] if name.startswith("joins/")}
    assert set(expected("negative")["energon"]) - joins == known
