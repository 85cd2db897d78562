"""Sources in the order of a column, against sorted lists: nothing here uses the product's arithmetic."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Numbered

SIZES = {"a": 97, "b": 41, "c": 160}


def planned(text: str, **sizes: int) -> Plan:
    known = {**SIZES, **sizes}
    return Recipe.parse(text).plan(lambda path, **_: Numbered(Path(path).name, known[Path(path).name], tokens=10))


def column(name: str, by: str) -> list[float]:
    data = Numbered(name, SIZES[name], tokens=10)
    values = data.values(by)
    assert values is not None
    found: list[float] = values.tolist()
    return found


def in_windows(values: list[float], window: int, begin: str) -> bool:
    """Whether values are a sorted list after its windows were shuffled, the first of which may be shorter."""
    wanted = sorted(values, reverse=begin == "hard")
    for first in range(min(window, len(values))) if window < len(values) else [0]:
        borders = [0, *range(first, len(values), window), len(values)]
        if all(sorted(values[a:b]) == sorted(wanted[a:b]) for a, b in itertools.pairwise(borders)):
            return True
    return False


@given(st.sampled_from(["score", "tokens", "group"]), st.sampled_from(["easy", "hard"]), st.integers(1, 60), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_random_blends_have_each_source_in_its_order(by: str, begin: str, window: int, data: st.DataObject) -> None:
    weights = [data.draw(st.sampled_from([1, 2, 5, "1/3"])) for _ in range(3)]
    subset = data.draw(st.sampled_from(["[0, 90]", "[13%, 80%]", "[5, end]"]))
    order = f"{{by: {by}, from: {begin}, window: {window}}}"
    plan = planned(
        f"""
seed: {data.draw(st.integers(0, 99))}
samples: 900
blend:
  - {{path: a, weight: {weights[0]}, subset: {subset}, curriculum: {order}}}
  - {{path: b, weight: {weights[1]}}}
  - {{weight: {weights[2]}, concat: [{{path: c, subset: [7, 120]}}, {{path: b, name: b2}}], curriculum: {order}}}
"""
    )
    positions = np.arange(900)
    located = plan.locate(positions)
    assert plan.node.positions(located)[0].tolist() == positions.tolist()
    streams: list[list[tuple[str, int, int]]] = [[], [], []]
    for source, index, epoch in zip(
        located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True
    ):
        streams[min(source, 2)].append((plan.names[source], index, epoch))
    for number, names in ((0, {"a": "a"}), (2, {"concat/c": "c", "concat/b2": "b"})):
        for _, group in itertools.groupby(streams[number], key=lambda each: each[2]):
            seen = list(group)
            assert len(set(seen)) == len(seen)
            size = {0: plan.node.children[0].children[0].length, 2: 113 + 41}[number]
            if len(seen) == size:  # a whole pass
                assert in_windows([column(names[name], by)[index] for name, index, _ in seen], window, begin)


def test_each_epoch_has_its_own_order_and_borders_and_any_chunk_gives_the_same() -> None:
    plan = planned("{seed: 5, source: {path: c, curriculum: {by: group, window: 20}}}")
    epochs = [plan.locate(np.arange(160) + 160 * epoch).index.tolist() for epoch in range(8)]
    assert len({tuple(order) for order in epochs}) == 8
    groups = column("c", "group")
    borders = set()
    for order in epochs:
        values = [groups[index] for index in order]
        assert in_windows(values, 20, "easy")
        borders.add(
            next(
                first
                for first in range(20)
                if all(
                    sorted(values[a:b]) == sorted(groups)[a:b]
                    for a, b in itertools.pairwise([0, *range(first, 160, 20), 160])
                )
            )
        )
    assert len(borders) > 2
    positions = np.random.default_rng(1).permutation(8 * 160)
    for chunk in np.array_split(positions, 50):
        assert plan.locate(chunk).index.tolist() == [epochs[p // 160][p % 160] for p in chunk.tolist()]


def test_samples_of_one_value_are_in_a_new_order_each_time() -> None:
    plan = planned("{seed: 5, source: {path: c, curriculum: {by: score, window: 1}}}")
    scores, orders = column("c", "score"), []
    for epoch in range(4):
        order = plan.locate(np.arange(160) + 160 * epoch).index.tolist()
        assert [scores[index] for index in order] == sorted(scores)
        orders.append(order)
    assert all(sum(a == b for a, b in zip(x, y, strict=True)) < 40 for x, y in itertools.combinations(orders, 2))


def test_a_plan_shows_it_and_finds_its_samples() -> None:
    text = "{seed: 5, epochs: 2, source: {path: a, curriculum: score}}"
    plan = planned(text)
    assert "a: 97 samples, curriculum by score from easy, window 10,000, 2 epochs" in str(plan)
    assert plan.positions("a", 3).tolist() == [int(p) for p in range(194) if plan.locate([p]).index[0] == 3]
    other = planned(text.replace("curriculum: score", "curriculum: {by: score, from: hard}"))
    assert "curriculum by score from hard" in other.explain_change(plan.fingerprints)[0]
    assert other.fingerprint != plan.fingerprint == planned(text).fingerprint


def test_a_run_resumes_with_other_ranks_and_with_a_changed_mixture() -> None:
    text = "{seed: 5, blend: [{path: a, weight: 3, curriculum: {by: score, window: 9}}, {path: b, weight: 1}]}"
    whole = [
        sample.key for batch in itertools.islice(Loader(planned(text), 4, output="samples"), 100) for sample in batch
    ]
    for world, size, at in ((2, 6, 3), (3, 4, 5), (1, 1, 7)):
        ranks = [Loader(planned(text), size, rank=rank, world_size=world, output="samples") for rank in range(world)]
        for loader in ranks:
            list(itertools.islice(iter(loader), at))
        state = json.loads(json.dumps(ranks[0].state_dict()))
        resumed = Loader(planned(text), 8, output="samples")
        resumed.load_state_dict(state)
        begin = at * size * world
        keys = [sample.key for batch in itertools.islice(iter(resumed), 10) for sample in batch]
        assert keys == whole[begin : begin + 80]
    changed = "{seed: 5, blend: [{path: a, curriculum: {by: score, window: 9}}, {path: b}], stages: [%s]}"
    stages = "{samples: 60, weights: {a: 3, b: 1}}, {weights: {a: 1, b: 9}}"
    state = Loader(planned(text), 1, start=60, output="samples").state_dict()
    loader = Loader(planned(changed % stages), 1, output="samples")
    with pytest.raises(ConfigError, match=r"allow_change=True"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, allow_change=True)
    assert loader.position == 60


class Better(Numbered):
    """Other scores of the same samples."""

    def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
        return np.arange(len(self)) * 31 % 17


def test_other_scores_are_another_order_even_of_the_same_samples() -> None:
    text = "{seed: 5, epochs: 3, source: {path: a, curriculum: {by: score, window: 2}}}"
    state = Loader(planned(text), 1, start=20).state_dict()
    other = Recipe.parse(text).plan(lambda path, **_: Better("a", 97, tokens=10))
    with pytest.raises(ConfigError, match=r"source a was curriculum by score from easy, window 2 values \w+"):
        Loader(other, 1).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"the order by 'score' of the state's plan is unknown"):
        Loader(other, 1).load_state_dict(state, allow_change=True)
    gone = Recipe.parse(text).plan(lambda path, **_: Better("a", 97, "2", tokens=10))
    with pytest.raises(ConfigError, match=r"the order by 'score' of the state's plan is unknown"):
        Loader(gone, 1).load_state_dict(state, allow_change=True)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("{source: {path: a, curriculum: scores}}", r"recipe:1: the index of .*a has no column 'scores' .*see docs"),
        ("{source: {path: a, curriculum: {by: score, window: 0}}}", "window: input should be greater than or equal"),
        ("{source: {path: a, curriculum: {from: easy}}}", r"curriculum\.by: field required"),
        ("{source: {path: a, curriculum: {by: score, from: middle}}}", "input should be 'easy' or 'hard'"),
        ("{source: {path: a, curriculum: score, shuffle: block}}", "'curriculum' replaces 'shuffle'"),
        ("{source: {blend: [{path: a}], curriculum: score}}", "'curriculum' needs a dataset"),
        ("{concat: [{path: a, curriculum: score}]}", r"recipe:1: this shuffle would undo .*'shuffle: none'"),
        (
            "{blend: [{concat: [{path: a, curriculum: score}], shuffle: global}]}",
            r"recipe:1: this shuffle would undo the order of a source below it \(curriculum by score",
        ),
        (
            "{source: {concat: [{path: a, epochs: 2}], curriculum: score}}",
            "need the samples of datasets in stored order",
        ),
        (
            "{homogeneous: {by: tokens, samples: 4}, blend: [{path: a, curriculum: score}]}",
            "'homogeneous' by a field and 'curriculum'",
        ),
        ("{seed: 1, order: nanoset, blend: [{path: a, curriculum: score}]}", "remove 'curriculum'"),
    ],
)
def test_what_cannot_be_ordered_is_named_with_its_line(recipe: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(recipe)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_column_of_stored_data_has_fractions_and_negative_numbers(tmp_path: Path, kind: str) -> None:
    scores = [0.25, -3.5, 0.75, 0.5, 1e-9, 0.125]
    rows: list[dict[str, Any]] = [{"score": score, "id": f"p{n // 2}"} for n, score in enumerate(scores)]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (tmp_path / "r.yaml").write_text(f"{{epochs: 1, source: {{path: a.{kind}, curriculum: {{by: score, window: 1}}}}}}")
    plan = fm.Recipe.load(tmp_path / "r.yaml").plan()
    assert plan.locate(np.arange(6)).index.tolist() == sorted(range(6), key=scores.__getitem__)
    dataset = fm.open(path)
    assert dataset.values("id") is None
    texts = dataset.values("id", texts=True)
    assert texts is not None and [int(each == texts[0]) for each in texts] == [1, 1, 0, 0, 0, 0]
    if kind == "jsonl":
        path.write_text(path.read_text() + '{"id": "x"}\n')
        with pytest.raises(DataError, match=r"sample 6.*missing"):
            fm.Recipe.load(tmp_path / "r.yaml").plan()
