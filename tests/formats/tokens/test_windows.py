"""Windows: the peers' rules as settings of one class, positions and boundaries, against plain loops and golden data."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.base import TokenDataset, TokenShard
from feedmill.formats.tokens.manifest import bounds_path
from feedmill.formats.tokens.pbin import open_pbin, open_pbins, write_pbin
from feedmill.formats.tokens.windows import BlockDataset, WindowDataset
from feedmill.kernels.order.blocks import greedy_blocks
from feedmill.loading.collate import collate
from feedmill.storage import LocalStore
from helpers.durations import examples
from oracles import blocks as plain

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
STORE = LocalStore(GOLDEN)
EOS = 7


class RemoteLike(LocalStore):
    """A store whose files are not paths of this machine, as far as readers know."""

    is_local = False


def make(
    folder: Path, files: list[list[list[int]]], width: int = 2, store: type[LocalStore] = LocalStore
) -> TokenDataset:
    names = []
    for number, docs in enumerate(files):
        names.append(f"{number}.pbin")
        with write_pbin(LocalStore(folder), names[-1], width) as out:
            out.add(
                np.array([t for doc in docs for t in doc], np.int64), np.array([len(doc) for doc in docs], np.int64)
            )
    return open_pbins(store(folder), names, str(folder))


def flat(files: list[list[list[int]]]) -> list[list[int]]:
    return [[t for doc in docs for t in doc] for docs in files]


def ids(samples: list[Any]) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in samples]


@pytest.mark.parametrize(
    "case", EXPECTED["continuous"], ids=lambda c: f"{c['file']}-{c['sequence_length']}-{c['reuse_last_target']}"
)
def test_modalities_continuous(case: dict[str, Any]) -> None:
    seq_len, reuse = case["sequence_length"], case["reuse_last_target"]
    dataset = WindowDataset(open_pbin(STORE, case["file"], "x"), width=seq_len + reuse, stride=seq_len)
    assert (dataset.width, len(dataset)) == (case["block_size"], case["len"])
    everything = dataset.gather(range(len(dataset)))
    assert everything.dtype == np.int64
    assert hashlib.sha256(everything.astype("<i8").tobytes()).hexdigest() == case["all_sha256_as_i64le"]
    for number, tokens in case["windows"].items():
        assert dataset[int(number)]["input_ids"][: len(tokens)].tolist() == tokens


def test_modalities_combined() -> None:
    case = EXPECTED["combined"]
    seq_len = case["sequence_length"]
    dataset = WindowDataset(open_pbins(STORE, case["files"], "golden"), width=seq_len + 1, stride=seq_len)
    assert dataset._ends.tolist() == case["cumulative_sizes"]
    for number, tokens in case["samples"].items():
        assert dataset[int(number)]["input_ids"][: len(tokens)].tolist() == tokens
    assert dataset.locate(case["cumulative_sizes"][0]).file == case["files"][1]


DOCS = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=8)
FILES = st.lists(DOCS, min_size=1, max_size=4)


def plain_windows(
    streams: list[list[int]], width: int, stride: int, across: bool, pad: int | None
) -> list[tuple[int, int, list[int]]]:
    """File, start, tokens of every window, by a plain loop; `across`: the files are one."""
    out = []
    if across:
        streams = [[t for stream in streams for t in stream]]
    for number, stream in enumerate(streams):
        at, covered = 0, 0
        while at + width <= len(stream):
            out.append((number, at, stream[at : at + width]))
            covered, at = at + width, at + stride
        if pad is not None and at < len(stream) and covered < len(stream):
            rest = stream[at:]
            out.append((number, at, rest + [pad] * (width - len(rest))))
    return out


@settings(max_examples=examples(250), deadline=None)
@given(
    files=FILES,
    width=st.integers(2, 9),
    stride=st.integers(1, 12),
    across=st.booleans(),
    pad=st.sampled_from([None, 3]),
    eos=st.sampled_from([None, EOS]),
    remote=st.booleans(),
    seed=st.integers(0, 99),
)
def test_windows_equal_plain_loops(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[list[int]]],
    width: int,
    stride: int,
    across: bool,
    pad: int | None,
    eos: int | None,
    remote: bool,
    seed: int,
) -> None:
    streams = flat(files)
    expected = plain_windows(streams, width, stride, across, pad)
    tokens = make(tmp_path_factory.mktemp("x"), files, store=RemoteLike if remote else LocalStore)
    options: dict[str, Any] = {"width": width, "stride": stride, "across": across, "eos": eos}
    options |= {"tail": "pad", "pad": pad} if pad is not None else {}
    options |= {"positions": True, "boundaries": True}
    if not expected:
        with pytest.raises(ConfigError, match="whole window"):
            WindowDataset(tokens, **options)
        return
    dataset = WindowDataset(tokens, **options)
    assert len(dataset) == len(expected)
    order = np.random.default_rng(seed).permutation(len(expected))
    samples = dataset.read(order)
    assert ids(samples) == [expected[i][2] for i in order.tolist()]
    for sample, i in zip(samples, order.tolist(), strict=True):
        resets = plain_resets(files, expected[i], width, across, eos)
        position, since = [], 0
        for place in range(width):
            since = 0 if place in resets else since
            position.append(since)
            since += 1
        assert sample["positions"].tolist() == position
        assert sample["boundaries"].tolist() == [0, *sorted(resets), width]
        assert sample.key == str(i)
        stored = np.frombuffer(sample.raw("input_ids"), "<u2").tolist()
        assert stored == expected[i][2][: len(stored)] and len(stored) in (width, len(stored) if pad is not None else 0)
        source = dataset.locate(i)
        assert sample.source == source
        with open(Path(dataset.url) / source.file, "rb") as f:
            f.seek(source.offset)
            assert np.frombuffer(f.read(source.length), "<u2").tolist() == stored[: source.length // 2]


def plain_resets(
    files: list[list[list[int]]], window: tuple[int, int, list[int]], width: int, across: bool, eos: int | None
) -> set[int]:
    """Places from 1 on where a document begins: by the rules of datatrove."""
    number, start, tokens = window
    if eos is not None:
        return {place + 1 for place in range(width - 1) if tokens[place] == eos}
    docs = [doc for file in files for doc in file] if across else files[number]
    ends = np.cumsum([len(doc) for doc in docs]).tolist()
    return {end - start for end in ends if start < end <= start + width - 1}


def test_the_rule_of_datatrove(tmp_path: Path) -> None:
    tokens = make(tmp_path, [[list(range(10))], [list(range(20, 33))]])
    dataset = WindowDataset(tokens, width=5)
    assert ids(list(dataset)) == [list(range(5)), list(range(5, 10)), list(range(20, 25)), list(range(25, 30))]
    assert dataset.describe()["tokens_left_out"] == 3


class TestGather:
    @pytest.fixture
    def dataset(self, tmp_path: Path) -> WindowDataset:
        return WindowDataset(make(tmp_path, [[list(range(n, n + 100))] for n in (0, 1000)]), width=9, stride=8)

    def test_into_a_given_array(self, dataset: WindowDataset) -> None:
        order = [23, 0, 11, 12]
        for dtype in (np.int64, np.int32, np.uint16):
            out = np.zeros((4, 9), dtype)
            assert dataset.gather(order, out) is out
            assert out.tolist() == dataset.gather(order).tolist() == ids(dataset.read(order))

    def test_into_a_torch_tensor(self, dataset: WindowDataset) -> None:
        torch = pytest.importorskip("torch")
        batch = torch.zeros((3, 9), dtype=torch.int64)
        dataset.gather([1, 2, 3], batch.numpy())
        assert batch.tolist() == dataset.gather([1, 2, 3]).tolist()

    def test_wrong_arrays_are_refused(self, dataset: WindowDataset) -> None:
        with pytest.raises(ConfigError, match=r"shape \(2, 9\), expected \(3, 9\)"):
            dataset.gather([1, 2, 3], np.zeros((2, 9), np.int64))
        with pytest.raises(ConfigError, match="uint16 fits int16"):
            dataset.gather([1], np.zeros((1, 9), np.int16))
        with pytest.raises(IndexError):
            dataset.gather([24])
        assert dataset.gather([]).shape == (0, 9)

    def test_the_stored_type(self, tmp_path: Path) -> None:
        tokens = make(tmp_path, [[[1, 2, 3]]], 4)
        assert WindowDataset(tokens, width=2, dtype=None).gather([0]).dtype == np.uint32
        with pytest.raises(ConfigError, match="uint32 fits int32"):
            WindowDataset(tokens, width=2, dtype=np.int32)

    def test_the_loader_stacks_nothing(self, dataset: WindowDataset) -> None:
        samples = dataset.read([5, 3, 1])
        batch = collate(samples)
        assert batch["__key__"] == ["5", "3", "1"]
        assert batch["input_ids"].tolist() == ids(samples)
        assert np.shares_memory(batch["input_ids"], samples[0]["input_ids"])
        swapped = collate([samples[1], samples[0], samples[2]])["input_ids"]
        assert swapped.tolist() == [ids(samples)[i] for i in (1, 0, 2)]
        assert collate(samples[:2])["input_ids"].tolist() == ids(samples)[:2]

    def test_big_endian_files(self) -> None:
        tokens = open_pbin(STORE, "legacy_v0.pbin", "x")
        dataset = WindowDataset(tokens, width=64, dtype=None)
        assert dataset.dtype == np.dtype("u4") and dataset.dtype.isnative
        whole = np.concatenate([sample["input_ids"] for sample in tokens.read(range(len(tokens)))])
        assert np.array_equal(dataset.gather(range(len(dataset))).ravel(), whole[: len(dataset) * 64])

    def test_a_file_cut_while_open(self, dataset: WindowDataset) -> None:
        dataset.gather([0])
        os.truncate(Path(dataset.url) / "0.pbin", 100)
        with pytest.raises(DataError, match=r"0\.pbin: the file is truncated"):
            dataset.gather([0])

    def test_in_other_processes(self, dataset: WindowDataset) -> None:
        dataset.gather([0])
        assert pickle.loads(pickle.dumps(dataset)).gather([3, 20]).tolist() == dataset.gather([3, 20]).tolist()


def test_opening_reads_no_index(tmp_path: Path) -> None:
    make(tmp_path, [[[1, 2, 3, 4]]])
    os.unlink(tmp_path / bounds_path("0.pbin"))
    path = tmp_path / "0.pbin"
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b"abc.")  # a broken index
    tokens = open_pbin(LocalStore(tmp_path), "0.pbin", str(path))
    dataset = WindowDataset(tokens, width=2)
    assert ids(list(dataset)) == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="opcode"):
        len(tokens)


def test_positions_need_an_index_or_an_eos(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(np.arange(10, dtype="<u2").tobytes())
    shard = TokenShard("x.ds", np.dtype("<u2"), 0, 10, None, lambda: np.zeros(0, np.int64))
    tokens = TokenDataset(LocalStore(tmp_path), [shard], name="x.ds", format="ds")
    with pytest.raises(NotFound, match="index of documents is missing"):
        WindowDataset(tokens, width=5, positions=True).read([0])
    assert WindowDataset(tokens, width=5, positions=True, eos=2)[0]["positions"].tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(NotFound, match="index of documents"):
        BlockDataset(tokens, block_size=3)


@pytest.mark.parametrize(
    "options",
    [
        {"width": 1},
        {"width": 2, "stride": 0},
        {"width": 2, "tail": "keep"},
        {"width": 2, "tail": "pad"},
        {"width": 2, "pad": 1},
        {"width": 2, "tail": "pad", "pad": -1, "dtype": None},
        {"width": 2, "tail": "pad", "pad": 2**63},
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        WindowDataset(make(tmp_path, [[[1, 2, 3]]]), **options)


def test_fingerprints(tmp_path: Path) -> None:
    files = [[list(range(50))], [list(range(30))]]
    tokens = make(tmp_path, files)
    words = {
        WindowDataset(tokens, width=w, stride=s, across=a).fingerprint()
        for w, s, a in [(5, 5, False), (5, 4, False), (6, 5, False), (5, 5, True)]
    }
    assert len(words) == 4
    grown = WindowDataset(tokens, width=5)
    before = WindowDataset(open_pbins(tokens.store, ["0.pbin"], "x"), width=5)
    assert grown.fingerprint_of_first(len(before)) == before.fingerprint()
    assert grown.fingerprint_of_first(len(before) + 1) is None
    assert grown.fingerprint() != BlockDataset(tokens, block_size=5).fingerprint()


def plain_blocks(docs: list[list[int]], block: int) -> list[list[int]]:
    """Whole documents until the block is reached; the next begins with the one that did not fit."""
    out, held, todo = [], [], list(docs)
    while todo:
        held.append(todo.pop(0))
        tokens = [t for doc in held for t in doc]
        if len(tokens) >= block:
            out.append(tokens[:block])
            if len(tokens) > block and len(held) > 1:
                todo.insert(0, held[-1])
            held = []
    return out


@settings(max_examples=examples(150), deadline=None)
@given(files=FILES, block=st.integers(2, 12))
def test_blocks_of_whole_documents(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]], block: int
) -> None:
    expected = [row for docs in files for row in plain_blocks(docs, block)]
    tokens = make(tmp_path_factory.mktemp("x"), files)
    if not expected:
        with pytest.raises(ConfigError, match="whole window"):
            BlockDataset(tokens, block_size=block)
        return
    dataset = BlockDataset(tokens, block_size=block)
    assert ids(list(dataset)) == expected
    assert 0 <= dataset.describe()["tokens_left_out"] == tokens.tokens - len(covered(dataset))


def covered(dataset: BlockDataset) -> set[tuple[int, int]]:
    file, start = dataset.begins(range(len(dataset)))
    return {(f, s + k) for f, s in zip(file.tolist(), start.tolist(), strict=True) for k in range(dataset.width)}


@settings(max_examples=examples(200), deadline=None)
@given(lengths=st.lists(st.integers(0, 30), max_size=60), block=st.integers(1, 40))
def test_the_compiled_blocks_are_the_plain_ones(lengths: list[int], block: int) -> None:
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    assert greedy_blocks(bounds, block).tolist() == plain.greedy_blocks(bounds.tolist(), block)
