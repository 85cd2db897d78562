"""Join indices: Energon's own reproduced, and its known errors not made."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.formats.energon import join as energon_join
from feedmill.formats.energon.join import JoinSide, compute, energon_name, joined_samples, own_name, read_join_index
from feedmill.indexing.prepare_joins import prepare_joins
from feedmill.jobs.dry_run import dry_run
from feedmill.samples.open import open as open_dataset
from feedmill.storage import open_store
from helpers.digests import GOLDEN, expected

META = GOLDEN / "metadatasets"
NEGATIVE = GOLDEN / "negative" / "joins"


def part(path: Path, nonmatch: str = "error", split: str = "train", config: str | None = None) -> JoinSide:
    return JoinSide.of(open_dataset(path, split=split, split_config=config, raw=True), nonmatch)


JOINS = {
    "join.yaml.cache/join_index_d01f318c0b8f38aaeae5b5f7745c7d60ae7aded323982a823738f299068507e8.bin": lambda: [
        part(META / "joinL", config="split_ex.yaml"),
        part(META / "joinR", "skip"),
        part(META / "joinR", "skip"),
    ],
    "join.yaml.cache/join_index_ee7935d15d2031c8071febfc8bd947f8272ac2336eda2943f9a0585072b0c1bd.bin": lambda: [
        part(META / "joinL"),
        part(META / "joinR", "skip"),
    ],
    "join_none.yaml.cache/join_index_79e97c0ed386cdbf2436cc25e99698d6553ab495c69ae773df6ba804ed7fa9f9.bin": lambda: [
        part(META / "joinL"),
        part(META / "joinR", "skip"),
        part(META / "joinS", "none"),
    ],
}


@pytest.mark.parametrize("path", JOINS)
def test_energons_own_files_by_name_and_byte(path: str, tmp_path: Path) -> None:
    parts = JOINS[path]()
    folder, name = path.split("/")
    assert energon_name(parts) == name
    golden = expected("metadatasets")["disk"]["join_index"][path]
    rows = read_join_index(open_store(META / folder), name)
    assert rows.reshape(len(rows), -1).tolist() == golden["rows"] and rows.shape[1] == golden["columns"]
    join = compute(parts)
    np.testing.assert_array_equal(join.places, rows)
    energon_join.write_join_index(open_store(tmp_path), name, join.places)
    assert (tmp_path / name).read_bytes() == (META / path).read_bytes()
    np.testing.assert_array_equal(energon_join.samples_at(parts, rows, name), join.samples)


def test_rows_name_samples_by_number_with_excluded_ones_left_out() -> None:
    parts = next(iter(JOINS.values()))()
    keys = [
        [each.dataset.locate(i).key for i in column]
        for each, column in zip(parts, compute(parts).samples.T, strict=True)
    ]
    assert keys == [["0008", "0000", "0004", "0005"]] * 3


def test_two_splits_never_share_a_file(tmp_path: Path) -> None:
    joins = {split: [part(NEGATIVE / side, split=split) for side in "LR"] for split in ("train", "val")}
    assert energon_name(joins["train"]) == energon_name(joins["val"])  # Energon's error
    assert own_name(joins["train"]) != own_name(joins["val"])
    store = open_store(tmp_path)
    energon_join.write_join_index(store, energon_name(joins["train"]), compute(joins["train"]).places)
    assert len(joined_samples(joins["train"], store)) == 3
    # Under the same name lie the rows of train: for val they are not whole, and are computed.
    assert joined_samples(joins["val"], store).tolist() == [[i, 4 - i] for i in range(5)]


def test_a_file_under_energons_name_is_read_where_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [part(META / "joinL"), part(META / "joinS", "none")]
    join = compute(parts)
    energon_join.write_join_index(open_store(tmp_path), energon_name(parts), join.places)
    monkeypatch.setattr(energon_join, "compute", lambda parts: pytest.fail("computed again"))
    np.testing.assert_array_equal(joined_samples(parts, open_store(tmp_path)), join.samples)


def test_names_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from feedmill.formats.energon.join import *; from feedmill.samples.open import open\n"
        f"parts = [JoinSide.of(open({str(NEGATIVE)!r} + side, split='train', split_config='two_excluded.yaml'))"
        " for side in ('/L', '/R')]\nprint(own_name(parts), energon_name(parts), compute(parts).samples.tolist())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(runs) == 1 and runs.pop().endswith("[[0, 0]]\n")


def test_a_partner_in_another_split_is_none() -> None:
    parts = [part(NEGATIVE / "L"), part(NEGATIVE / "R", "skip", config="swapped.yaml")]
    with pytest.raises(
        ConfigError, match=r"no rows: no key of .*L \(train\) is in .*R \(train\).*does not combine"
    ) as error:
        compute(parts)
    assert error.value.kind == "empty-source"
    with pytest.raises(
        ConfigError, match=r"'0000', and 2 more, .*which is not part of this split.*nonmatch: skip"
    ) as error:
        compute([parts[0], JoinSide(parts[1].dataset)])
    assert error.value.kind == "no-such-sample"


def test_damaged_and_stale_files(tmp_path: Path) -> None:
    parts = [part(META / "joinL"), part(META / "joinR", "skip")]
    store = open_store(tmp_path)
    for data in (b"", b"JIDX0001", b"JIDX0001" + bytes(8), b"JIDX0002" + bytes(56), b"JIDX0001\2" + bytes(40)):
        store.write_bytes("x.bin", data)
        with pytest.raises(DataError, match="not a complete join index"):
            read_join_index(store, "x.bin")
    for row, words in (
        ([[0, 0, 1024]], "expected 2 datasets, found 1"),
        ([[7, 0, 1024], [0, 0, 1024]], "shard 7 .* is not in this split"),
        ([[0, 512, 1024], [0, 0, 1024]], "no sample of .* begins"),
    ):
        with pytest.raises(DataError, match=words) as error:
            energon_join.samples_at(parts, np.array([row]), "x.bin")
        assert error.value.kind == "stale-index"
    excluded = [part(META / "joinL", config="split_ex.yaml")]
    with pytest.raises(DataError, match="excludes"):
        energon_join.samples_at(excluded, np.array([[[1, 1024, 1024]]]), "x.bin")


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    shutil.copy(META / "joinL" / "a.tar", tmp_path / "a.tar")
    with pytest.raises(ConfigError, match="no index of its keys"):
        JoinSide.of(open_dataset(tmp_path, raw=True))


def test_a_join_that_was_changed_after_preparing(tmp_path: Path) -> None:
    for name in ("joinL", "joinR", "joinS"):
        shutil.copytree(META / name, tmp_path / name)
    file, cache = tmp_path / "both.yaml", tmp_path / "both.yaml.cache"

    def write(right: str, nonmatch: str) -> None:
        file.write_text(
            "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
            f"      a: {{path: joinL}}\n      b: {{path: {right}, nonmatch: {nonmatch}}}\n"
            "    joiner: {__module__: builtins, __function__: dict}\n"
        )

    def files() -> set[str]:
        return {path.relative_to(cache).as_posix() for path in cache.rglob("*.bin")}

    def opened() -> int:
        return len(joined_samples([part(tmp_path / "joinL"), part(tmp_path / right, nonmatch)], open_store(cache)))

    right, nonmatch = "joinR", "skip"
    write(right, nonmatch)
    assert opened(), "nothing was prepared: it is computed"
    prepare_joins(str(file))
    before, count = files(), opened()
    assert len(before) == 2 and sum("/" not in name for name in before) == 1, "Energon's file, and ours in a folder"
    (cache / "notes.bin").write_bytes(b"of a user")

    right, nonmatch = "joinS", "none"
    write(right, nonmatch)
    with pytest.raises(DataError, match="other joins are prepared there, but not this one") as error:
        opened()
    assert error.value.kind == "stale-index" and "feedmill prepare" in str(error.value.fix)
    with dry_run() as dry:
        prepare_joins(str(file))
    assert {Path(path).relative_to(cache).as_posix() for path in dry.deletes} == before
    assert files() == before | {"notes.bin"}
    prepare_joins(str(file))
    assert len(files()) == 3 and not files() & before, "the joins of the earlier state are gone, other files are not"
    assert opened() >= count
