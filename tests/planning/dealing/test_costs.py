"""Costs of positions: what reading the samples shows, for every kind of plan, and bad input."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.costs import LARGEST
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.formats.tokens.windows import BlockDataset, WindowDataset
from feedmill.planning.dealing.costs import Costs
from feedmill.planning.nodes import Blend, Concat, Leaf, Node, Repeat, Shuffle, Skip, Subset
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.durations import examples
from helpers.foreign_datasets import parquet
from helpers.number_dataset import Numbered
from helpers.tars import make_shards
from helpers.token_dataset import Tokenized

LENGTHS = [5, 0, 17, 3, 40, 1, 0, 9, 23, 8, 2, 64, 7, 0]


def random_plan(rng: np.random.Generator) -> Plan:
    sources = [
        Tokenized(f"s{n}", rng.integers(0, 50, rng.integers(2, 40)), 1 + 10_000 * n) for n in range(rng.integers(1, 25))
    ]
    leaves: list[Node] = []
    for number, source in enumerate(sources):
        leaf: Node = Leaf(number, len(source))
        if rng.random() < 0.3:
            leaf = Subset(leaf, 1, len(source))
        leaves.append(Repeat(Shuffle(leaf, int(rng.integers(99)))) if rng.random() < 0.9 else Repeat(leaf))
    if rng.random() < 0.2:
        node: Node = Concat([Shuffle(Leaf(n, len(source)), 3) for n, source in enumerate(sources)])
    else:
        node = Blend(leaves, list(rng.random(len(leaves)) + 0.01), length=int(rng.integers(1, 300)))
    if node.length is not None and node.length > 9 and rng.random() < 0.3:
        node = Skip(node, [(2, 5), (7, 8)], "some")
    return Plan(node, sources, [source.url for source in sources], 1)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), linear=st.sampled_from([0.0, 0.5, 3.25, 1000]))
def test_samples_cost_what_reading_them_shows(seed: int, linear: float) -> None:
    rng = np.random.default_rng(seed)
    plan = random_plan(rng)
    positions = rng.integers(0, len(plan), rng.integers(0, 80))
    located = plan.locate(positions)
    samples = zip(located.source.tolist(), located.index.tolist(), strict=True)
    sizes = [
        len(plan.sources[s].read_tokens(np.array([i]), np.array([0]), plan.sources[s].lengths[[i]])[0])
        for s, i in samples
    ]
    for given_places in (None, located):
        tokens = Costs(plan, "tokens")(positions, given_places)
        assert tokens.dtype == np.int64 and tokens.tolist() == sizes
        attention = Costs(plan, "attention", linear)(positions, given_places)
        assert attention.dtype == np.int64
        assert attention.tolist() == [n * n + round(linear * n) for n in sizes]


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("options", [{"last": "drop"}, {"last": "pad"}, {"last": "keep"}, {"long": "truncate"}])
def test_rows_cost_what_reading_them_shows(tmp_path: Path, method: str, skip: bool, options: dict[str, Any]) -> None:
    if ("long" in options) != (method == "best_fit"):
        options = {}
    documents = Plan.over([Tokenized("docs", LENGTHS), Tokenized("code", [3] * 30, 1000)], shuffle="global", epochs=2)
    plan = PackedPlan(documents, Packing(16, method, **options), tmp_path)
    if skip:
        plan = plan.skipping([(1, 3)], "some")
    rows = plan.read(np.arange(len(plan)))
    order = np.random.default_rng(1).permutation(len(plan))
    tokens, squares = [row["tokens"] for row in rows], []
    for row in rows:
        ends = [at for at in row["cu_seqlens"].tolist() if at <= row["tokens"]]
        squares.append(int((np.diff(ends) ** 2).sum()))
    assert Costs(plan, "tokens")(order).tolist() == [tokens[n] for n in order]
    assert Costs(plan, "attention")(order).tolist() == [squares[n] for n in order]
    both = Costs(plan, "attention", 2.5)(order, plan.locate(order))
    assert both.tolist() == [squares[n] + round(2.5 * tokens[n]) for n in order]
    assert Costs(plan, "attention", 2)([]).tolist() == []


WINDOWS: list[dict[str, Any]] = [
    {"width": 7},
    {"width": 7, "stride": 6},
    {"width": 7, "stride": 11},
    {"width": 5, "across": True},
    {"width": 60, "tail": "pad", "pad": 0},
    {"width": 60, "tail": "pad", "pad": 0, "across": True},
    {"width": 1000, "tail": "pad", "pad": 0, "across": True},
    {"block_size": 9},
]


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("options", WINDOWS, ids=str)
def test_windows_cost_what_their_documents_do(tmp_path: Path, options: dict[str, Any], files: int) -> None:
    lengths = np.random.default_rng(2).integers(0, 30, (files, 25))
    for file in range(files):
        with write_pbin(LocalStore(tmp_path), f"{file}.pbin", 2) as out:
            numbers = np.arange(25 * file, 25 * file + 25) + 1
            out.add(np.repeat(numbers, lengths[file]), lengths[file])
    documents = open_dataset(tmp_path)
    assert isinstance(documents, TokenDataset)
    dataset = BlockDataset(documents, **options) if "block_size" in options else WindowDataset(documents, **options)
    plan = Plan.over(dataset, shuffle="global", epochs=2)
    positions = np.arange(len(plan))
    samples = plan.read(positions)
    squares, real = [], []
    for sample in samples:
        ids = np.asarray(sample["input_ids"])[: sample.get("tokens")]
        squares.append(int((np.unique(ids, return_counts=True)[1] ** 2).sum()))  # tokens name their document
        real.append(len(ids))
    width = dataset.width
    assert Costs(plan, "attention")(positions).tolist() == squares
    assert Costs(plan, "attention", 1.5)(positions).tolist() == [n + round(1.5 * width) for n in squares]
    assert Costs(plan, "tokens")(positions).tolist() == [width] * len(plan)
    assert Costs(plan, "bytes")(positions).tolist() == [2 * n for n in real]


def test_windows_without_an_index_of_documents_are_one_document(tmp_path: Path) -> None:
    from feedmill.formats.tokens.ds import write_ds

    with write_ds(LocalStore(tmp_path), "a.ds", 2, tokenizer_name="t") as out:
        out.add(np.arange(40), np.full(10, 4))
    (tmp_path / "a.ds.index").unlink()
    plan = Plan.over(open_dataset(tmp_path / "a.ds", seq_len=8), shuffle="none", epochs=1)
    width = len(plan.read([0])[0]["input_ids"])
    assert Costs(plan, "attention")(range(len(plan))).tolist() == [width * width] * len(plan)


def test_windows_and_documents_in_one_plan(tmp_path: Path) -> None:
    with write_pbin(LocalStore(tmp_path), "0.pbin", 2) as out:
        out.add(np.zeros(40, np.int64), np.full(10, 4))
    windows = open_dataset(tmp_path, seq_len=6, reuse_last_target=False)
    plan = Plan.over([Numbered("docs", 9, tokens=3), windows], weights=[1, 1], shuffle="none")
    located = plan.locate(range(12))
    found = Costs(plan, "attention")(range(12))
    wanted = [(3 + i % 7) ** 2 if s == 0 else 16 + 4 for s, i in zip(located.source, located.index, strict=True)]
    assert found.tolist() == wanted


def test_sizes_and_fields_of_several_sources(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    rows, tars = open_dataset(parquet(tmp_path / "rows", [4, 3])), open_dataset(make_shards(tmp_path / "t", [3, 2]))
    lone = Plan.over(rows, shuffle="global", epochs=2)
    assert Costs(lone, "n")(range(14)).tolist() == [int(sample["n"]) for sample in lone.read(range(14))]
    plan = Plan.over([tars, tars.opened_as(decode=None)], weights=[2, 1])
    assert Costs(plan, "bytes")(range(20)).tolist() == [sample.source.length for sample in plan.read(range(20))]


def test_costs_stay_within_int64() -> None:
    huge = Tokenized("huge", [2**31 - 1, 2**31, 2**40, LARGEST, 1, 0])
    plan = Plan.over(huge, shuffle="none", epochs=1)
    every = range(6)
    assert Costs(plan, "attention")(every).tolist() == [(2**31 - 1) ** 2, LARGEST, LARGEST, LARGEST, 1, 0]
    for linear in (1.0, 2.0**40, 1e308):
        found = Costs(plan, "attention", linear)(every).tolist()
        assert min(found) == found[5] == 0 and max(found) == LARGEST and found[4] >= 2


def test_which_sources_do_not_know_a_cost(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    tars = [open_dataset(make_shards(tmp_path / name, [2])) for name in ("one", "two")]
    sources = [Numbered("docs", 5, tokens=3), *tars, open_dataset(parquet(tmp_path / "rows", [3]))]
    plan = Plan.over(sources, weights=[1] * 4)
    with pytest.raises(ConfigError) as caught:
        Costs(plan, "pixels")
    said = str(caught.value)
    assert caught.value.kind == "no-costs"
    assert "the cost 'pixels' is unknown for 4 of 4 sources: 'docs', 'one', 'two', 'rows'" in said
    assert "For 'one', 'two': Run 'feedmill prepare DATASET' and then 'feedmill edit prepare-media DATASET" in said
    assert "For 'rows': Add a numeric column 'pixels'" in said and "'numbered' does not have it" in said
    with pytest.raises(ConfigError, match=r"3 of 4 .*: 'one', 'two', 'rows'.*feedmill tokenize DATASET"):
        Costs(plan, "attention")
    with pytest.raises(ConfigError, match=r"'n' is unknown for 3 of 4 sources: 'docs', 'one', 'two'"):
        Costs(plan, "n")
    with pytest.raises(ConfigError, match=r"unknown cost 'tokenz': the costs are tokens, .*have: n\)") as caught:
        Costs(plan, "tokenz")
    assert caught.value.kind == "no-costs"


def test_packed_rows_have_no_bytes(tmp_path: Path) -> None:
    plan = PackedPlan(Plan.over(Numbered("docs", 50, tokens=3)), Packing(16, "concat"), tmp_path)
    for by in ("bytes", "pixels", "frames", "n"):
        with pytest.raises(ConfigError, match=f"packed rows have no cost '{by}'.*Use tokens or attention"):
            Costs(plan, by)


def test_a_linear_term_is_a_number_of_attention() -> None:
    plan = Plan.over(Numbered("docs", 50, tokens=3))
    for by, linear in (("attention", -1), ("attention", float("nan")), ("attention", float("inf")), ("tokens", 1)):
        with pytest.raises(ConfigError, match=f"linear is {linear} for the cost '{by}'") as caught:
            Costs(plan, by, linear)
        assert caught.value.kind == "bad-option"


def test_bad_values_name_source_sample_and_value(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, values in (("good", [1, 0, 3]), ("bad", [1, -7, 3]), ("gap", [4, 5, None])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"v": pa.array(values, pa.int32())}), tmp_path / name / "0.parquet")
    good, bad, gap = (open_dataset(tmp_path / name) for name in ("good", "bad", "gap"))
    assert Costs(Plan.over(good, shuffle="none", epochs=1), "v")(range(3)).tolist() == [1, 0, 3]
    with pytest.raises(
        DataError, match=r"'sample 1': in the source 'bad', 'v' of this sample is -7, expected"
    ) as caught:
        Costs(Plan.over([good, bad], weights=[1, 1]), "v")
    assert caught.value.kind == "bad-costs"
    with pytest.raises(DataError, match=r"'sample 2': in the source 'gap', 'v' of this sample is missing"):
        Costs(Plan.over([good, gap], weights=[1, 1]), "v")


def test_a_damaged_index_is_noticed() -> None:
    plan = Plan.over([Tokenized("a", [1, 2]), Tokenized("b", [1, -3])], weights=[1, 1], shuffle="none")
    for by in ("tokens", "attention"):
        with pytest.raises(DataError, match=r"'sample 1': in the source 'b', .* is -3.*index is damaged"):
            Costs(plan, by)(range(4))


def test_positions_are_checked() -> None:
    plan = Plan.over(Numbered("docs", 5, tokens=3), epochs=1)
    with pytest.raises(NotFound, match="no position 5"):
        Costs(plan, "tokens")([5])
    assert Costs(plan, "tokens")([]).tolist() == []


def test_threads_and_copies_give_the_same(tmp_path: Path) -> None:
    for number in range(20):
        with write_pbin(LocalStore(tmp_path), f"{number}.pbin", 2) as out:
            out.add(np.zeros(sum(LENGTHS), np.int64), np.asarray(LENGTHS))
    sources = [open_dataset(tmp_path / f"{number}.pbin") for number in range(20)]
    plan = Plan.over(sources, weights=[1] * 20)
    packed = PackedPlan(Plan.over(sources, epochs=3), Packing(16), tmp_path / "cache")
    for costs in (Costs(plan, "attention", 2), Costs(packed, "attention", 2)):
        count = costs.plan.length or 500
        parts = np.array_split(np.random.default_rng(0).permutation(count), 16)
        whole = costs(np.arange(count))
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(costs, parts))
        assert all(np.array_equal(costs_of, whole[part]) for costs_of, part in zip(found, parts, strict=True))
        copy = pickle.loads(pickle.dumps(costs))
        assert np.array_equal(copy(np.arange(count)), whole) and copy.linear == 2 and copy.by == "attention"


def test_only_touched_sources_are_looked_at() -> None:
    plan = Plan.over([Numbered(f"s{n}", 100, tokens=3) for n in range(300)], weights=[1] * 300)
    costs = Costs(plan, "tokens")
    looked: list[int] = []

    class Watched(list[Any]):
        def __getitem__(self, number: Any) -> Any:
            looked.append(number)
            return super().__getitem__(number)

    costs._costs = Watched(costs._costs)
    positions = np.arange(5)
    costs(positions)
    assert sorted(looked) == sorted(set(plan.locate(positions).source.tolist()))
