"""Rows over any stream of documents: every token once, both ways agree, and nothing but the position matters."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.loading.loader import Loader
from feedmill.planning.nodes import Blend, Leaf, Node, Repeat, Shuffle, Subset
from feedmill.planning.packing import best_fit, windows
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.packing.spans import Spans
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Numbered
from helpers.token_dataset import Tokenized

LENGTHS = [5, 0, 17, 3, 40, 1, 0, 9, 23, 8, 2, 64, 7, 0]


def corpus(lengths: list[int] | np.ndarray = LENGTHS, name: str = "docs", first: int = 1) -> Tokenized:
    return Tokenized(name, lengths, first)


def single(lengths: list[int] | np.ndarray = LENGTHS, epochs: int | None = 1, shuffle: str = "global") -> Plan:
    return Plan.over(corpus(lengths), shuffle=shuffle, epochs=epochs, seed=3)


def mixture(length: int | None = 60) -> Plan:
    """A blend of a subset that is repeated and a shuffled source."""
    docs, code = corpus(), corpus(np.arange(1, 31) * 3 % 29, "code", 10_000)
    node: Node = Blend(
        [Repeat(Shuffle(Subset(Leaf(0, 14), 2, 12), 5)), Repeat(Shuffle(Leaf(1, 30), 6))], [0.3, 0.7], length=length
    )
    return Plan(node, [docs, code], ["docs", "code"], 3)


def stream(plan: Plan, documents: int) -> list[np.ndarray]:
    """The tokens of the first documents of a plan."""
    located = plan.locate(np.arange(documents))
    whole = zip(located.source.tolist(), located.index.tolist(), strict=True)
    return [
        np.arange(plan.sources[s].begins[i], plan.sources[s].begins[i] + plan.sources[s].lengths[i]) for s, i in whole
    ]


def content(plan: PackedPlan, rows: np.ndarray | None = None) -> list[np.ndarray]:
    """The tokens of rows without padding."""
    rows = np.arange(len(plan)) if rows is None else rows
    return [row["input_ids"][: row["tokens"]] for row in plan.read(rows)]


def flat(spans: Spans) -> np.ndarray:
    return np.stack([spans.position, spans.start, spans.length])


PLANS = {
    "stored": lambda: single(shuffle="none"),
    "shuffled": single,
    "epochs": lambda: single(epochs=3),
    "mix": mixture,
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("last", ["drop", "keep", "pad"])
@pytest.mark.parametrize("name", PLANS)
def test_windows_are_the_documents_laid_end_to_end(tmp_path: Path, name: str, last: str, overlap: bool) -> None:
    documents = PLANS[name]()
    whole = np.concatenate(stream(documents, len(documents)))
    for seq_len in (1, 7, 16, 1000):
        plan = PackedPlan(documents, Packing(seq_len, "concat", overlap, last), tmp_path)
        cuts = range(0, max(len(whole) - overlap, 1), seq_len)
        expected = [whole[at : at + seq_len + overlap] for at in cuts]
        if last == "drop":
            expected = [row for row in expected if len(row) == seq_len + overlap]
            if not expected:
                with pytest.raises(ConfigError, match="give 0 rows"):
                    len(plan)
                continue
        rows = content(plan)
        assert len(rows) == len(expected) == len(plan)
        assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))
        sizes = {len(row["input_ids"]) for row in plan.read(range(len(plan)))}
        assert last == "keep" or sizes == {seq_len + overlap}


@pytest.mark.parametrize("buffer", [1, 5, 1 << 20])
@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
@pytest.mark.parametrize("name", PLANS)
def test_best_fit_holds_every_token_that_it_should_once(tmp_path: Path, name: str, long: str, buffer: int) -> None:
    documents = PLANS[name]()
    plan = PackedPlan(documents, Packing(16, long=long, buffer=buffer), tmp_path)
    rows = content(plan)
    assert max(map(len, rows)) <= 16 and min(map(len, rows)) > 0
    parts = stream(documents, len(documents))
    if long == "truncate":
        parts = [part[:16] for part in parts]
    elif long == "drop":
        parts = [part for part in parts if len(part) <= 16]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.sort(np.concatenate(parts)))
    spans = plan.spans(range(len(plan)))
    assert (spans.start % 16 == 0).all()  # documents are cut nowhere else
    for begin, end in zip(spans.row_offsets[:-1], spans.row_offsets[1:], strict=True):
        assert (np.diff(spans.position[begin:end]) >= 0).all()  # the stream's order inside a row
        assert len(np.unique(spans.position[begin:end] // buffer)) == 1


lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 90)), min_size=1, max_size=60).filter(any)
packings = st.one_of(
    st.builds(
        Packing,
        st.integers(1, 40),
        st.just("concat"),
        overlap=st.booleans(),
        last=st.sampled_from(["drop", "keep", "pad"]),
    ),
    st.builds(
        Packing, st.integers(1, 40), long=st.sampled_from(["split", "truncate", "drop"]), buffer=st.integers(1, 80)
    ),
)


@given(lengths, packings, st.integers(1, 3), st.data())
@settings(max_examples=examples(120), deadline=None)
def test_both_ways_agree_and_only_the_row_matters(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], packing: Packing, epochs: int, data: st.DataObject
) -> None:
    documents = single(sizes, epochs)
    plan = PackedPlan(documents, packing, tmp_path_factory.getbasetemp() / "packed")
    try:
        count = len(plan)
    except ConfigError:
        assert packing.long == "drop" or packing.last == "drop"
        return
    spans = plan.spans(range(count))
    assert spans.row_lengths.max() <= plan.width and spans.length.min() > 0

    some = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=12)), np.int64)
    again = plan.spans(some)
    for number, row in enumerate(some.tolist()):
        mine, all_ = (slice(*s.row_offsets[i : i + 2]) for s, i in ((again, number), (spans, row)))
        assert np.array_equal(flat(again)[:, mine], flat(spans)[:, all_])

    back = plan.placements(range(len(documents)))
    owner = np.repeat(np.arange(len(documents)), np.diff(back.offsets))
    forwards = np.repeat(np.arange(count), np.diff(spans.row_offsets))
    at = np.cumsum(spans.length) - spans.length
    at -= at[spans.row_offsets[:-1]][forwards]
    there = np.stack([forwards, at, *flat(spans)])
    here = np.stack([back.row, back.at, owner, back.start, back.length])
    assert np.array_equal(there[:, np.lexsort(there)], here[:, np.lexsort(here)])


@pytest.mark.parametrize("packing", [Packing(16, buffer=7), Packing(16, "concat", True)], ids=lambda p: p.method)
def test_an_endless_stream_is_planned_as_far_as_it_is_asked_for(tmp_path: Path, packing: Packing) -> None:
    endless, finite = PackedPlan(mixture(None), packing, tmp_path), PackedPlan(mixture(700), packing, tmp_path)
    assert endless.length is None and "endless" in str(endless)
    rows = np.arange(len(finite) - 20)
    assert np.array_equal(
        flat(endless.spans(rows[::-1])), flat(PackedPlan(mixture(None), packing, tmp_path).spans(rows[::-1]))
    )
    assert all(np.array_equal(a, b) for a, b in zip(content(endless, rows), content(finite, rows), strict=True))
    bounded = PackedPlan(
        mixture(None), Packing(16, packing.method, packing.overlap, buffer=packing.buffer, rows=40), tmp_path
    )
    assert len(bounded) == 40 and bounded.fingerprint == endless.fingerprint
    with pytest.raises(NotFound, match="no position 40"):
        bounded.spans([40])


@pytest.mark.parametrize("packing", [Packing(16, buffer=7), Packing(16, "concat", True)], ids=lambda p: p.method)
def test_the_loader_is_elastic_over_rows_and_resumes_at_each(tmp_path: Path, packing: Packing) -> None:
    plan = PackedPlan(mixture(200), packing, tmp_path)
    expected = np.stack([row["input_ids"] for row in plan.read(range(len(plan)))])
    for world, batch, workers in ((1, 3, 0), (2, 4, 2), (3, 1, 1)):
        loaders = [
            Loader(plan, batch, rank=rank, world_size=world, workers=workers, remainder="pad", deal="contiguous")
            for rank in range(world)
        ]
        steps = zip(*loaders, strict=True)
        got = np.concatenate([part["input_ids"][part["__mask__"]] for step in steps for part in step])
        assert np.array_equal(got, expected)
    state = Loader(plan, 1)
    for row in range(0, len(plan), 5):
        mover = Loader(PackedPlan(mixture(200), packing, tmp_path), 2)
        mover.load_state_dict({**state.state_dict(), **_position(state.state_dict(), row)})
        assert np.array_equal(next(iter(mover))["input_ids"], expected[row : row + 2])


def _position(state: dict, row: int) -> dict:
    names = [name for name, value in state.items() if value == 0 and "position" in name]
    assert len(names) == 1, state
    return {names[0]: row}


def test_rows_carry_boundaries_and_restarted_positions(tmp_path: Path) -> None:
    plan = PackedPlan(single([5, 4, 3], shuffle="none"), Packing(16, pad=99), tmp_path)
    (row,) = plan.read([0])
    assert row["input_ids"].tolist() == [*range(1, 13), 99, 99, 99, 99] and row["input_ids"].dtype == np.int64
    assert row["positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]
    assert row["cu_seqlens"].tolist() == [0, 5, 9, 12, 16] and row["tokens"] == 12
    assert row["positions"].dtype == row["cu_seqlens"].dtype == np.int32
    short = PackedPlan(single([5, 4, 3], shuffle="none"), Packing(9, "concat", last="keep"), tmp_path).read([1])[0]
    assert short["input_ids"].tolist() == [10, 11, 12] and short["cu_seqlens"].tolist() == [0, 3]
    assert short["positions"].tolist() == [0, 1, 2]


@given(lengths, st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=examples(50), deadline=None)
def test_position_ids_and_boundaries_fit_the_spans(sizes: list[int], seq_len: int, more: int) -> None:
    cuts = [min(n, seq_len) for n in sizes if n]
    spans = Spans(np.arange(len(cuts) + 1), np.arange(len(cuts)), np.zeros(len(cuts), np.int64), np.array(cuts))
    places = spans.position_ids(seq_len + more)
    for n, row, bounds in zip(cuts, places.tolist(), spans.cu_seqlens(seq_len + more), strict=True):
        assert row == [*range(n), *range(seq_len + more - n)]
        assert bounds.tolist() == sorted({0, n, seq_len + more})


def test_the_plan_face(tmp_path: Path) -> None:
    plan = PackedPlan(mixture(), Packing(16, buffer=20), tmp_path)
    located = plan.locate(np.arange(len(plan)))
    spans = plan.spans(np.arange(len(plan)))
    assert np.array_equal(located.index, plan.documents.locate(spans.position[spans.row_offsets[:-1]]).index)
    inside = plan.documents.locate(spans.position)
    rows = np.repeat(np.arange(len(plan)), np.diff(spans.row_offsets))
    for source, index in ((0, 4), (1, 7), (0, 0)):
        mine = np.unique(rows[(inside.source == source) & (inside.index == index)])
        assert plan.positions(source, index).tolist() == mine.tolist()
        assert plan.positions(source, index, within=12).tolist() == mine[mine < 12].tolist()
    assert "packed plan" in str(plan) and "best_fit 16" in repr(plan)


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_rows_of_several_samples_are_those_of_each(tmp_path: Path, method: str) -> None:
    plan = PackedPlan(mixture(), Packing(16, method), tmp_path)
    together = plan.positions_of("docs", [2, 4, 7, 8])
    assert together.tolist() == sorted({row for n in (2, 4, 7, 8) for row in plan.positions("docs", n).tolist()})
    assert len(together) and not len(plan.positions_of("docs", []))


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_a_packed_plan_goes_to_other_processes(tmp_path: Path, method: str) -> None:
    np.arange(0, 90, dtype="<u2").tofile(tmp_path / "a.ds")
    np.array([4, 40, 41, 90], "<u8").tofile(tmp_path / "a.ds.index")
    documents = Plan.over(feedmill.open(tmp_path / "a.ds", token_size=2), epochs=2)
    plan = PackedPlan(documents, Packing(16, method), tmp_path).skipping([(1, 3)])
    again = pickle.loads(pickle.dumps(plan))
    assert again.fingerprint == plan.fingerprint and len(again) == len(plan)
    for one, other in zip(content(again), content(plan), strict=True):
        assert np.array_equal(one, other)


def test_reports_count_padding(tmp_path: Path) -> None:
    for packing in (Packing(16, buffer=20), Packing(16, "concat", last="pad"), Packing(16, "concat", True)):
        plan = PackedPlan(mixture(), packing, tmp_path)
        sizes = plan.spans(range(len(plan))).row_lengths
        for rows in (0, 1, len(plan) // 2, len(plan)):
            report = plan.report(rows)
            assert plan.drawn(rows) == [source.drawn for source in report.sources]
            assert report.tokens == sizes[:rows].sum() and report.slots == rows * plan.width
        whole = sum(map(len, stream(plan.documents, 60)))
        shared = (len(plan) - 1) * packing.overlap
        assert report.left_out == whole - (sizes.sum() - shared) and report.documents <= 60
        assert f"{len(plan):,} rows" in str(report) and report.as_dict()["packing"]["fill"] == report.fill
    assert PackedPlan(mixture(), Packing(16, long="drop"), tmp_path).report().left_out == sum(
        n for n in map(len, stream(mixture(), 60)) if n > 16
    )
    for packing in (Packing(16, buffer=20), Packing(16, "concat")):
        endless = PackedPlan(mixture(None), packing, tmp_path)
        assert "endless" in str(endless.report()) and endless.report().fill is None
        assert endless.report(50).tokens == endless.spans(range(50)).row_lengths.sum()


def test_fingerprints_name_what_changed(tmp_path: Path) -> None:
    plan = PackedPlan(single(), Packing(16), tmp_path)
    assert plan.explain_change(PackedPlan(single(), Packing(16), tmp_path).fingerprints) == []
    for other, part in (
        (PackedPlan(single(), Packing(17), tmp_path), "packing was best_fit 17"),
        (PackedPlan(single(), Packing(16, long="drop"), tmp_path), "packing was"),
        (PackedPlan(single(epochs=2), Packing(16), tmp_path), "documents was 28, is now 14"),
        (PackedPlan(single([6, *LENGTHS[1:]]), Packing(16), tmp_path), "lengths of docs"),
        (PackedPlan(single(), Packing(16, pad=1), tmp_path), "padding was 1"),
        (PackedPlan(single(), Packing(16, "concat", last="pad"), tmp_path), "packing was concat 16, last pad"),
    ):
        assert any(part in change for change in plan.explain_change(other.fingerprints)), part
    assert PackedPlan(single(epochs=2), Packing(16, "concat"), tmp_path).fingerprint == (
        PackedPlan(single(), Packing(16, "concat"), tmp_path).fingerprint
    )
    assert len(json.dumps(plan.fingerprints)) < 1000


def test_rows_do_not_come_in_the_order_of_packing(tmp_path: Path) -> None:
    sizes = np.random.default_rng(1).lognormal(np.log(30), 1, 4000).astype(np.int64)
    plan = PackedPlan(single(sizes), Packing(512), tmp_path)
    spans = plan.spans(range(len(plan)))
    longest = np.maximum.reduceat(spans.length, spans.row_offsets[:-1])
    assert abs(np.corrcoef(np.arange(len(plan)), longest)[0, 1]) < 0.15
    first = np.zeros(len(spans.length), bool)
    first[spans.row_offsets[:-1]] = True
    assert spans.length[first].mean() < 2 * spans.length.mean()
    assert plan.report().fill > 0.995


def test_windows_cross_chunks_and_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = PackedPlan(single(epochs=9), Packing(16, "concat", True, "keep"), tmp_path / "a")
    expected = flat(before.spans(range(len(before))))
    places = before.placements(range(126))
    monkeypatch.setattr(windows, "CHUNK", 4)
    monkeypatch.setattr(windows, "PER_SEGMENT", 3)
    plan = PackedPlan(single(epochs=9), Packing(16, "concat", True, "keep"), tmp_path / "b")
    assert np.array_equal(flat(plan.spans(range(len(plan)))), expected)
    assert np.array_equal(plan.placements(range(126)).row, places.row)
    assert len(list((tmp_path / "b").rglob("*.pack"))) == -(-126 // 12)


def test_a_row_longer_than_all_documents_takes_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    pack = best_fit.best_fit_decreasing
    monkeypatch.setattr(
        best_fit, "best_fit_decreasing", lambda size, room, *of: asked.append(room) or pack(size, room, *of)
    )
    total = sum(LENGTHS)
    rows = [PackedPlan(single(), Packing(seq_len), tmp_path) for seq_len in (total, total + 1, 2**31 - 2)]
    assert [len(plan) for plan in rows] == [1, 1, 1] and asked == [total] * 3
    assert all(np.array_equal(flat(plan.spans([0])), flat(rows[0].spans([0]))) for plan in rows)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda f: PackedPlan(Plan.over(Numbered("plain", 5)), Packing(8), f), "has no lengths in tokens"),
        (lambda f: PackedPlan(single([3, -1]), Packing(8), f), "sample 1 has -1 tokens"),
        (
            lambda f: len(PackedPlan(single([0, 0]), Packing(8), f)),
            "give 0 rows. Check that the documents have tokens.",
        ),
        (lambda f: len(PackedPlan(single([9, 9]), Packing(8, long="drop"), f)), "one of them must fit into seq_len"),
        (lambda f: PackedPlan(single([0, 0], None), Packing(8), f).spans([0]), "have no token to pack"),
        (lambda f: PackedPlan(single([9, 9], None), Packing(8, long="drop"), f).spans([0]), "have no token to pack"),
        (lambda f: len(PackedPlan(single(), Packing(8, rows=10**6), f)), "Use at most 'rows: 2"),
        (lambda f: PackedPlan(PackedPlan(single(), Packing(8), f), Packing(8), f), "cannot be packed again"),
        (lambda f: Packing(0), "seq_len 0 is out of range"),
        (lambda f: Packing(8, "worst_fit"), "method 'worst_fit' is unknown"),
        (lambda f: Packing(8, overlap=True), "only windows overlap"),
    ],
)
def test_what_cannot_be_packed_is_refused(build, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.planning.packing.segments._MOST_EMPTY", 2)
    with pytest.raises((ConfigError, DataError), match=message):
        build(tmp_path)


def test_data_sets_without_tokens_or_with_too_few_are_named(tmp_path: Path) -> None:
    class Lengths(Numbered):
        lengths = np.array([3, 4])

    plan = PackedPlan(Plan.over(Lengths("silent", 2), epochs=1), Packing(8), tmp_path)
    with pytest.raises(ConfigError, match="silent: this dataset has lengths in tokens, but no tokens"):
        plan.read([0])

    class Short(Tokenized):
        def read_tokens(self, indices, starts, lengths):
            return [tokens[:-1] for tokens in super().read_tokens(indices, starts, lengths)]

    plan = PackedPlan(Plan.over(Short("short", [3, 4]), epochs=1), Packing(8), tmp_path)
    with pytest.raises(DataError, match="short '0': tokens 0 to 3 were requested, 2 were read"):
        plan.read([0])


RECIPE = """
seed: 5
epochs: 2
concat:
  - {path: docs, subset: [0, 10]}
  - {path: code}
pack: {seq_len: 16, buffer: 20, pad: 9}
"""


def opener(path: str, **options: str) -> Numbered:
    name = path.rpartition("/")[2]
    return Numbered(name, 5) if name == "plain" else corpus(LENGTHS, name, 1000 if name == "code" else 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_recipe_packs(cache: Path) -> None:
    recipe = Recipe.parse(RECIPE)
    plan = recipe.plan(opener)
    assert isinstance(plan, PackedPlan) and plan.packing == Packing(16, buffer=20, pad=9)
    assert len(plan.documents) == 48 and plan.seed == 5 and "pack best_fit 16" in str(recipe)
    assert np.array_equal(np.sort(np.concatenate(content(plan))), np.sort(np.concatenate(stream(plan.documents, 48))))
    assert len(list(cache.rglob("*.pack"))) == 3
    windowed = Recipe.parse(RECIPE.replace("buffer: 20", "method: concat, overlap: true, rows: 4")).plan(opener)
    assert len(windowed) == 4 and windowed.width == 17
    assert Recipe.parse(RECIPE.replace("16", "17")).fingerprint != recipe.fingerprint


@pytest.mark.parametrize(
    "pack, message",
    [
        ("{seq_length: 16}", "recipe:7: unknown key 'seq_length' (did you mean 'seq_len'?)"),
        ("{seq_len: 0}", "recipe:7: pack.seq_len: input should be greater than or equal to 1, found 0"),
        ("{seq_len: 8, method: first_fit}", "pack.method: input should be 'best_fit' or 'concat', found 'first_fit'"),
        ("{seq_len: 8, overlap: true}", "'overlap' needs 'method: concat', the method here is best_fit"),
        ("{seq_len: 8, method: concat, long: drop}", "'long' needs 'method: best_fit', the method here is concat"),
        ("{seq_len: 8, pad: -1}", "pack.pad: input should be greater than or equal to 0"),
    ],
)
def test_wrong_words_about_packing_are_named_with_their_line(pack: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Recipe.parse(RECIPE.replace("{seq_len: 16, buffer: 20, pad: 9}", pack))
    assert message in str(error.value)


def test_what_the_data_does_not_allow_is_named_with_its_line(cache: Path) -> None:
    with pytest.raises(ConfigError, match="plain: the index of 'plain' has no lengths in tokens"):
        Recipe.parse(RECIPE.replace("path: code", "path: plain")).plan(opener)
    with pytest.raises(ConfigError, match=r"recipe:7: 48 documents give \d+ rows, not 99,999"):
        len(Recipe.parse(RECIPE.replace("pad: 9", "rows: 99999")).plan(opener))


def test_a_packed_recipe_cannot_be_a_source(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(RECIPE)
    (tmp_path / "outer.yaml").write_text("samples: 10\nblend:\n  - recipe: inner.yaml\n")
    with pytest.raises(ConfigError, match=r"outer.yaml:3: the nested recipe inner.yaml has 'pack'"):
        Recipe.load(tmp_path / "outer.yaml").plan(opener)


def test_trace_there_and_back_for_many_rows(tmp_path: Path) -> None:
    """Random rows of a mixture with a subset: every span is among the placements of its document, and the other way."""
    rng = np.random.default_rng(4)
    docs, code = corpus(rng.integers(0, 60, 4000)), corpus(rng.integers(0, 200, 3000), "code", 10**7)
    node = Blend([Repeat(Shuffle(Subset(Leaf(0, 4000), 500, 3500), 5)), Repeat(Shuffle(Leaf(1, 3000), 6))], [0.3, 0.7])
    documents = Plan(node, [docs, code], ["docs", "code"], 3)
    for packing in (Packing(64, buffer=5000), Packing(64, "concat", True)):
        plan = PackedPlan(documents, packing, tmp_path)
        rows = np.unique(rng.integers(0, 50_000, 20_000))
        spans = plan.spans(rows)
        back = plan.placements(spans.position)
        owner = np.repeat(np.arange(len(spans.position)), np.diff(back.offsets))
        row = np.repeat(rows, np.diff(spans.row_offsets))
        found = (back.row == row[owner]) & (back.start == spans.start[owner]) & (back.length == spans.length[owner])
        assert np.array_equal(np.unique(owner[found]), np.arange(len(spans.position)))
        located = documents.locate(spans.position[:20])
        for source, index, number in zip(
            located.source.tolist(), located.index.tolist(), row[:20].tolist(), strict=True
        ):
            assert number in plan.positions(source, index, within=50_000)


@pytest.mark.parametrize("packing", [Packing(16), Packing(16, "concat", True)], ids=lambda p: p.method)
def test_nothing_asked_gives_nothing(tmp_path: Path, packing: Packing) -> None:
    plan = PackedPlan(single(), packing, tmp_path)
    assert len(plan.spans([])) == 0 and plan.read([]) == [] and len(plan.locate([]).source) == 0
    assert plan.placements([]).offsets.tolist() == [0]
    assert plan.placements([1]).row.size == 0 or LENGTHS[int(plan.documents.locate([1]).index[0])] > 0
    assert plan.report(0).tokens == 0 and plan.report(0).fill is None
