"""Rows of whole samples: an independent model of what may be where, and what is refused, dropped and counted."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.planning.dealing.costs import Costs
from feedmill.planning.nodes import Blend, Leaf, Node, Repeat, Shuffle, StagedBlend, Subset
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from helpers.counted import counted
from helpers.durations import examples
from helpers.token_dataset import Tokenized

SEQ = 64


@st.composite
def mixes(draw: st.DrawFn) -> tuple[Plan, fm.tokens.Packing]:
    """A stream of one or two sources of samples, and documents of token files, with any packing."""
    sources: list[Any] = []
    for number in range(draw(st.integers(1, 2))):
        tokens = draw(
            st.lists(st.integers(-1, 90), min_size=3, max_size=40).filter(lambda t: any(0 < x <= 48 for x in t))
        )
        media = draw(st.lists(st.integers(0, 6), min_size=len(tokens), max_size=len(tokens)))
        media[next(i for i, x in enumerate(tokens) if 0 < x <= 48)] = 0  # a row can hold one at least
        sources.append(counted(f"s{number}", tokens, media))
    if draw(st.booleans()):
        sources.append(Tokenized("docs", draw(st.lists(st.integers(0, 100), min_size=1, max_size=20).filter(any))))
    streams: list[Node] = [Repeat(Shuffle(Leaf(n, len(each)), n + 1)) for n, each in enumerate(sources)]
    shape = draw(st.sampled_from(["blend", "stages"]))
    node: Node
    if shape == "blend" or len(streams) < 2:
        node = Blend(streams, [1] * len(streams), length=draw(st.integers(5, 120)))
    else:
        first = [1, 0, 1][: len(streams)] if len(streams) > 2 else [1, 0]
        second = [0, 1, 1][: len(streams)] if len(streams) > 2 else [0, 1]
        from feedmill.planning.mixing.blend import normalize

        parts = [(draw(st.integers(2, 40)), normalize(first)), (None, normalize(second))]
        node = StagedBlend(streams, parts, length=draw(st.integers(50, 120)))
    packing = fm.tokens.Packing(
        SEQ,
        long="drop",
        multiple=draw(st.sampled_from([1, 8])),
        media=draw(st.sampled_from([None, 4, 8])),
        patches=draw(st.sampled_from([None, 500])),
        headroom=draw(st.sampled_from([0, 8, 9])),
        buffer=draw(st.sampled_from([None, None, 7])),
        refused="drop",
    )
    return Plan(node, sources, [each.url for each in sources], 3), packing


def expected(plan: Plan, packing: fm.tokens.Packing) -> list[tuple[int, int, int]]:
    """Position, first token and tokens of every piece that some row must hold."""
    located = plan.locate(np.arange(len(plan)))
    capacity = (packing.seq_len - packing.headroom) // packing.multiple * packing.multiple
    out = []
    for position, (source, index) in enumerate(zip(located.source.tolist(), located.index.tolist(), strict=True)):
        dataset = plan.sources[source]
        tokens = int(dataset.lengths[index])
        if isinstance(dataset, Tokenized):
            fits = tokens <= capacity
        else:
            media = int(dataset.counts.media[index])
            fits = tokens <= capacity and media <= (packing.media or 99) and 100 * media <= (packing.patches or 10**6)
        if tokens > 0 and fits:
            out.append((position, 0, tokens))
    return out


@given(mixes())
@settings(max_examples=examples(150), deadline=None)
def test_each_sample_that_fits_is_whole_in_one_row_within_all_limits(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Plan, fm.tokens.Packing]
) -> None:
    documents, packing = case
    wanted = expected(documents, packing)
    plan = PackedPlan(documents, packing, tmp_path_factory.getbasetemp() / "whole")
    if not wanted:
        with pytest.raises(ConfigError, match="give 0 rows"):
            len(plan)
        return
    spans, located = plan.locate_spans(np.arange(len(plan)))
    held = list(zip(spans.position.tolist(), spans.start.tolist(), spans.length.tolist(), strict=True))
    assert sorted(held) == wanted
    rows = plan.read(np.arange(len(plan)))
    bounds = spans.row_offsets.tolist()
    for row, (a, b) in zip(rows, itertools.pairwise(bounds), strict=True):
        assert isinstance(row, fm.samples.SampleRow) and len(row) == b - a > 0 and row.seq_len == SEQ
        assert row.lengths.dtype == row.cu_seqlens.dtype == np.int32 and row.lengths.tolist() == [
            each[2] for each in held[a:b]
        ]
        places = [-(-length // packing.multiple) * packing.multiple for length in row.lengths.tolist()]
        assert row.cu_seqlens.tolist() == [0, *itertools.accumulate(places)]
        assert row.cu_seqlens[-1] <= SEQ - packing.headroom
        media = 0
        for at, place in enumerate(range(a, b)):
            number, index = int(located.source[place]), int(located.index[place])
            dataset, sample = documents.sources[number], row[at]
            assert row.sources[at] == documents.names[number] and row.keys[at] == str(index)
            if isinstance(dataset, Tokenized):
                begin = int(dataset.begins[index])
                assert sample["input_ids"].tolist() == list(range(begin, begin + int(row.lengths[at])))
            else:
                assert sample.key == str(index) and sample.raw("txt").decode() == f"{dataset.url}:{index}"
                media += int(dataset.counts.media[index])
        assert packing.media is None or media <= packing.media
        assert packing.patches is None or 100 * media <= packing.patches
    some = np.unique(np.linspace(0, len(plan) - 1, 5).astype(np.int64))
    placed = plan.placements(spans.position[: bounds[1]])
    assert set(placed.row.tolist()) == {0}
    again = pickle.loads(pickle.dumps(plan))
    assert [row.keys for row in again.read(some)] == [rows[at].keys for at in some.tolist()]


def blend(*sources: Any, length: int = 60, **options: Any) -> PackedPlan:
    streams: list[Node] = [Repeat(Shuffle(Leaf(n, len(each)), n + 1)) for n, each in enumerate(sources)]
    node = Blend(streams, [1] * len(streams), length=length)
    plan = Plan(node, sources, [each.url for each in sources], 3)
    return PackedPlan(plan, fm.tokens.Packing(SEQ, **{"long": "drop", "refused": "drop", **options}))


TOKENS = [10, 20, 30, 40, 70, -1, 5, 64, 12, 33]
MEDIA = [1, 0, 2, 1, 1, 1, 0, 0, 9, 1]


def test_the_report_names_what_is_dropped() -> None:
    plan = blend(counted("vqa", TOKENS, MEDIA), Tokenized("docs", [30, 90, 8]), media=4)
    report = plan.report()
    own, docs = report.whole
    assert (docs.name, docs.kept, docs.dropped[0].keys) == ("docs", 2, ["1"])
    assert (own.name, own.processor, own.samples, own.kept) == ("vqa", "SomeProcessor", 10, 7)
    assert (own.shortest, own.median, own.longest, own.most_media) == (5, 30, 64, 2)
    assert [(each.reason, each.samples, each.keys) for each in own.dropped] == [
        ("have no length: it has no text: 1 (5)", 1, ["5"]),
        ("have more than the 64 tokens of a row", 1, ["4"]),
        ("have more than 4 media", 1, ["8"]),
    ]
    rows = plan.read(range(len(plan)))
    drawn = sum(source == "vqa" for row in rows for source in row.sources)
    media = sum(
        MEDIA[int(key)] for row in rows for key, source in zip(row.keys, row.sources, strict=True) if source == "vqa"
    )
    assert drawn == 21 and report.media == pytest.approx(media / len(rows), rel=0.1)
    assert "media a row" in str(report) and "dropped: 1 have more than 4 media (8)" in str(report)
    assert report.as_dict()["packing"]["whole_samples"][0]["dropped"][1]["keys"] == ["4"]


@pytest.mark.parametrize("name", ["media", "patches"])
def test_the_report_says_which_rows_a_limit_leaves_short(name: str) -> None:
    """Rows without room for any sample with media, but with free tokens for the shortest of these."""
    draw = np.random.default_rng(2)
    tokens, media = draw.integers(3, 20, 300), draw.integers(0, 4, 300)
    plan = blend(counted("vqa", tokens, media), length=300, multiple=4, **{name: 4 if name == "media" else 400})
    short = []
    for row in plan.read(range(len(plan))):
        free, used = SEQ - int(row.cu_seqlens[-1]), sum(int(media[int(key)]) for key in row.keys)
        if used == 4 and free >= min(-(-tokens[media > 0] // 4) * 4):
            short.append(free)
    report = plan.report()
    assert 0 < len(short) < len(plan) and report.used_up == {name: (len(short), sum(short))}
    assert f"{len(short):,} rows are short because their {name} are used up" in str(report)
    assert report.as_dict()["packing"]["used_up"] == {name: {"rows": len(short), "free": sum(short)}}
    assert not blend(counted("vqa", tokens, media), length=300, **{name: 4000}).report().used_up


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"refused": "error"}, "1 of 10 samples of 'vqa' have no length: it has no text: 1 .5."),
        (
            {"long": "split"},
            "1 of 10 samples of 'vqa' have more than the 64 tokens of a row, the largest is '4' with 70",
        ),
        ({"long": "truncate"}, "'long: truncate' cannot cut samples with media"),
        ({"method": "concat", "long": "split", "refused": "error"}, "windows cut samples with media anywhere"),
        ({"media": 0}, "media 0 is out of range"),
        ({"multiple": 5}, "do not hold whole multiples of 5"),
        ({"headroom": 64}, "headroom 64 is out of range"),
        ({"headroom": 60}, "no row can hold a sample of 'vqa'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        blend(counted("vqa", TOKENS, MEDIA), **options)


def test_split_is_fine_if_no_sample_is_too_long() -> None:
    plan = blend(counted("vqa", [10, 20, 64]), Tokenized("docs", [150, 3]), long="split", refused="error", length=12)
    pieces = [len(s["input_ids"]) for row in plan.read(range(len(plan))) for s in row if isinstance(s, dict)]
    assert sorted(pieces) == [3] * 3 + [22] * 3 + [64] * 6


def test_a_subset_counts_its_own_samples() -> None:
    source = counted("vqa", TOKENS, MEDIA)
    plan = PackedPlan(
        Plan(Repeat(Subset(Leaf(0, 10), 0, 4), 1), [source], ["vqa"], 3), fm.tokens.Packing(SEQ, long="split")
    )
    assert plan.whole[0].samples == plan.whole[0].kept == 4 and not plan.whole[0].dropped
    two = counted("vqa", [*TOKENS, -1], [*MEDIA, 0])
    with pytest.raises(ConfigError, match=r"1 of 6 samples.*it has no text: 2 \(5, 10\); counted over all 11 samples"):
        PackedPlan(Plan(Repeat(Subset(Leaf(0, 11), 0, 6), 1), [two], ["vqa"], 3), fm.tokens.Packing(SEQ, long="drop"))


def test_options_of_samples_need_lengths() -> None:
    with pytest.raises(ConfigError, match="'multiple' is for rows of samples, and no source has 'lengths'"):
        blend(Tokenized("docs", [3, 4]), multiple=8, refused="error")


def test_a_changed_processor_is_named_at_a_resume() -> None:
    plan = blend(counted("vqa", TOKENS, MEDIA))
    loader = fm.Loader(plan, 1, collate=list, rank=0, world_size=1)
    next(iter(loader))
    state = loader.state_dict()
    changed = blend(counted("vqa", TOKENS, MEDIA, processor="SomeProcessor 2"))
    again = fm.Loader(changed, 1, collate=list, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="processor of vqa was SomeProcessor 1, is now SomeProcessor 2"):
        again.load_state_dict(state)
    again.load_state_dict(state, allow_change=True)  # the lengths are the same
    other = fm.Loader(blend(counted("vqa", TOKENS[::-1], MEDIA, processor="SomeProcessor 2")), 1, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="processor of vqa was"):
        other.load_state_dict(state, allow_change=True)


def test_the_cost_of_a_row_has_its_media() -> None:
    plan = blend(counted("vqa", TOKENS, MEDIA), Tokenized("docs", [30, 8]), media=4)
    rows = np.arange(len(plan))
    found = Costs(plan, "attention", 7, media=3, media_squares=0.5)(rows)
    for row, cost in zip(plan.read(rows), found.tolist(), strict=True):
        own = zip(row.lengths.tolist(), row.keys, row.sources, strict=True)
        pictures = [(n, 100 * MEDIA[int(key)] if source == "vqa" else 0) for n, key, source in own]
        assert cost == sum(n * n + 7 * n + 3 * p + p * p // 2 for n, p in pictures)
    with pytest.raises(ConfigError, match="no source has 'lengths'"):
        Costs(Plan.over(Tokenized("docs", [3])), "attention", media=1)


def test_rows_do_not_depend_on_ranks_and_a_run_resumes_on_others() -> None:
    """Run on 3 ranks, stopped after 2 steps, resumed on 2: together every row once, as on one rank."""
    plan = blend(counted("vqa", TOKENS * 9, MEDIA * 9), Tokenized("docs", [30, 90, 8]), length=300, media=4)
    whole = [row.keys for row in plan.read(range(len(plan)))]
    seen: list[list[str]] = []
    states = []
    for rank in range(3):
        loader = fm.Loader(plan, 2, collate=list, rank=rank, world_size=3, remainder="ragged", balance="attention")
        for batch in itertools.islice(loader, 2):
            seen += [row.keys for row in batch]
        states.append(loader.state_dict())
    assert sorted(map(tuple, seen)) == sorted(map(tuple, whole[:12])) and states[0] == states[1] == states[2]
    for rank in range(2):
        again = fm.Loader(plan, 4, collate=list, rank=rank, world_size=2, remainder="ragged")
        again.load_state_dict(states[0])
        seen += [row.keys for batch in again for row in batch]
    assert sorted(map(tuple, seen)) == sorted(map(tuple, whole))


def test_skipped_rows_and_samples() -> None:
    plan = blend(counted("vqa", TOKENS * 3, MEDIA * 3), length=60, media=4)
    rows = [row.keys for row in plan.read(range(len(plan)))]
    less = plan.skipping([(1, 3)])
    assert [row.keys for row in less.read(range(len(less)))] == [rows[0], *rows[3:]]
    at = plan.positions("vqa", 3)
    assert [n for n, keys in enumerate(rows) if "3" in keys] == at.tolist()


def test_labels_know_the_places_of_samples() -> None:
    plan = blend(counted("vqa", TOKENS, MEDIA), length=8, multiple=8)
    loader = fm.Loader(plan, 2, collate=list, rank=0, world_size=1, labels=True, remainder="ragged")
    batch = next(iter(loader))
    places = loader.labels.of_tokens(SEQ)
    for row, place in zip(batch, places, strict=True):
        filled = np.full(SEQ, -1)
        for begin, length in zip(row.cu_seqlens[:-1], row.lengths, strict=True):
            filled[begin : begin + length] = 0
        assert place.tolist() == filled.tolist()


class Delicate(fm.TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        if getattr(sample, "key", "") == "4":
            raise ValueError("no four")
        return sample


def stops_at_four(rows: Any) -> Any:
    for row in rows:
        for sample in row:
            if getattr(sample, "key", "") == "4":
                raise fm.DataError("no four", record="4.txt", kind="bad-media")
    return rows


@pytest.mark.parametrize("stage", ["read", "transform", "collate"])
def test_a_failure_names_the_sample_and_not_the_first_of_its_row(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = counted("vqa", [20, 21, 22, 23, 24, 20, 21])
    plan = blend(Tokenized("docs", [9, 8, 7]), source, length=30)
    if stage == "read":
        real = source.dataset.read_raw

        def read_raw(indices: Any) -> Any:
            if 4 in np.asarray(indices):
                raise fm.DataError("no four", kind="bad-media")
            return real(indices)

        monkeypatch.setattr(source.dataset, "read_raw", read_raw)
    encoder = Delicate() if stage == "transform" else None
    collate = None if encoder is not None else stops_at_four if stage == "collate" else list
    file = tmp_path / "bad.jsonl"

    def loader(**options: Any) -> fm.Loader:
        options |= {"task_encoder": encoder} if encoder is not None else {"collate": collate}
        return fm.Loader(plan, 2, rank=0, world_size=1, remainder="ragged", **options)

    with pytest.raises(fm.FeedmillError, match=r"(?=.*no four).*\(source 'vqa', sample 4, epoch 0\)"):
        list(loader())
    list(loader(on_error=fm.loading.Substitute(quarantine=file)))
    failures = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(each["source"], each["index"], each["key"]) for each in failures} == {("vqa", 4, "4")}
    assert [each["position"] for each in failures] == plan.positions("vqa", 4).tolist()


@pytest.mark.parametrize("long", ["drop", "truncate"])
def test_the_report_counts_the_tokens_of_rows_without_what_is_dropped(long: str) -> None:
    if long == "drop":
        plan = blend(counted("vqa", [60, 90, 70, 30], [0, 0, 0, 9]), Tokenized("docs", [30, 200, 8]), media=4)
    else:
        plan = blend(Tokenized("one", [60, 5]), Tokenized("docs", [30, 200, 8]), refused="error", long=long)
    tokens: dict[str, int] = {}
    for row in range(len(plan)):
        spans, located = plan.locate_spans([row])
        for source, length in zip(located.source.tolist(), spans.length.tolist(), strict=True):
            tokens[plan.names[source]] = tokens.get(plan.names[source], 0) + length
    report = plan.report()
    assert report.tokens == sum(tokens.values())
    for source in report.sources:
        assert source.tokens == pytest.approx(tokens[source.name], rel=0.1)
        assert source.token_share == pytest.approx(tokens[source.name] / report.tokens, rel=0.1)


def test_samples_without_a_length_cost_more_than_nothing() -> None:
    """Without `pack` nothing leaves them out, so batches by budget would hold any number of them."""
    plan = Plan.over(counted("vqa", TOKENS, MEDIA))
    with pytest.raises(ConfigError, match=r"1 of 10 samples of 'vqa' have no length: it has no text: 1 \(5\)"):
        Costs(plan, "tokens")
    with pytest.raises(ConfigError, match="have no length"):
        Costs(plan, "attention")
