"""Stages with a seq_len of their own: an independent model of every row, batch, step and resume over random recipes."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.loading.failures import candidates
from feedmill.loading.loader import Loader
from feedmill.planning import ledger
from feedmill.planning.dealing.dealer import Dealer
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.dealing.rules import Dealing
from feedmill.planning.nodes import Blend, Leaf, Repeat, Shuffle, StagedBlend
from feedmill.planning.packing import best_fit, windows
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.counted import counted
from helpers.durations import examples
from helpers.token_dataset import Tokenized

SIZES = {"a": 30, "b": 17, "c": 8}
Piece = tuple[int, int, int]  # position in the stream of documents, first token, tokens


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(best_fit, "BUFFER", 64)  # the segments of an endless stage are otherwise a million documents
        patch.setattr(windows, "CHUNK", 16)
        patch.setattr(windows, "PER_SEGMENT", 4)
        yield


def opened(path: str, **_: Any) -> Tokenized:
    name = path.rpartition("/")[2]
    lengths = np.random.default_rng(ord(name)).integers(1, 40, SIZES[name])
    return Tokenized(name, lengths, 1 + 10**5 * ord(name))


def planned(recipe: dict[str, Any] | str) -> Any:
    return Recipe.parse(copy.deepcopy(recipe)).plan(opened)


@st.composite
def recipes(draw: st.DrawFn, endless: bool = True) -> dict[str, Any]:
    """A blend in stages with ramps, pauses and widths, packed in any way."""
    names = list(SIZES)[: draw(st.integers(1, 3))]
    weights = st.fixed_dictionaries({name: st.sampled_from([0, 1, 2]) for name in names})
    widths = st.sampled_from([None, None, 8, 16, 50])
    stages = []
    for number in range(draw(st.integers(1, 4))):
        stage: dict[str, Any] = {
            "samples": draw(st.integers(10, 60)),
            "weights": draw(weights.filter(lambda given: any(given.values()))),
        }
        width = draw(widths)
        if width:
            stage["seq_len"] = width
        if number and draw(st.booleans()):
            stage["ramp"] = draw(st.sampled_from(["linear", "cosine"]))
        stages.append(stage)
    if endless and "ramp" not in stages[-1] and draw(st.booleans()):
        del stages[-1]["samples"]
    pack: dict[str, Any] = {"seq_len": draw(st.sampled_from([12, 25]))}
    if draw(st.booleans()):
        pack |= {"method": "concat", "last": draw(st.sampled_from(["drop", "keep", "pad"]))}
        pack |= {"overlap": True} if draw(st.booleans()) else {}
    else:
        pack["long"] = draw(st.sampled_from(["split", "truncate"]))
        pack |= {"buffer": draw(st.sampled_from([5, 23]))} if draw(st.booleans()) else {}
    recipe = {"seed": draw(st.integers(0, 9)), "blend": [{"path": name} for name in names], "stages": stages}
    return {**recipe, "pack": pack}


def phases_of(recipe: dict[str, Any], end: int) -> list[tuple[int, int, int]]:
    """Width, first document and end of the stages, together where the width stays."""
    found: list[tuple[int, int, int]] = []
    start = 0
    for stage in recipe["stages"]:
        width, stop = stage.get("seq_len", recipe["pack"]["seq_len"]), min(start + stage.get("samples", end), end)
        if found and found[-1][0] == width:
            found[-1] = (width, found[-1][1], stop)
        elif start < end:
            found.append((width, start, stop))
        start = stop
    return found


def windows_by_hand(lengths: Sequence[int], first: int, width: int, pack: dict[str, Any], whole: bool) -> list[Any]:
    """Every window of a phase, from a list of all its tokens."""
    tokens = [(first + n, token) for n, length in enumerate(lengths) for token in range(length)]
    more = int(pack.get("overlap", False))
    rows = []
    for begin in range(0, len(tokens), width):
        window = tokens[begin : begin + width + more]
        if len(window) < width + more and (pack["last"] == "drop" or not whole or (begin and len(window) <= more)):
            break
        row: list[Piece] = []
        for document, group in itertools.groupby(window, key=lambda each: each[0]):
            own = [token for _, token in group]
            row.append((document, own[0], len(own)))
        rows.append(row)
    return rows


def fills_by_hand(pieces: Sequence[int], width: int) -> list[int]:
    """How full best fit makes rows: the longest piece first, each into the fullest row that holds it."""
    rows: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [row for row, used in enumerate(rows) if used + piece <= width]
        if fitting:
            rows[max(fitting, key=lambda row: rows[row])] += piece
        else:
            rows.append(piece)
    return sorted(rows)


def rows_of(plan: PackedPlan, rows: Sequence[int] | np.ndarray) -> list[list[Piece]]:
    spans = plan.spans(np.asarray(rows, np.int64))
    columns = zip(spans.position.tolist(), spans.start.tolist(), spans.length.tolist(), strict=True)
    found = list(columns)
    return [found[a:b] for a, b in itertools.pairwise(spans.row_offsets.tolist())]


def check_phase(plan: PackedPlan, rows: list[list[Piece]], recipe: dict[str, Any], phase: tuple[int, int, int]) -> None:
    """Compare all rows of one phase with the model."""
    width, start, stop = phase
    pack = recipe["pack"]
    lengths = plan.stream.lengths(np.arange(start, stop)).tolist()
    if pack.get("method") == "concat":
        assert rows == windows_by_hand(lengths, start, width, pack, whole=True)
        return
    wanted = []
    for document, length in enumerate(lengths, start):
        cut = [(document, 0, min(length, width))]
        if pack["long"] == "split":
            cut = [(document, at, min(width, length - at)) for at in range(0, length, width)]
        wanted += cut
    assert sorted(piece for row in rows for piece in row) == wanted
    assert all(row == sorted(row) and sum(size for _, _, size in row) <= width for row in rows)
    if "buffer" in pack:
        for begin in range(start, stop, pack["buffer"]):
            end = min(begin + pack["buffer"], stop)
            inside = [row for row in rows if begin <= row[0][0] < end]
            fills = sorted(sum(size for _, _, size in row) for row in inside)
            assert fills == fills_by_hand([size for at, _, size in wanted if begin <= at < end], width)


@given(recipes(), st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_every_row_is_that_of_a_model_by_hand(recipe: dict[str, Any], chance: int) -> None:
    plan = planned(recipe)
    documents = plan.documents
    endless = documents.length is None
    end = documents.length or sum(stage.get("samples", 0) for stage in recipe["stages"]) + 90
    phases = phases_of(recipe, end)
    overlap = int(recipe["pack"].get("overlap", False))
    total = plan.length if not endless else (plan.borders[-1] if plan.borders else 0)
    rows = rows_of(plan, np.arange(total))
    widths = plan.widths(np.arange(total)).tolist()
    bounds = [0, *plan.borders, total]
    assert len(bounds) == len(phases) + 1
    for (first, last), phase in zip(itertools.pairwise(bounds), phases, strict=True):
        if endless and phase is phases[-1]:
            continue
        check_phase(plan, rows[first:last], recipe, phase)
        assert set(widths[first:last]) == {phase[0] + overlap}
    if endless:  # the rows of the last phase, as far as its first documents decide them
        first = rows_of(plan, np.arange(total, total + 5))
        assert all(at >= phases[-1][1] for row in first for at, _, _ in row)
        if "method" in recipe["pack"]:
            lengths = plan.stream.lengths(np.arange(phases[-1][1], end)).tolist()
            by_hand = windows_by_hand(lengths, phases[-1][1], phases[-1][0], recipe["pack"], whole=False)
            assert first[: len(by_hand)] == by_hand[:5]
        total += 5
        rows += first
    # in any order, and back
    rng = np.random.default_rng(chance)
    shuffled = rng.permutation(total)
    assert rows_of(plan, shuffled) == [rows[row] for row in shuffled.tolist()]
    held: dict[int, list[tuple[int, int, int, int]]] = {}
    for number, row in enumerate(rows):
        at = 0
        for document, start, size in row:
            held.setdefault(document, []).append((number, at, start, size))
            at += size
    asked = rng.permutation(sorted(held))[:40]
    placed = plan.placements(asked)
    found = list(
        zip(*(column.tolist() for column in (placed.row, placed.at, placed.start, placed.length)), strict=True)
    )
    for document, (low, high) in zip(asked.tolist(), itertools.pairwise(placed.offsets.tolist()), strict=True):
        inside = [each for each in found[low:high] if each[0] < total]
        assert sorted(inside) == sorted(held[document])


@given(recipes(endless=False), st.integers(0, 2**32))
@settings(max_examples=examples(20), deadline=None)
def test_tokens_reports_and_copies(recipe: dict[str, Any], chance: int) -> None:
    plan = planned(recipe)
    total = len(plan)
    asked = np.random.default_rng(chance).integers(0, total, 12)
    located = plan.documents.locate(np.arange(plan.documents.length))
    for row, number, width in zip(plan.read(asked), asked.tolist(), plan.widths(asked).tolist(), strict=True):
        tokens = [
            plan.sources[located.source[document]].begins[located.index[document]] + start + token
            for document, start, size in rows_of(plan, [number])[0]
            for token in range(size)
        ]
        assert row["tokens"] == len(tokens) and row["input_ids"][: len(tokens)].tolist() == tokens
        kept = recipe["pack"].get("last") == "keep" and len(tokens) < width
        assert len(row["input_ids"]) == (len(tokens) if kept else width)
    report = plan.report()
    phases = phases_of(recipe, plan.documents.length)
    lengths = plan.stream.lengths(np.arange(plan.documents.length))
    fill = [sum(size for _, _, size in row) for row in rows_of(plan, np.arange(total))]
    assert report.tokens == sum(fill) and report.slots == int(plan.widths(np.arange(total)).sum())
    if len(phases) > 1:
        bounds = [0, *plan.borders, total]
        assert [each.start for each in report.widths] == bounds[:-1]
        for each, (width, start, stop), (first, last) in zip(
            report.widths, phases, itertools.pairwise(bounds), strict=True
        ):
            assert (each.rows, each.tokens) == (last - first, sum(fill[first:last]))
            assert each.width == width + int(recipe["pack"].get("overlap", False))
            shared = (last - first - 1) * int(recipe["pack"].get("overlap", False))
            assert each.left_out == int(lengths[start:stop].sum()) - each.tokens + shared
        again = pickle.loads(pickle.dumps(plan))
        assert again.fingerprint == plan.fingerprint and rows_of(again, [total - 1]) == rows_of(plan, [total - 1])
    else:
        assert not report.widths and plan.borders == ()
    used = int(asked[0])
    if used:
        partly = plan.report(used)
        assert partly.tokens == sum(fill[:used])


def test_widths_of_a_plan_without_stages_change_nothing() -> None:
    plain = {
        "seed": 1,
        "blend": [{"path": "a"}],
        "stages": [{"samples": 50, "weights": {"a": 1}}],
        "pack": {"seq_len": 9},
    }
    same = copy.deepcopy(plain)
    same["stages"][0]["seq_len"] = 9  # type: ignore[index]
    assert planned(same).fingerprint == planned(plain).fingerprint
    assert planned(same)._key(0) == planned(plain)._key(0)


def batches_by_hand(plan: PackedPlan, start: int, size: int, total: int) -> list[list[int]]:
    """The rows of every global batch from a position on."""
    found = []
    for low, high in itertools.pairwise([0, *plan.borders, total]):
        first = max(low, start)
        found += [list(range(at, at + size)) for at in range(first, high - size + 1, size)]
    return found


@given(
    recipes(endless=False),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 40),
    st.sampled_from(["drop", "uneven"]),
)
@settings(max_examples=examples(25), deadline=None)
def test_batches_have_one_width_and_steps_are_traced(
    recipe: dict[str, Any], world: int, each: int, start: int, remainder: Any
) -> None:
    plan = planned(recipe)
    total, size = len(plan), world * each
    start = min(start, total)
    wanted = batches_by_hand(plan, start, size, total)
    grids = [Grid(start, total, each, rank, world, remainder, borders=plan.borders) for rank in range(world)]
    whole = [step for step in range(grids[0].steps or 0) if len(_rows_of_step(plan, grids, step)) == size]
    assert [_rows_of_step(plan, grids, step) for step in whole] == wanted
    before = len(batches_by_hand(plan, 0, size, total)) if start == 0 else None
    assert before is None or grids[0].first_number == 0
    seen = {row: step for step, rows in enumerate(wanted) for row in rows}
    last = wanted[-1][-1] + 1 if wanted else 0
    for row in range(start, total):
        number = grids[0].number_of(row)
        if row in seen or row < last:
            assert number == seen.get(row)
            assert grids[0].number_at(wanted[number][0]) == number if number is not None else True
    for step, rows in enumerate(wanted):
        found = ledger.batch(plan, step, size, start=start)
        assert sorted(found.positions.tolist()) == rows
        assert len(set(plan.widths(rows).tolist())) == 1
        dealt = ledger.ranks_of(plan, step, size, world, start=start)
        assert sorted(np.concatenate(dealt).tolist()) == rows
    source, index = 0, int(plan.documents.locate(np.array([0])).index[0])
    name = plan.names[int(plan.documents.locate(np.array([0])).source[source])]
    for found in ledger.occurrences(plan, name, index, global_batch=size, start=start):
        if found.position in seen:
            assert found.step == seen[found.position]
        elif found.position < last:
            assert found.step is None


def _rows_of_step(plan: PackedPlan, grids: Sequence[Grid], step: int) -> list[int]:
    return sorted(row for grid in grids for row in grid.step(step).positions.tolist())


RECIPE: dict[str, Any] = {
    "seed": 5,
    "blend": [{"path": "a"}, {"path": "b"}, {"path": "c"}],
    "stages": [
        {"samples": 160, "weights": {"a": 2, "b": 1}},
        {"samples": 60, "weights": {"a": 1, "b": 1, "c": 1}, "ramp": "linear", "seq_len": 48},
        {"samples": 100, "weights": {"a": 1, "c": 2}, "seq_len": 30},
    ],
    "pack": {"seq_len": 20, "method": "best_fit"},
}


def concat(recipe: dict[str, Any]) -> dict[str, Any]:
    return {**recipe, "pack": {"seq_len": 20, "method": "concat"}}


def streamed(
    plan: Any, world: int, size: int, states: Any, steps: int, **more: Any
) -> tuple[list[Any], Any, list[int]]:
    """Rows of some steps over all ranks as sorted ids of each step, the state, and the widths of the batches."""
    loaders = [
        Loader(plan, size, rank=rank, world_size=world, seed=1, remainder="drop", **more) for rank in range(world)
    ]
    for loader in loaders:
        if states is not None:
            loader.load_state_dict(states)
    running = [iter(loader) for loader in loaders]
    found, widths = [], []
    for _ in range(steps):
        batches = [next(each, None) for each in running]
        if None in batches:
            break
        widths += [batch["input_ids"].shape[1] for batch in batches]
        found.append(sorted(row.tolist() for batch in batches for row in batch["input_ids"]))
    state = json.loads(json.dumps(loaders[0].state_dict()))
    for loader in loaders:
        loader.close()
    return found, state, widths


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@pytest.mark.parametrize("trials", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_runs_that_are_killed_at_any_step_continue_with_other_ranks_and_batches(method: str, trials: int) -> None:
    recipe = RECIPE if method == "best_fit" else concat(RECIPE)
    plan = planned(recipe)
    ids = [row["input_ids"].tolist() for row in plan.read(np.arange(len(plan)))]
    rng = np.random.default_rng(4)
    for trial in range(trials):
        state, position = None, 0
        while True:
            world, size = int(rng.integers(1, 4)), int(rng.integers(1, 5))
            workers = 2 if trial % 10 == 0 else 0
            wanted = batches_by_hand(plan, position, world * size, len(plan))
            steps = int(rng.integers(1, 9))
            found, state, widths = streamed(planned(recipe), world, size, state, steps, workers=workers)
            assert found == [sorted(ids[row] for row in rows) for rows in wanted[:steps]]
            assert set(widths) <= {20, 48, 30}
            if len(found) < steps:
                break
            position = wanted[steps - 1][-1] + 1
            assert state["position"] == position


@pytest.mark.parametrize("balance", [None, "tokens"])
def test_ranks_and_torch_targets_and_labels_across_a_border(balance: str | None) -> None:
    recipe = {**RECIPE, "targets": {}} | ({} if balance is None else {"balance": balance})
    plan = planned(recipe)
    loaders = [Loader(plan, 2, rank=rank, world_size=2, labels=True, remainder="drop") for rank in range(2)]
    assert len(loaders[0]) == len(batches_by_hand(plan, 0, 4, len(plan)))
    seen = []
    for batches in zip(*loaders, strict=True):
        for loader, batch in zip(loaders, batches, strict=True):
            width = loader.labels.width
            assert batch["inputs"].shape == batch["targets"].shape == (2, width - 1)
            assert set(plan.widths(loader.labels.position).tolist()) == {width}
            assert loader.labels.sums(np.ones((2, width - 1)))[1].sum() > 0
        seen.append(sorted({int(at) for loader in loaders for at in loader.labels.position}))
    assert seen == batches_by_hand(plan, 0, 4, len(plan))


def test_batches_by_budget_end_where_the_width_changes() -> None:
    plan = planned({**RECIPE, "batch": {"tokens": 100}})
    rows = []
    for batches in zip(
        *(Loader(plan, rank=rank, world_size=2, labels=True, remainder="ragged") for rank in range(2)), strict=True
    ):
        widths = {batch["input_ids"].shape[1] for batch in batches}
        assert len(widths) == 1
        rows += [row.tolist() for batch in batches for row in batch["input_ids"]]
    assert sorted(rows) == sorted(row["input_ids"].tolist() for row in plan.read(np.arange(len(plan))))


def test_skipped_rows_move_the_border() -> None:
    plain = planned(RECIPE)
    first, second = plain.borders
    plan = planned({**RECIPE, "skip": [3, [first - 2, first + 1]]})
    assert plan.borders == (first - 3, second - 4) and len(plan) == len(plain) - 4
    kept = [row for row in range(len(plain)) if row not in (3, first - 2, first - 1, first)]
    assert rows_of(plan, np.arange(len(plan))) == [rows_of(plain, [row])[0] for row in kept]
    assert [each.rows for each in plan.report().widths] == [first - 3, second - first - 1, len(plain) - second]
    found, _, widths = streamed(plan, 1, 3, None, 10**6)
    ids = [row["input_ids"].tolist() for row in plan.read(np.arange(len(plan)))]
    assert found == [sorted(ids[row] for row in rows) for rows in batches_by_hand(plan, 0, 3, len(plan))]
    assert widths == sorted(widths, key=[20, 48, 30].index)


def test_a_limit_of_rows_counts_all_of_them() -> None:
    first, second = planned(RECIPE).borders
    for rows in (first - 1, first, first + 1, second + 2):
        plan = planned({**RECIPE, "pack": {**RECIPE["pack"], "rows": rows}})
        assert len(plan) == rows and plan.borders == tuple(each for each in (first, second) if each < rows)
        assert plan.report().total == rows
    with pytest.raises(ConfigError, match=r"documents give .* rows, not 10,000"):
        len(planned({**RECIPE, "pack": {**RECIPE["pack"], "rows": 10_000}}))


def changed(stage: int, **values: Any) -> dict[str, Any]:
    recipe = copy.deepcopy(RECIPE)
    recipe["stages"][stage] |= values
    return recipe


@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_a_later_stage_may_change_in_mid_run(method: str) -> None:
    make = concat if method == "concat" else (lambda recipe: recipe)
    plan = planned(make(RECIPE))
    first, second = plan.borders
    cases = [
        (changed(2, seq_len=64), second, True),
        (changed(2, seq_len=64), second + 1, False),
        (changed(2, weights={"a": 1, "b": 3}), second, True),
        (changed(1, seq_len=20), first, True),  # a stage is a seam; other windows follow those of the first one
        (changed(1, seq_len=96), first, True),
        (changed(1, seq_len=96), first + 1, False),
        (changed(1, samples=90), first + 1, method == "concat"),  # of a longer ramp, the first documents are the same
        (changed(0, seq_len=24), 1, False),
        ({**RECIPE, "stages": RECIPE["stages"][:2]}, second, True),
        (
            {**RECIPE, "stages": [*RECIPE["stages"], {"samples": 40, "weights": {"a": 1}, "seq_len": 99}]},
            len(plan),
            True,
        ),
        ({**RECIPE, "stages": [*RECIPE["stages"], {"samples": 40, "weights": {"a": 1}, "seq_len": 30}]}, second, True),
    ]
    for number, (recipe, position, allowed) in enumerate(cases):
        state = json.loads(json.dumps(Loader(plan, 1, start=position).state_dict()))
        other = planned(make(recipe))
        loader = Loader(other, 1)
        same = position <= len(other) and rows_of(plan, np.arange(position)) == rows_of(other, np.arange(position))
        if allowed:
            assert same, number
            loader.load_state_dict(state, allow_change=True)
            assert loader.position == position
        else:
            with pytest.raises(ConfigError, match=r"changes what the saved run has seen|plan ends after"):
                loader.load_state_dict(state, allow_change=True)
        with pytest.raises(ConfigError, match=r"the plan is not the one|seq_len|packing"):
            loader.load_state_dict(state)


@given(recipes(endless=False), recipes(endless=False), st.integers(0, 60), st.data())
@settings(max_examples=examples(25), deadline=None)
def test_what_is_proven_is_so(
    recipe: dict[str, Any], other: dict[str, Any], position: int, data: st.DataObject
) -> None:
    """A state is only accepted by a recipe with the same rows before it."""
    cut = data.draw(st.integers(0, len(recipe["stages"])))
    mixed = {**recipe, "stages": [*recipe["stages"][:cut], *other["stages"][cut:]]}
    names = {each["path"] for each in recipe["blend"]}
    for stage in mixed["stages"]:
        stage["weights"] = {name: weight for name, weight in stage["weights"].items() if name in names}
    silent = names - {name for stage in mixed["stages"] for name in stage["weights"]}
    assume(mixed["stages"] and not silent and all(any(stage["weights"].values()) for stage in mixed["stages"]))
    assume("ramp" not in mixed["stages"][0])
    before, after = planned(recipe), planned(mixed)
    position = min(position, len(before))
    state = json.loads(json.dumps(Loader(before, 1, start=position).state_dict()))
    loader = Loader(after, 1)
    try:
        loader.load_state_dict(state, allow_change=True)
    except ConfigError as error:
        assert error.kind == "plan-changed"
        return
    assert rows_of(before, np.arange(position)) == rows_of(after, np.arange(position))
    assert before.widths(np.arange(position)).tolist() == after.widths(np.arange(position)).tolist()


def test_sidecars_are_read_again_and_the_last_row_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    for recipe in (RECIPE, concat(RECIPE)):
        plan = planned(recipe)
        rows = rows_of(plan, np.arange(len(plan)))
        assert rows_of(planned(recipe), [len(plan) - 1])[0] == rows[-1]


def test_samples_with_media_have_rows_of_their_stage(tmp_path: Path) -> None:
    source = counted("s0", [10, 50, 30, 60, 8, 20], [0, 1, 0, 2, 0, 1])
    stream = Repeat(Shuffle(Leaf(0, 6), 1))
    documents = Plan(StagedBlend([stream], [(12, [1]), (12, [1])]), [source], ["s0"], 3)
    packing = fm.tokens.Packing(40, long="drop", later=((12, 64),))
    plan = PackedPlan(documents, packing, tmp_path)
    rows = plan.read(np.arange(len(plan)))
    (border,) = plan.borders
    assert [row.seq_len for row in rows] == [40] * border + [64] * (len(plan) - border)
    assert sorted(length for row in rows[:border] for length in row.lengths.tolist()) == sorted([10, 30, 8, 20] * 2)
    assert sorted(length for row in rows[border:] for length in row.lengths.tolist()) == sorted(
        [10, 50, 30, 60, 8, 20] * 2
    )
    report = plan.report()
    assert [(each.name, each.kept) for each in report.whole] == [
        ("s0 in rows of 40 tokens", 4),
        ("s0 in rows of 64 tokens", 6),
    ]
    assert report.media == pytest.approx(10 / len(plan))
    with pytest.raises(ConfigError, match="2 of 6 samples of 's0' have more than the 40 tokens of a row"):
        PackedPlan(documents, fm.tokens.Packing(64, later=((12, 40),)), tmp_path)
    only = Plan(
        StagedBlend([stream, Repeat(Leaf(1, 3))], [(12, [1, 0]), (12, [0, 1])]),
        [source, Tokenized("d", [5, 70, 6])],
        ["s0", "d"],
        3,
    )
    assert len(
        PackedPlan(only, fm.tokens.Packing(64, later=((12, 40),)), tmp_path)
    )  # none of the samples is in rows of 40


def test_python_gives_the_documents_after_which_rows_are_longer(tmp_path: Path) -> None:
    node = Blend([Repeat(Shuffle(Leaf(0, 30), 1))], [1], length=90)
    plan = PackedPlan(Plan(node, [opened("a")], ["a"], 3), fm.tokens.Packing(12, later=((40, 30), (60, 12))), tmp_path)
    assert sorted(set(plan.widths(np.arange(len(plan))).tolist())) == [12, 30] and len(plan.borders) == 2
    for later in (((40, 12),), ((0, 30),), ((40, 30), (40, 12)), ((40, 0),)):
        with pytest.raises(ConfigError, match=r"rows of|out of range"):
            fm.tokens.Packing(12, later=later)


TEXT = """
blend:
  - {path: a}
  - name: mix
    blend: [{path: b}]
    stages: [{weights: {b: 1}}]
stages:
  - {samples: 40, weights: {a: 1, mix: 1}}
  - {samples: 40, weights: {a: 1}, seq_len: 64}
pack: {seq_len: 16}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pack: {seq_len: 16}", "", r"recipe:9: stage 2 has a 'seq_len', and its samples are not packed into rows"),
        ("[{weights: {b: 1}}]", "[{weights: {b: 1}, seq_len: 8}]", r"recipe:6: stage 1 has a 'seq_len', and its"),
        ("seq_len: 64", "seq_len: 0", r"recipe:9: stages\[1\].seq_len: input should be greater than or equal to 1"),
        ("seq_len: 64", "seq_len: long", r"recipe:9: stages\[1\].seq_len: input should be a valid integer"),
        ("seq_len: 64", "pack: 64", r"recipe:9: unknown key 'pack'"),
        ("{seq_len: 16}", "{seq_len: 16, multiple: 16}", r"recipe:10: 'multiple' is for rows of samples"),
        (
            "seq_len: 64}\npack: {seq_len: 16}",
            "seq_len: 40}\npack: {seq_len: 16, multiple: 16}",
            r"recipe:10: rows of 40",
        ),
    ],
)
def test_bad_widths_are_named_with_their_line(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ConfigError, match=message):
        planned(TEXT.replace(old, new))


def test_a_stage_without_a_row_and_batches_that_cannot_be_made() -> None:
    short = changed(1, seq_len=5000, samples=3)
    plan = planned(concat(short))
    with pytest.raises(
        ConfigError, match=r"the 3 documents from 160 to 163 give no row of 5,000 tokens. Make the stages"
    ):
        plan.borders  # noqa: B018
    plan = planned(RECIPE)
    with pytest.raises(ConfigError, match="remainder='pad' fills the last batch with the first rows"):
        Loader(plan, 2, remainder="pad")


def test_rows_that_a_border_drops_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(RECIPE)
    first = plan.borders[0]
    with caplog.at_level("INFO", "feedmill"):
        Loader(plan, first - 1)
    assert (
        f"the 1 rows before position {first}, where rows of another seq_len begin, do not fill a global" in caplog.text
    )
    caplog.clear()
    with caplog.at_level("WARNING", "feedmill"):
        Loader(plan, first + 1)
    assert f"the {first} rows before position {first}" in caplog.text and "0 batches come before them" in caplog.text


def test_plan_and_browser_show_rows_of_each_width(capsys: pytest.CaptureFixture[str]) -> None:
    from feedmill.cli.plan import _print
    from feedmill.planning.overview import plan as overview
    from feedmill.web.mixture import of_plan

    capped = changed(1, max_repeats=9)
    plan = planned(capped)
    report = overview(plan)
    _print(report.plan, report.facts)
    shown = capsys.readouterr().out
    first, second = plan.borders
    assert f"budget: {len(plan)} rows of 20, then 48, then 30 tokens" in shown
    assert f"\n  from row {first}: {second - first} rows of 48 tokens, 60 documents, " in shown
    assert "max_repeats of a in stage 2: at most " in shown and "<= 9 x 30 = 270" in shown
    assert [each["start"] for each in report.as_dict()["packing"]["widths"]] == [0, first, second]
    data = of_plan(plan, stages=3)
    assert [border["stage"] for border in data["chart"]["borders"]] == [1, 2, 3]
    places = [border["x"] for border in data["chart"]["borders"]]
    assert places == pytest.approx([0, 1000 * first / len(plan), 1000 * second / len(plan)], abs=0.1)
    assert data["stages"][1]["max_repeats"] == {"a": 9, "b": 9, "c": 9}


@pytest.mark.parametrize("start", [0, 7])
def test_workers_that_take_turns_share_all_batches_across_borders(start: int) -> None:
    plan = planned(RECIPE)
    wanted = batches_by_hand(plan, start, 4, len(plan))
    grid = Grid(start, len(plan), 2, 1, 2, "drop", borders=plan.borders)
    dealer = Dealer(plan, grid, Dealing())
    whole = [step.positions.tolist() for step in dealer.batches(start)]
    assert len(whole) == len(wanted) == grid.steps
    assert all(set(mine) < set(rows) for mine, rows in zip(whole, wanted, strict=True))
    for every in (2, 3):
        parts = [[step.positions.tolist() for step in dealer.batches(start, skip, every)] for skip in range(every)]
        assert [parts[n % every][n // every] for n in range(len(whole))] == whole
    for number, rows in enumerate(wanted):  # from any batch on
        assert [step.positions.tolist() for step in dealer.batches(rows[0])] == whole[number:]
    numbers = [step.number for step in dealer.batches(start)]
    assert numbers == list(range(grid.first_number, grid.first_number + len(whole)))
    assert grid.first_number == -(-start // 4)


def test_a_row_that_fails_is_replaced_by_one_of_its_width() -> None:
    plan = planned(RECIPE)
    for position in (0, plan.borders[0], plan.borders[1] + 1):
        found = list(itertools.islice(candidates(plan, position, 3), 20))
        assert len(found) == 20 and set(plan.widths(found).tolist()) == set(plan.widths([position]).tolist())
