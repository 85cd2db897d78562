"""datatrove's files: golden bytes both ways, folders, and everything that does not fit together."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.ds import (
    ds_token_size,
    file_order,
    human_tokens,
    metadata_text,
    open_ds,
    read_metadata,
    write_ds,
)
from feedmill.storage import LocalStore
from helpers.durations import examples
from helpers.nanoset_golden import NANOSETS, documents, expected, sha256

WHOLE = [
    (run, name)
    for run, about in expected()["runs"].items()
    for name in (about["files"] or {})
    if name.endswith(".ds") and (NANOSETS / run / name).exists()
]


@pytest.mark.parametrize(("run", "name"), WHOLE)
def test_golden_files_are_read(run: str, name: str) -> None:
    about = expected()["runs"][run]
    dataset = open_ds(LocalStore(NANOSETS / run), name, f"{run}/{name}")
    wanted, ends = about["tokens"][name], about["files"][f"{name}.index"]["doc_ends"]
    assert dataset.tokens == wanted["n_tokens"]
    assert dataset.shards[0].bounds.tolist() == [0, *ends]
    tokens = np.concatenate([sample["input_ids"] for sample in dataset.read_raw(range(len(dataset)))])
    assert tokens[: len(wanted["first"])].tolist() == wanted["first"]
    assert tokens[-len(wanted["last"]) :].tolist() == wanted["last"]
    assert int(tokens.max()) == wanted["max"]
    assert dataset.describe()["tokenizer"] == metadata_of(run, name).split("|")[0]


def metadata_of(run: str, name: str) -> str:
    return (NANOSETS / run / f"{name}.metadata").read_text()


@pytest.mark.parametrize(("run", "name"), WHOLE)
def test_golden_files_are_written_again(run: str, name: str, tmp_path: Path) -> None:
    dataset = open_ds(LocalStore(NANOSETS / run), name, name)
    shard, store = dataset.shards[0], LocalStore(tmp_path)
    loss = None if shard.load_loss is None else shard.load_loss().astype(bool)
    named = read_metadata(dataset.store, name)
    assert named is not None
    with write_ds(store, name, shard.dtype.itemsize, tokenizer_name=named.tokenizer, loss=loss is not None) as writer:
        for low in range(0, len(dataset), 5):
            rows = range(low, min(low + 5, len(dataset)))
            tokens = [sample["input_ids"] for sample in dataset.read_raw(rows)]
            begin, end = shard.bounds[low], shard.bounds[rows[-1] + 1]
            part = None if loss is None else loss[begin:end]
            writer.add(np.concatenate(tokens), np.asarray([len(each) for each in tokens]), part)
        assert (writer.documents, writer.tokens) == (len(dataset), dataset.tokens)
    wanted = expected()["runs"][run]["files"]
    assert {path.name: sha256(path) for path in tmp_path.iterdir()} == {
        each: facts["sha256"] for each, facts in wanted.items() if each.startswith(name)
    }


def test_golden_metadata_texts() -> None:
    for run, about in expected()["runs"].items():
        for name, facts in (about["files"] or {}).items():
            if name.endswith(".metadata"):
                tokenizer, size = facts["text"].split("\n")[0].split("|")
                text = metadata_text(tokenizer, int(size), int(facts["text"].split("\n")[1]))
                assert text == facts["text"], (run, name)


@pytest.mark.parametrize("case", expected()["folder_dataset"], ids=str)
def test_golden_folders_have_their_file_order(case: dict) -> None:
    seed = case["seed"] if case["shuffle"] else None
    dataset = open_ds(LocalStore(NANOSETS / case["folder"]), "", case["folder"], seed=seed)
    assert [shard.path for shard in dataset.shards] == case["files"]
    windows = np.cumsum([shard.tokens // (case["seq_len"] + 1) for shard in dataset.shards])
    assert [0, *windows] == case["lens"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00 T"),
        (1, "1.00 T"),
        (99, "99.0 T"),
        (999, "999 T"),
        (1_000, "1.00 kT"),
        (2_835, "2.83 kT"),
        (9_994, "9.99 kT"),
        (9_995, "9.99 kT"),
        (9_999, "10.0 kT"),
        (99_949, "99.9 kT"),
        (99_999, "100 kT"),
        (999_499, "999 kT"),
        (999_500, "1.00 MT"),
        (12_345_678, "12.3 MT"),
        (10**9, "1.00 GT"),
        (15 * 10**12, "15.0 TT"),
        (10**15, "1.00 PT"),
        (10**18, "1.00 ET"),
    ],
)
def test_numbers_for_people(count: int, text: str) -> None:
    assert human_tokens(count) == text  # as humanize 4.17 says them


def test_token_size_by_vocabulary() -> None:
    assert [ds_token_size(size) for size in (1, 65_536, 65_537)] == [2, 2, 4]


@settings(max_examples=examples(60), deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5),
    size=st.sampled_from([2, 4]),
    loss=st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], size: int, loss: bool
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("ds"))
    rng = np.random.default_rng(len(lengths))
    wanted: list[list[int]] = []
    masks: list[bool] = []
    with write_ds(store, "a/x.ds", size, tokenizer_name="t", loss=loss) as writer:
        for group in lengths:
            tokens = rng.integers(0, 2 ** (8 * size), sum(group))
            mask = rng.random(sum(group)) < 0.5
            writer.add(tokens, np.asarray(group, np.int64), mask if loss else None)
            wanted += [part.tolist() for part in np.split(tokens, np.cumsum(group)[:-1])] if group else []
            masks += mask.tolist()
    for path in ("a/x.ds", "a", ""):
        dataset = open_ds(store, path, "u")
        assert [sample["input_ids"].tolist() for sample in dataset.read_raw(range(len(dataset)))] == wanted
        assert dataset.lengths.tolist() == [len(each) for each in wanted]
    load = dataset.shards[0].load_loss
    assert (load is not None) == loss
    if load is not None:
        assert load().astype(bool).tolist() == masks


def write(store: LocalStore, path: str, lengths: list[int], size: int = 2, **options: bool) -> None:
    with write_ds(store, path, size, tokenizer_name="t", **options) as writer:
        writer.add(*documents(lengths))


def test_files_of_a_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number, name in enumerate(["b.ds", "a.ds", "deep/er/c.ds", "other.ds", "d_x.ds"]):
        write(store, name, [number + 1])
    assert [s.path for s in open_ds(store, "", "u").shards] == ["a.ds", "b.ds", "d_x.ds", "deep/er/c.ds", "other.ds"]
    assert [s.path for s in open_ds(store, "", "u", recursive=False).shards] == ["a.ds", "b.ds", "d_x.ds", "other.ds"]
    assert [s.path for s in open_ds(store, "deep/", "u").shards] == ["deep/er/c.ds"]
    chosen = open_ds(
        store, "", "u", select=lambda paths: [path for path in reversed(paths) if path in ("a.ds", "b.ds")]
    )
    assert [shard.path for shard in chosen.shards] == ["a.ds", "b.ds"]
    shuffled = [shard.path for shard in open_ds(store, "", "u", seed=42).shards]
    assert shuffled == file_order(["other.ds", "b.ds", "a.ds", "d_x.ds", "deep/er/c.ds"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"no files match '\*\.ds'"):
        open_ds(store, "empty", "u")
    with pytest.raises(NotFound):
        open_ds(store, "nowhere.ds", "u")


def test_without_index_there_are_only_windows(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4], index=False)
    dataset = open_ds(store, "x.ds", "u")
    assert dataset.tokens == 7
    assert dataset.describe()["indexed"] is False
    with pytest.raises(NotFound, match="index of documents is missing"):
        len(dataset)


@pytest.mark.parametrize("size", [2, 4])
def test_token_size_is_told_by_whatever_is_there(tmp_path: Path, size: int) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4], size, metadata=False)
    assert open_ds(store, "x.ds", "u").shards[0].dtype.itemsize == size
    assert open_ds(store, "x.ds", "u", token_size=size).tokens == 7
    with pytest.raises(ConfigError, match=f"{6 - size} bytes per token, but it has {size}"):
        open_ds(store, "x.ds", "u", token_size=6 - size)
    write(store, "x.ds", [3, 4], size, metadata=False, index=False)
    assert not (tmp_path / "x.ds.index").exists()  # one of an older file
    with pytest.raises(ConfigError, match="the token size is unknown"):
        open_ds(store, "x.ds", "u")
    assert open_ds(store, "x.ds", "u", token_size=size).tokens == 7


def test_a_name_that_datatrove_does_not_know(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3])
    (tmp_path / "x.ds.metadata").write_text("Unknown Tokenizer|2|2\n3\n3.00 T")
    assert open_ds(store, "x.ds", "u").describe().get("tokenizer") is None
    with write_ds(store, "y.ds", 4, tokenizer_name=None) as writer:
        writer.add(*documents([1]))
    assert (tmp_path / "y.ds.metadata").read_text() == "Unknown Tokenizer|4\n1\n1.00 T"
    found = read_metadata(store, "y.ds")
    assert found is not None and (found.tokenizer, found.token_size) == ("", 4)


def test_empty_files_of_idle_tasks(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "0.ds", [3, 2], 4)
    write(store, "1.ds", [], 4)
    write(store, "2.ds", [1], 4)
    (tmp_path / "3.ds").write_bytes(b"")
    (tmp_path / "3.ds.index").write_bytes(b"")
    dataset = open_ds(store, "", "u")
    assert dataset.lengths.tolist() == [3, 2, 1]
    assert (tmp_path / "1.ds.metadata").read_text() == "t|4\n0\n0.00 T"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("x.ds", lambda b: b[:-1], "13 bytes are not a multiple of the token size"),
        ("x.ds", lambda b: b[:-2], "expected 7 tokens by its '.metadata', found 6"),
        ("x.ds", lambda b: b + b"\0\0", "expected 7 tokens by its '.metadata', found 8"),
        ("x.ds.index", lambda b: b[:-3], "not a list of 8-byte numbers"),
        ("x.ds.index", lambda b: b[:-8], "expected 3 tokens by its '.index', found 7"),
        ("x.ds.loss", lambda b: b[:-1], "expected 6 tokens by its '.loss'"),
        ("x.ds.metadata", lambda b: b"", "invalid metadata of token data"),
        ("x.ds.metadata", lambda b: b"name\n7\n", "invalid metadata of token data"),
        ("x.ds.metadata", lambda b: b"t|3\n7\n", "invalid metadata of token data"),
        ("x.ds.metadata", lambda b: b"t|two\n7\n", "invalid metadata of token data"),
        ("x.ds.metadata", lambda b: b"t|2", "invalid metadata of token data"),
        ("x.ds.metadata", lambda b: b"\xff|2\n7", "invalid metadata of token data"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, file: str, change: object, message: str) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4], loss=True)
    path = tmp_path / file
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as caught:
        open_ds(store, "x.ds", "u")
    assert str(tmp_path) in str(caught.value) and caught.value.fix


def test_an_index_that_falls_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4, 2])
    (tmp_path / "x.ds.index").write_bytes(np.array([5, 3, 9], "<u8").tobytes())
    with pytest.raises(DataError, match="'1': the document ends at token 3, before it begins"):
        _ = open_ds(store, "x.ds", "u").lengths
    (tmp_path / "x.ds.index").write_bytes(np.array([5, 2**64 - 1, 9], "<u8").tobytes())
    with pytest.raises(DataError, match="before it begins"):
        _ = open_ds(store, "x.ds", "u").lengths


def test_an_index_of_another_file_without_metadata(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4], metadata=False)
    (tmp_path / "x.ds.index").write_bytes(np.array([3, 5], "<u8").tobytes())
    with pytest.raises(DataError, match=r"its '\.index' ends at token 5, but it has 14 bytes"):
        open_ds(store, "x.ds", "u")


def test_token_sizes_are_not_mixed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, "a.ds", [3], 2)
    write(store, "b.ds", [3], 4)
    with pytest.raises(DataError, match=r"4 bytes per token, a\.ds has 2"):
        open_ds(store, "", "u")


@pytest.mark.parametrize("bad", [-1, 65_536])
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, bad: int) -> None:
    store = LocalStore(tmp_path)
    message = f"'3': the token id {bad} does not fit into 2 bytes"
    with pytest.raises(DataError, match=message), write_ds(store, "x.ds", 2, tokenizer_name="t") as writer:
        writer.add(*documents([2, 0]))
        writer.add(np.array([1, 2, bad]), np.array([1, 2]))
    assert not list(tmp_path.iterdir())


def test_writing_wrongly(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with (
        pytest.raises(ConfigError, match="invalid token size 3"),
        write_ds(store, "x.ds", 3, tokenizer_name=""),
    ):
        pass
    with write_ds(store, "x.ds", 2, tokenizer_name="t") as writer:
        with pytest.raises(ValueError, match="add up to 3 for 2"):
            writer.add(np.array([1, 2]), np.array([3]))
        with pytest.raises(ConfigError, match="written without one"):
            writer.add(np.array([1]), np.array([1]), np.array([True]))


def test_a_copy_has_the_same_fingerprint_and_other_tokens_another(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "one")
    write(store, "x.ds", [3, 4])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    other = LocalStore(tmp_path / "two")
    assert open_ds(store, "", "u").fingerprint() == open_ds(other, "", "v").fingerprint()
    (tmp_path / "two" / "x.ds").write_bytes(b"\1\2" * 7)
    assert open_ds(store, "", "u").fingerprint() != open_ds(LocalStore(tmp_path / "two"), "", "u").fingerprint()


def _write_and_die(folder: str, kill_at: int) -> None:
    """Replace the files, and end at the rename of that number."""
    calls = 0
    rename = os.replace

    def replace(*args: str) -> None:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os._exit(9)
        rename(*args)

    os.replace = replace  # type: ignore[assignment]
    write(LocalStore(folder), "x.ds", [5, 2], loss=True)


@pytest.mark.parametrize("kill_at", [1, 2, 3, 4])
def test_killed_while_replacing(tmp_path: Path, kill_at: int) -> None:
    store = LocalStore(tmp_path)
    write(store, "x.ds", [3, 4])  # as many tokens as the new one, so only the index would tell
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(str(tmp_path), kill_at))
    process.start()
    process.join()
    assert process.exitcode == 9
    with pytest.raises(NotFound):  # none at all rather than the old tokens with the new index
        open_ds(store, "", "u")
    write(store, "x.ds", [5, 2], loss=True)
    assert open_ds(store, "", "u").lengths.tolist() == [5, 2]
