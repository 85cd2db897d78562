"""Megatron-LM's files: golden bytes both ways, sequences and documents, modes, and damaged indices."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, write_manifest
from feedmill.formats.tokens.megatron import (
    HEADER,
    is_megatron,
    megatron_dtype,
    open_megatron,
    read_header,
    read_modes,
    write_megatron,
)
from feedmill.storage import LocalStore
from helpers.durations import examples
from helpers.nanoset_golden import NANOSETS, copy_into, documents, expected, sha256

CASES = [(run, name) for run, files in expected()["megatron"].items() for name in files if name.endswith(".idx")]


@pytest.mark.parametrize(("run", "name"), CASES)
def test_golden_indices_are_read(run: str, name: str) -> None:
    wanted, store = expected()["megatron"][run][name], LocalStore(NANOSETS / run)
    index = read_header(store, name)
    assert (index.sequences, index.documents + 1) == (wanted["sequence_count"], wanted["document_count"])
    assert index.dtype == {8: "<u2", 4: "<i4"}[wanted["dtype_code"]]
    assert not index.multimodal and is_megatron(store, name)


@pytest.mark.parametrize("name", ["m_00000_tokens", "m_00001_tokens"])
@pytest.mark.parametrize("run", ["meg_2b", "meg_4b"])
def test_golden_files_are_written_again(run: str, name: str, tmp_path: Path) -> None:
    source = open_megatron(LocalStore(NANOSETS / "meg_2b"), f"{name}.idx", name)
    assert source.lengths.tolist() == expected()["megatron"]["meg_2b"][f"{name}.idx"]["lengths"]
    dtype = megatron_dtype(1_000 if run == "meg_2b" else 66_000, datatrove=True)
    with write_megatron(LocalStore(tmp_path), f"{name}.bin", dtype) as writer:
        if run == "meg_2b":
            copy_into(source, writer)
            assert (writer.documents, writer.tokens) == (len(source), source.tokens)
        else:  # the tokens are those of the four-byte run of datatrove, which has the same documents
            from feedmill.formats.tokens.ds import open_ds

            copy_into(open_ds(LocalStore(NANOSETS / "four_byte"), f"{name[2:7]}_unshuffled.ds", name), writer)
    wanted = expected()["megatron"][run]
    for suffix in (".bin", ".idx"):
        assert sha256(tmp_path / (name + suffix)) == wanted[name + suffix]["sha256"]


def test_type_by_vocabulary() -> None:
    assert [megatron_dtype(size).name for size in (65_499, 65_500, 65_536)] == ["uint16", "int32", "int32"]
    assert [megatron_dtype(size, datatrove=True).name for size in (65_536, 65_537)] == ["uint16", "int32"]


@settings(max_examples=examples(60), deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5),
    kind=st.sampled_from(["u1", "i1", "<i2", "<u2", "<i4", "<i8"]),
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], kind: str) -> None:
    store = LocalStore(tmp_path_factory.mktemp("megatron"))
    rng = np.random.default_rng(len(lengths))
    wanted: list[list[int]] = []
    with write_megatron(store, "a/x", kind) as writer:
        for group in lengths:
            tokens = rng.integers(0, np.iinfo(kind).max, sum(group), dtype=np.int64)
            writer.add(tokens, np.asarray(group, np.int64))
            wanted += [part.tolist() for part in np.split(tokens, np.cumsum(group)[:-1])] if group else []
    for unit in ("documents", "sequences"):
        dataset = open_megatron(store, "a/x", "u", unit=unit)
        assert [sample["input_ids"].tolist() for sample in dataset.read_raw(range(len(dataset)))] == wanted


def index_of(lengths: list[int], documents: list[int], *, code: int = 8, modes: bytes = b"", version: int = 1) -> bytes:
    head = HEADER.pack(b"MMIDIDX\0\0", version, code, len(lengths), len(documents))
    begins = 2 * (np.cumsum([0, *lengths])[:-1])
    arrays = (np.asarray(lengths, "<i4"), np.asarray(begins, "<i8"), np.asarray(documents, "<i8"))
    return head + b"".join(array.tobytes() for array in arrays) + modes


def put(root: Path, lengths: list[int], index: bytes) -> LocalStore:
    (root / "x.bin").write_bytes(np.arange(sum(lengths), dtype="<u2").tobytes())
    (root / "x.idx").write_bytes(index)
    return LocalStore(root)


def test_documents_of_several_sequences(tmp_path: Path) -> None:
    lengths = [2, 0, 3, 1, 4]
    store = put(tmp_path, lengths, index_of(lengths, [0, 2, 2, 5]))
    assert open_megatron(store, "x", "u").lengths.tolist() == [2, 0, 8]
    assert open_megatron(store, "x", "u", unit="sequences").lengths.tolist() == lengths
    assert open_megatron(store, "x", "u").describe()["sequences"] == 5
    assert (
        open_megatron(store, "x", "u").fingerprint() != open_megatron(store, "x", "u", unit="sequences").fingerprint()
    )


def test_modes_of_multimodal_sets(tmp_path: Path) -> None:
    lengths = [2, 3]
    store = put(tmp_path, lengths, index_of(lengths, [0, 1, 2], modes=b"\0\1"))
    dataset = open_megatron(store, "x", "u")
    assert dataset.describe()["multimodal"] is True
    assert dataset.lengths.tolist() == lengths
    modes = read_modes(store, "x.bin")
    assert modes is not None and modes.tolist() == [0, 1]
    put(tmp_path, lengths, index_of(lengths, [0, 1, 2]))
    assert read_modes(store, "x") is None


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"", "not with b'MMIDIDX"),
        (b"\x80\x04]\x94.", "another kind of index"),
        (index_of([2, 3], [0, 1, 2])[:20], "fewer than its header .34."),
        (index_of([2, 3], [0, 1, 2])[:-1], "expected 82 bytes"),
        (index_of([2, 3], [0, 1, 2], modes=b"\0\0\0"), "found 85"),
        (index_of([2, 3], [0, 1, 2], version=2), "unsupported version 2"),
        (index_of([2, 3], [0, 1, 2], code=7), "which is not an integer"),
        (index_of([2, 3], [0, 1, 2], code=99), "which is not an integer"),
        (index_of([2, 3], []), "no document bounds"),
        (index_of([2, 3], [0, 1]), "the last document ends at sequence 1 of 2"),
        (index_of([2, 2], [0, 1, 2]), "expected 8 bytes by the index, found 10"),
        (struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2**62, 1), "found 34"),
    ],
)
def test_damaged_indices_are_refused(tmp_path: Path, index: bytes, message: str) -> None:
    store = put(tmp_path, [2, 3], index)
    with pytest.raises(DataError, match=message) as caught:
        open_megatron(store, "x", "u")
    assert "x.idx" in str(caught.value) or "x.bin" in str(caught.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (index_of([2, 3], [1, 1, 2]), "do not begin at sequence 0"),
        (index_of([2, 3], [0, 2, 1, 2]), "are not consecutive"),
    ],
)
def test_damage_found_with_the_bounds(tmp_path: Path, index: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _ = open_megatron(put(tmp_path, [2, 3], index), "x", "u").lengths


def test_sequences_that_are_not_one_after_another(tmp_path: Path) -> None:
    index = bytearray(index_of([2, 3, 1], [0, 1, 2, 3]))
    begins = HEADER.size + 4 * 3
    index[begins : begins + 8] = struct.pack("<q", 4)
    with pytest.raises(DataError, match="'0': the sequence of 2 tokens begins at byte 4, expected byte 0"):
        _ = open_megatron(put(tmp_path, [2, 3, 1], bytes(index)), "x", "u").lengths


def test_missing_files(tmp_path: Path) -> None:
    store = put(tmp_path, [2, 3], index_of([2, 3], [0, 1, 2]))
    (tmp_path / "x.bin").unlink()
    with pytest.raises(NotFound):
        open_megatron(store, "x", "u")
    with pytest.raises(NotFound):
        open_megatron(store, "y", "u")
    assert not is_megatron(store, "y.idx")


def test_writing_wrongly(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ConfigError, match="not support tokens of type float32"), write_megatron(store, "x", "f4"):
        pass
    with write_megatron(store, "x", "u2") as writer:
        with pytest.raises(ConfigError, match="written without one"):
            writer.add(*documents([1]), np.array([True]))
        with pytest.raises(DataError, match="'0': the document has 2147483648 tokens"):
            writer.add(np.zeros(0, np.int64), np.array([2**31]))
        with pytest.raises(DataError, match="the token id 70000 does not fit into 2 bytes"):
            writer.add(*documents([1], 70_000))


def test_the_tokenizer_is_shown(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with write_megatron(store, "x", "u2") as out:
        out.add(*documents([2, 3]))
    write_manifest(store, "x.idx", TokenManifest("megatron", 2, 5, tokenizer=TokenizerFacts("gpt2", "ab12", 50257)))
    assert open_megatron(store, "x.bin", "x.bin").describe()["tokenizer"] == "gpt2"
