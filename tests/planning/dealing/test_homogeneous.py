"""Batches of one source, by brute force: counts are counted, and nothing here uses the product's arithmetic."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from feedmill.planning import bounds, ledger
from feedmill.planning.dealing.evenness import spread
from feedmill.planning.nodes import Blend, Leaf, Repeat, StagedBlend, shuffled
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Numbered

WEIGHT = st.sampled_from([0, 1, 2, 3, 7, "0.3", "1/3", "0.123456789"])


def streams(sizes: list[int]) -> list[Repeat]:
    return [Repeat(shuffled(Leaf(number, size), "global", number)) for number, size in enumerate(sizes)]


def planned(text: str) -> Plan:
    sizes = {"docs": 1000, "code": 300, "web": 40}
    return Recipe.parse(text).plan(lambda path, **_: Numbered(path, sizes[path.rpartition("/")[2]], tokens=10))


@given(st.lists(WEIGHT, min_size=1, max_size=5).filter(any), st.integers(2, 40))
@settings(max_examples=examples(100), deadline=None)
def test_after_any_number_of_batches_every_source_is_within_one_batch_of_its_share(weights: list, size: int) -> None:
    node = Blend(streams([97] * len(weights)), weights, run_length=size)
    exact = [Fraction(weight) for weight in weights]
    seen = node.locate(np.arange(60 * size)).source.reshape(60, size)
    assert (seen == seen[:, :1]).all()  # a batch has one source
    counts = [0] * len(weights)
    for number, source in enumerate(seen[:, 0].tolist()):
        counts[source] += 1
        for count, weight in zip(counts, exact, strict=True):
            assert abs(count - (number + 1) * weight / sum(exact)) < 1
    batches = Blend(streams([97] * len(weights)), weights).locate(np.arange(60)).source
    assert seen[:, 0].tolist() == batches.tolist(), "batches come in the order in which the blend gives samples"


@given(st.lists(WEIGHT, min_size=2, max_size=5).filter(any), st.integers(2, 20), st.integers(1, 50), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_forwards_backwards_and_counts_agree(weights: list, size: int, sample: int, staged: bool) -> None:
    children = streams([31, 53, 11, 7, 3][: len(weights)])
    if staged:
        node: Any = StagedBlend(children, [(3 * size, weights), (None, weights[::-1])], run_length=size)
    else:
        node = Blend(children, weights, run_length=size)
    total = 25 * size + sample % size
    located = node.locate(np.arange(total))
    back, epochs = node.positions(located)
    assert back.tolist() == list(range(total)) and not epochs.any()
    drawn = Counter(located.source.tolist())
    assert list(node.draws(total)) == [drawn[number] for number in range(len(weights))]
    assert bounds.reaches(node, total) == {
        n: -(-drawn[n] // leaf.children[0].length) for n, leaf in enumerate(children)
    }
    for number in range(len(weights)):  # each source's samples come in its own order
        rows = located.source == number
        alone = children[number].locate(np.arange(rows.sum()))
        assert located.index[rows].tolist() == alone.index.tolist()
        assert located.epoch[rows].tolist() == alone.epoch.tolist()
    for begin in range(0, total, 7):
        part = node.locate(np.arange(begin, min(begin + 7, total)))
        assert part.index.tolist() == located.index[begin : begin + 7].tolist()


def test_every_batch_of_random_layouts_has_one_source_and_resumes() -> None:
    dice = random.Random(4)
    for _ in range(40):
        size = dice.choice([12, 24, 48])
        sizes = [dice.randint(1, 60) for _ in range(dice.randint(2, 5))]
        datasets = [Numbered(f"s{number}", each) for number, each in enumerate(sizes)]
        node = Blend(streams(sizes), [dice.randint(1, 5) for _ in sizes], run_length=size)
        plan = Plan(node, datasets, [each.url for each in datasets], seed=dice.randrange(9))
        position, state = 0, None
        for _ in range(3):
            batch = dice.choice([each for each in (1, 2, 3, 4, 6, 12, 24) if size % each == 0])
            ranks = dice.randint(1, 5)
            whole = batch * ranks
            if position % (batch if size % whole else whole):
                continue  # refused, below
            options: dict[str, Any] = {"deal": dice.choice(["shuffled", "contiguous"]), "output": "samples"}
            loaders = [Loader(plan, batch, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
            iterators = []
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
                iterators.append(iter(loader))
            for number in range(4):
                parts = [[sample.raw("txt").decode() for sample in next(iterator)] for iterator in iterators]
                assert all(len({text.split(":")[0] for text in part}) == 1 for part in parts)
                if size % whole == 0:
                    assert len({text.split(":")[0] for text in chain.from_iterable(parts)}) == 1
                expected = [sample.raw("txt").decode() for sample in plan.read(np.arange(position, position + whole))]
                assert Counter(chain.from_iterable(parts)) == Counter(expected)
                begins = {"start": loaders[0]._progress.grid.start}
                dealt = ledger.ranks_of(plan, number, whole, ranks, dealing=loaders[0].dealing, **begins)
                for part, positions in zip(parts, dealt, strict=True):
                    assert part == [sample.raw("txt").decode() for sample in plan.read(positions)]
                position += whole
            state = loaders[0].state_dict()
            assert state["position"] == position
            for loader in loaders:
                loader.close()


def test_slices_are_dealt_so_that_every_rank_sees_every_source() -> None:
    node = Blend(streams([997] * 4), [1, 1, 1, 1], run_length=8)
    plan = Plan(node, [Numbered(f"s{n}", 997) for n in range(4)], list("abcd"))
    for rank in range(4):
        seen = Counter()
        for number in range(400):
            step = ledger.batch(plan, number, 32, rank=rank, world_size=4)
            seen[int(plan.locate(step.positions[:1]).source[0])] += 1
        assert min(seen.values()) > 100 - 4 * 400**0.5 * (0.25 * 0.75) ** 0.5


RECIPE = """
seed: 3
homogeneous: 32
blend:
  - {path: docs, weight: 0.7}
  - {path: code, weight: 0.3}
"""


def test_a_recipe_gives_runs() -> None:
    plan = planned(RECIPE)
    assert plan.locate(np.arange(0, 320, 32)).source.tolist().count(0) == 7
    assert "blend 7/10 : 3/10 in runs of 32" in str(plan)
    same = RECIPE.replace("homogeneous: 32", "homogeneous: {by: source, samples: 32}")
    assert planned(same).fingerprint == plan.fingerprint
    assert plan.explain_change(planned(RECIPE.replace(": 32", ": 16")).fingerprints)
    plain = planned(RECIPE.replace("homogeneous: 32\n", ""))
    assert planned(RECIPE.replace(": 32", ": 1")).fingerprint == plain.fingerprint
    assert plan.report(320).sources[0].drawn == 224
    shares = spread(plan, 4, 16).shares
    assert abs(shares[0].realized - 0.7) < 0.01 and shares[0].least < 0.7 < shares[0].most
    located = plan.locate(np.arange(3200))
    assert (
        plan.positions("docs", 5, 3200).tolist()
        == np.flatnonzero((located.source == 0) & (located.index == 5)).tolist()
    )


def test_a_source_that_is_smaller_than_a_batch_repeats_in_it_or_ends_the_plan() -> None:
    text = RECIPE.replace("path: code", "path: web").replace("32", "64")
    plan = planned(text)
    located = plan.locate(np.arange(64 * 10))
    first = np.flatnonzero(located.source == 1)[:64]
    assert located.epoch[first].max() == 1
    for key in ("epochs: 1", "max_repeats: 1"):
        ended = planned(text.replace("path: web,", f"path: web, {key},"))
        assert ended.length == first[40], "the position of the first sample too many"


STAGES = """
homogeneous: 32
global_batch: 32
blend: [{path: docs}, {path: code}]
stages:
  - {samples: 320, weights: {docs: 0.7, code: 0.3}}
  - {tokens: 6500, weights: {docs: 0.5, code: 0.5}}
  - {weights: {docs: 0, code: 1}}
"""


def test_stages_begin_with_a_run() -> None:
    plan = planned(STAGES)
    tokens = 10 + np.arange(1000).astype(float) % 7
    source = plan.locate(np.arange(32 * 40)).source.reshape(40, 32)
    assert (source == source[:, :1]).all() and np.bincount(source[:10, 0]).tolist() == [7, 3]
    assert round(6500 / tokens.mean() / 32) == 16 and np.bincount(source[10:26, 0]).tolist() == [8, 8]
    assert set(source[26:, 0].tolist()) == {1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RECIPE.replace(": 32", ": 0"), "homogeneous"),
        (RECIPE.replace(": 32", ": {by: bucket, samples: 4}"), "has no numeric field 'bucket'"),
        (RECIPE.replace("blend:", "concat:").replace("weight:", "epochs:"), "needs a 'blend'"),
        (RECIPE.replace("blend:", "blend_epochized:").replace("weight:", "repetitions:"), "needs a 'blend'"),
        (RECIPE + "pack: {seq_len: 64}", "cannot be combined"),
        (RECIPE + "order: nanoset", "'homogeneous' and 'order' cannot be combined"),
        (RECIPE + "samples: 32", "'code' has a share of 0.3 of 32 samples, and gets none of the 1 runs of 32"),
        (RECIPE + "skip: [[5, 40]]", r"removes the positions \[5, 40\) from runs of 32"),
        (RECIPE + "skip: [7]", r"removes the positions \[7, 8\)"),
        (STAGES.replace("320", "300"), "stage 1 has 300 samples, which is not a multiple of runs of 32"),
        (STAGES.replace("6500", "100"), "100 tokens are less than one run of 32 samples"),
    ],
)
def test_recipes_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(text)


def test_whole_runs_can_be_skipped() -> None:
    plan, skipped = planned(RECIPE), planned(RECIPE + "skip: [[32, 96]]")
    assert skipped.locate(np.arange(32, 64)).index.tolist() == plan.locate(np.arange(96, 128)).index.tolist()
    assert len(list(zip(Loader(skipped, 16, rank=0, world_size=1), range(3), strict=False))) == 3


@pytest.mark.parametrize(
    ("batch", "ranks", "options", "words"),
    [
        (64, 1, {}, "a batch of 64 samples would hold several sources: the plan yields 32"),
        (12, 1, {}, "Use a batch size per rank that divides 32"),
        (16, 1, {"start": 8}, "position 8 is not a multiple of 16"),
        (8, 4, {"start": 8}, "position 8 is not a multiple of 32"),
        (8, 3, {"balance": "tokens"}, "different sources cannot be balanced"),
        (8, 3, {"remainder": "uneven"}, "the last 8 samples do not fill a global batch of 24"),
        (8, 3, {"remainder": "ragged"}, "Use remainder='drop'"),
        (16, 2, {"remainder": "pad", "start": 320 - 32}, None),
        (8, 3, {"remainder": "drop"}, None),
        (8, 4, {"balance": "tokens"}, None),
        (8, 4, {"task_encoder": TaskEncoder()}, None),
    ],
)
def test_layouts(batch: int, ranks: int, options: dict[str, Any], words: str | None) -> None:
    plan = planned(RECIPE + "samples: 320")
    if words is None:
        assert next(iter(Loader(plan, batch, rank=0, world_size=ranks, **options)))
        return
    with pytest.raises(ConfigError, match=words):
        Loader(plan, batch, rank=0, world_size=ranks, **options)


def test_a_state_inside_of_a_batch_is_refused() -> None:
    plan = planned(RECIPE)
    loader = Loader(plan, 8, rank=0, world_size=1)
    next(iter(loader))
    other = Loader(plan, 16, rank=0, world_size=1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="position 8 is not a multiple of 16"):
        iter(other)


def test_a_last_batch_that_is_not_full_has_one_source() -> None:
    plan = planned(RECIPE + "samples: 340")
    with pytest.raises(ConfigError, match="the last 20 samples"):
        Loader(plan, 16, rank=0, world_size=2, remainder="pad")
    loaders = [Loader(plan, 16, rank=rank, world_size=2, output="samples") for rank in range(2)]
    last = [list(loader)[-1] for loader in loaders]
    assert [len(part) for part in last] == [10, 10]
    assert len({sample.raw("txt").split(b":")[0] for part in last for sample in part}) == 1


def test_a_nested_recipe_has_no_homogeneous(tmp_path: Any) -> None:
    (tmp_path / "inner.yaml").write_text(RECIPE)
    with pytest.raises(ConfigError, match="cannot have 'homogeneous'"):
        Recipe.parse("source: {recipe: inner.yaml}", base=tmp_path).plan(lambda path, **_: Numbered(path, 300))
