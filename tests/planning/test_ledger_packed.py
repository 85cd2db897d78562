"""The ledger and skip lists over packed rows: documents and spans, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.planning import ledger
from feedmill.planning.forecast import mixture, needs, samples_for_tokens
from feedmill.planning.overview import plan as overview
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.token_dataset import Tokenized

INNER = "concat:\n- {path: news, subset: [3, 40]}\n- {path: books, epochs: 2}\nshuffle: global\n"
OUTER = """
seed: 7
samples: 6000
%sstages:
- {samples: 700, weights: {web: 0.6, inner: 0.4}}
- {weights: {web: 0.2, inner: 0.8}}
blend:
- {path: web}
- {recipe: inner.yaml, name: inner}
pack: {seq_len: 64, %s}
"""
PACKS = [
    "method: best_fit, buffer: 500",
    "method: best_fit, buffer: 500, long: truncate",
    "method: concat, overlap: true",
]
SIZES = {"web": 150, "news": 50, "books": 20}


def planned(folder: Path, pack: str, skip: str = "") -> PackedPlan:
    (folder / "inner.yaml").write_text(INNER)
    text = OUTER % (f"skip: {skip}\n" if skip else "", pack)
    plan = Recipe.parse(text, base=folder).plan(opened)
    assert isinstance(plan, PackedPlan)
    return plan


def opened(path: str, **_: str) -> Tokenized:
    name = Path(path).name
    lengths = np.random.default_rng(len(name)).integers(0, 150, SIZES[name])
    return Tokenized(name, lengths, 10**6 * sorted(SIZES).index(name) + 1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("skip", ["", "[3, [10, 17], {source: web, keys: [5], since: 40}]"])
@pytest.mark.parametrize("pack", PACKS)
def test_what_a_row_holds_is_what_is_read_and_leads_back(pack: str, skip: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, pack, skip)
    total = min(len(plan), 400)
    entries = ledger.entries(plan, np.arange(total))
    seen: dict[int, list[int]] = {}
    for entry in entries:
        dataset = plan.source(entry.source)
        assert entry.span is not None and isinstance(dataset, Tokenized)
        begin = int(dataset.begins[entry.index])
        seen.setdefault(entry.position, []).extend(range(begin + entry.span[0], begin + entry.span[1]))
    for row, found in enumerate(plan.read(np.arange(total))):
        assert found["input_ids"][: found["tokens"]].tolist() == seen[row]
    forwards = {(e.source, e.index, e.position, e.epoch, e.span) for e in entries}
    assert len(forwards) == len(entries)
    backwards = {
        (name, index, piece.position, piece.epoch, piece.span)
        for name in plan.names
        for index in range(len(plan.source(name)))
        for piece in ledger.occurrences(plan, name, index, samples=total)
    }
    assert backwards == forwards


@pytest.mark.parametrize("pack", PACKS)
def test_skipped_rows_are_gone_and_no_other_row_changes(pack: str, tmp_path: Path) -> None:
    plain = planned(tmp_path, pack)
    plan = planned(tmp_path, pack, "[3, [10, 17], {source: web, keys: [5], since: 40}]")
    rows = plain.positions("web", 5)
    gone = {3, *range(10, 17), *rows[rows >= 40].tolist()}
    kept = [row for row in range(len(plain)) if row not in gone]
    assert len(plan) == len(kept)
    for ours, theirs in zip(plan.read(np.arange(80)), plain.read(kept[:80]), strict=True):
        assert np.array_equal(ours["input_ids"], theirs["input_ids"])
    assert [e.unskipped for e in ledger.entries(plan, [9, 10])][-1] == kept[10]
    for total in (5, 30, len(plan)):
        spans = plan.spans(np.arange(total))
        assert plan.report(total).tokens == int(spans.length.sum())
    assert plan.fingerprints["skip"] == "3, [10, 17), web: 5 since 40"
    assert "skip 3, [10, 17)" in str(plan)


def test_a_skip_list_may_change_at_a_resume(tmp_path: Path) -> None:
    plain, plan = planned(tmp_path, PACKS[0]), planned(tmp_path, PACKS[0], "[1, 20]")
    loader = Loader(plain, 4)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    again = Loader(plan, 4, output="samples")
    with pytest.raises(ConfigError, match=r"allow_skip=True|its fingerprint"):
        again.load_state_dict(state)
    again.load_state_dict(state, allow_skip=True)
    found = [row["input_ids"] for _, batch in zip(range(6), again, strict=False) for row in batch]
    wanted = [row for row in range(4, 29) if row != 20]
    assert np.array_equal(found, [row["input_ids"] for row in plain.read(wanted)])


def test_needs_and_budgets_of_rows(tmp_path: Path) -> None:
    plan = planned(tmp_path, PACKS[0])
    report = plan.report(50)
    assert [need.epochs is not None for need in needs(plan, 50)] == [True] * 3
    rows = samples_for_tokens(plan, report.tokens or 0)
    assert plan.report(rows).tokens == report.tokens and rows <= 50


class Sized(Tokenized):
    """Documents with two bytes a token."""

    def describe(self) -> dict[str, object]:
        return {"samples": len(self), "bytes": 2 * int(self.lengths.sum())}


@pytest.mark.parametrize("buffer", [None, 1 << 16, 300])
def test_what_is_reported_is_what_the_rows_hold(buffer: int | None, tmp_path: Path) -> None:
    """Not what the buffers hold that the rows come from, which may be two thousand passes."""
    rng = np.random.default_rng(3)
    small, large = (Sized(name, rng.integers(1, 300, size)) for name, size in (("small", 459), ("large", 5000)))
    documents = Plan.over([small, large], [0.2, 0.8], seed=2)
    plan = PackedPlan(documents, Packing(256, buffer=buffer), tmp_path)
    for rows in (100, 1000, 4000):
        spans, located = plan.locate_spans(np.arange(rows))
        tokens = np.bincount(located.source, weights=spans.length, minlength=2)
        report, found, close = plan.report(rows), needs(plan, rows), 2.5 / rows**0.5  # rows are shuffled in a buffer
        assert report.tokens == tokens.sum()
        assert abs(tokens.sum() - sum(source.tokens or 0 for source in report.sources)) <= 1
        used = np.bincount(located.source[spans.start == 0], minlength=2)  # documents, by their first pieces
        for number, (need, source) in enumerate(zip(found, report.sources, strict=True)):
            assert need.drawn_bytes == pytest.approx(2 * tokens[number], rel=close)
            assert source.drawn == pytest.approx(used[number], rel=close)
            assert source.repeats == pytest.approx(used[number] / source.used, rel=close)
        epochs = mixture(plan, rows).epochs[-1]
        assert np.allclose(epochs, [source.repeats for source in report.sources])
    assert overview(plan, samples=1000).facts["packing"]["buffer"] == (
        buffer or 2298
    )  # 459 / 0.2, and until the next draw


@pytest.mark.parametrize("pack", PACKS)
def test_the_mixture_of_rows_is_that_of_what_is_in_them(pack: str, tmp_path: Path) -> None:
    """Whole buffers of documents are read before the rows that hold them, which the shares must not show."""
    plan = planned(tmp_path, pack)
    found = mixture(plan, 100, windows=2)
    for window in range(2):
        rows = plan.locate_spans(np.arange(window * 50, window * 50 + 50))
        begun = np.bincount(rows.located.source[rows.spans.start == 0], minlength=len(plan.names))
        assert np.allclose(found.shares[window], begun / begun.sum())  # weights count documents


@pytest.mark.parametrize("pack", PACKS)
def test_a_hundred_thousand_pieces_lead_forwards_and_back(pack: str, tmp_path: Path) -> None:
    """Nesting, stages, a subset, a shuffle and packing at once: row -> pieces -> samples -> positions -> rows."""
    (tmp_path / "inner.yaml").write_text(INNER)
    text = (OUTER % ("", pack)).replace("samples: 6000", "samples: 120000").replace("samples: 700", "samples: 50000")
    plan = Recipe.parse(text, base=tmp_path).plan(opened)
    assert isinstance(plan, PackedPlan)
    rows = np.random.default_rng(5).integers(0, len(plan), 100_000)
    spans = plan.spans(rows)
    row = np.repeat(rows, np.diff(spans.row_offsets))
    assert len(row) >= 100_000
    located = plan.documents.locate(spans.position)
    positions, epochs = plan.documents.node.positions(located)  # the sample leads to where it stands in the stream ...
    assert np.array_equal(positions, spans.position) and not epochs.any()
    found = plan.placements(spans.position)  # ... and from there to the row and the place in it
    document = np.repeat(np.arange(len(spans.position)), np.diff(found.offsets))
    same = (found.row == row[document]) & (found.start == spans.start[document])
    assert np.array_equal(np.bincount(document[same], minlength=len(row)), np.ones(len(row)))
    assert np.array_equal(found.length[same], spans.length[document[same]])
