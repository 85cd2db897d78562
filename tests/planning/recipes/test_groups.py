"""Groups kept whole, position by position over random recipes: nothing here uses the product's arithmetic."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.planning.dealing.evenness import spread
from feedmill.planning.nodes import Groups, Leaf
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Growing, Numbered

SIZES = {"a": 96, "b": 48, "c": 150, "d": 37}


def planned(text: str, **sizes: int) -> Plan:
    known = {**SIZES, **sizes}
    return Recipe.parse(text).plan(lambda path, **_: Growing(Path(path).name, known[Path(path).name], tokens=10))


def groups_by_column(first: int, stop: int) -> list[list[int]]:
    """The groups of the column ``group`` of numbered data that begin in a range."""
    runs = [[0], [1, 2, 3], [4, 5, 6, 7], [8, 9]]
    whole = [[10 * ten + each for each in run] for ten in range(20) for run in runs]
    return [run for run in whole if first <= run[0] and run[-1] < stop]


def groups_of_size(size: int, first: int, stop: int) -> list[list[int]]:
    return [list(range(begin, begin + size)) for begin in range(first, stop, size)]


def check_stream(plan: Plan, groups: dict[str, list[list[int]]], shuffled: Sequence[str] = ()) -> list[str]:
    """Check every position of a plan, and return the source of each; sources that are not in `groups` are single."""
    assert plan.length is not None
    positions = np.arange(plan.length)
    located = plan.locate(positions)
    assert plan.node.positions(located)[0].tolist() == positions.tolist()
    stream = [
        (plan.names[source], index, epoch)
        for source, index, epoch in zip(
            located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True
        )
    ]
    home = {name: {index: tuple(group) for group in every for index in group} for name, every in groups.items()}
    seen: dict[tuple[str, int], list[tuple[int, ...]]] = defaultdict(list)
    at = 0
    while at < len(stream):
        name, index, epoch = stream[at]
        if name not in groups:
            at += 1
            continue
        group = home[name][index]
        run = stream[at : at + len(group)]
        assert {(each[0], each[2]) for each in run} == {(name, epoch)}, "a group is torn apart"
        found = [each[1] for each in run]
        assert sorted(found) == sorted(group)
        assert name in shuffled or found == list(group)
        seen[name, epoch].append(group)
        at += len(group)
    assert len(set(stream)) == len(stream)
    for (name, epoch), given_groups in seen.items():
        assert len(set(given_groups)) == len(given_groups)
        if (name, epoch + 1) in seen:  # a whole pass
            assert set(given_groups) == set(home[name].values())
    return [name for name, _, _ in stream]


SHUFFLES = st.sampled_from(["none", "global", "block", "{kind: block, block: 8, window: 2}"])


@given(SHUFFLES, st.sampled_from(["stored", "shuffled"]), st.integers(1, 400), st.integers(0, 99), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_groups_of_any_size_of_one_source(kind: str, within: str, samples: int, seed: int, ordered: bool) -> None:
    order = "curriculum: {by: score, window: 12}" if ordered else f"shuffle: {kind}"
    text = f"""
seed: {seed}
samples: {samples + 3}
source: {{path: c, subset: [11, 137], groups: {{by: group, within: {within}}}, {order}}}
"""
    plan = planned(text)
    groups = groups_by_column(11, 138)  # both bounds move down to the first of a group
    assert groups[0] == [11, 12, 13] and groups[-1] == [134, 135, 136, 137]
    groups = groups[:-1]
    check_stream(plan, {"c": groups}, ["c"] if within == "shuffled" else [])
    assert plan.length is not None and samples + 3 - 4 < plan.length <= samples + 3
    if kind == "none" and not ordered and within == "stored":
        wanted = [index for group in groups for index in group]
        assert plan.locate(np.arange(plan.length)).index.tolist() == [
            wanted[position % len(wanted)] for position in range(plan.length)
        ]


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_random_blends_keep_groups_whole_and_shares_within_one_run(data: st.DataObject) -> None:
    sizes = [data.draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(2)]
    weights = [data.draw(st.integers(0, 5)) for _ in range(3)]
    weights = weights if any(weights) else [1, 1, 1]
    run = int(np.lcm.reduce(sizes))
    samples = data.draw(st.integers(run, 700))
    shuffle, within = data.draw(SHUFFLES), data.draw(st.sampled_from(["stored", "shuffled"]))
    staged = data.draw(st.booleans())
    names = "abd"
    text = f"seed: {data.draw(st.integers(0, 99))}\nsamples: {samples}\nblend:\n"
    for number, name in enumerate(names):
        group = f", groups: {{size: {sizes[number]}, within: {within}}}" if number < 2 else ""
        weight = "" if staged else f", weight: {weights[number]}"
        text += f"  - {{path: {name}, shuffle: {shuffle}{group}{weight}}}\n"
    later = [weights, [3, 1, 2]]
    if staged:
        rows = [f"{{a: {a}, b: {b}, d: {d}}}" for a, b, d in later]
        text += f"stages:\n  - {{samples: {10 * run}, weights: {rows[0]}}}\n  - {{weights: {rows[1]}}}\n"
    plan = planned(text)
    groups = {name: groups_of_size(size, 0, SIZES[name]) for name, size in zip(names, sizes, strict=False)}
    source = check_stream(plan, groups, "ab" if within == "shuffled" else "")
    assert samples - run < len(source) <= samples
    counts: Counter[str] = Counter()
    due = [Fraction(0)] * 3
    for position, name in enumerate(source):
        counts[name] += 1
        row = later[1] if staged and position >= 10 * run else weights
        due = [each + Fraction(weight, sum(row)) for each, weight in zip(due, row, strict=True)]
        bound = run * (2 if staged and position >= 10 * run else 1)
        assert all(abs(counts[each] - exact) < bound for each, exact in zip(names, due, strict=True))


def test_ends_subsets_and_epochs_are_rounded_to_whole_groups_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "feedmill"):
        plan = planned("{epochs: 1.3, source: {path: a, subset: [5, 70%], groups: 8}}")
    assert "a: the subset [5, 67) is [0, 64), which is whole groups" in caplog.text
    assert "83 samples are 80, which are whole groups (groups of 8, shuffle block 256 x 16)" in caplog.text
    assert "a: 96 samples, subset [0, 64), groups of 8, shuffle block 256 x 16, first 80" in str(plan)
    assert "12 groups by" not in str(plan) and "60 groups by group" in str(
        planned("{source: {path: c, groups: group}}")
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "feedmill"):
        assert planned("{epochs: 2, source: {path: a, groups: 8}}").length == 192
        assert len(planned("{blend: [{path: a, groups: 8, max_repeats: 2}, {path: d}]}")) % 8 == 0
    assert not caplog.text
    halves = ("[0%, 55%]", "[55%, 100%]")
    train, rest = (planned(f"{{epochs: 1, source: {{path: c, subset: {half}, groups: group}}}}") for half in halves)
    indices = [set(plan.locate(np.arange(len(plan))).index.tolist()) for plan in (train, rest)]
    assert not indices[0] & indices[1] and indices[0] | indices[1] == set(range(150))


GRPO = """
seed: 4
samples: 960
blend:
  - {path: a, groups: 4, weight: 2}
  - {path: b, groups: {size: 8, within: shuffled}, weight: 1}
  - {path: d, weight: 1}
"""


def batches(
    plan: Plan, size: int, world: int, steps: int, start: int = 0, **options: Any
) -> list[list[list[tuple[str, int]]]]:
    """The source and number of each sample that each rank gets in each step."""
    loaders = [
        iter(Loader(plan, size, rank=rank, world_size=world, start=start, output="samples", **options))
        for rank in range(world)
    ]
    out = []
    for _ in range(steps):
        step = []
        for loader in loaders:
            keys = [tuple(sample.raw("txt").decode().split(":")) for sample in next(loader)]
            step.append([(name, int(index)) for name, index in keys])
        out.append(step)
    return out


@pytest.mark.parametrize(("size", "world"), [(8, 1), (8, 3), (16, 2), (24, 4), (40, 2)])
@pytest.mark.parametrize("options", [{}, {"balance": {"by": "tokens"}}])
def test_each_rank_gets_whole_groups(size: int, world: int, options: dict[str, Any]) -> None:
    plan = planned(GRPO)
    located = plan.locate(np.arange(960))
    stream = [(plan.names[s], i) for s, i in zip(located.source.tolist(), located.index.tolist(), strict=True)]
    firsts = Counter[int]()
    for step, ranks in enumerate(batches(plan, size, world, 960 // (size * world), **options)):
        begin = step * size * world
        assert sorted(each for rank in ranks for each in rank) == sorted(stream[begin : begin + size * world])
        for number, rank in enumerate(ranks):
            for at in range(0, size, 8):
                run = rank[at : at + 8]
                place = next(
                    place for place in range(begin, begin + size * world, 8) if stream[place : place + 8] == run
                )
                firsts[(place - begin) // size == number] += 1
    assert world == 1 or firsts[False], "groups are dealt to all ranks"


def test_a_run_resumes_with_other_ranks_and_batches() -> None:
    plan = planned(GRPO)
    located = plan.locate(np.arange(960))
    stream = [(plan.names[s], i) for s, i in zip(located.source.tolist(), located.index.tolist(), strict=True)]
    loader = Loader(plan, 8, rank=1, world_size=3, output="samples")
    list(itertools.islice(iter(loader), 5))
    state = json.loads(json.dumps(loader.state_dict()))
    for size, world in ((16, 1), (40, 2), (8, 6)):
        options: dict[str, Any] = {"world_size": world, "output": "samples", "remainder": "drop"}
        resumed = [Loader(planned(GRPO), size, rank=rank, **options) for rank in range(world)]
        got = []
        for each in resumed:
            each.load_state_dict(state)
            got += [tuple(s.raw("txt").decode().split(":")) for s in next(iter(each))]
        assert sorted((name, int(i)) for name, i in got) == sorted(stream[120 : 120 + size * world])


def test_a_batch_that_would_cut_a_group_is_an_error_with_the_arithmetic() -> None:
    plan = planned(GRPO)
    with pytest.raises(ConfigError, match=r"12 = 1 x 8 \+ 4.*Use a batch size of 8 or 16, or 'deal: contiguous'"):
        Loader(plan, 12)
    with pytest.raises(ConfigError, match=r"position 4 is inside a group: groups come in runs of 8"):
        Loader(plan, 8, start=4)
    with pytest.raises(ConfigError, match="the last step would have 16 samples in groups of 8 for 4 ranks"):
        next(iter(Loader(planned(GRPO.replace("960", "944")), 8, world_size=4, rank=0)))
    with pytest.raises(
        ConfigError, match=r"the group at position 0 exceeds the budget: .* and the 7 after it cost \d+"
    ):
        next(iter(Loader(plan, {"tokens": 60})))
    with pytest.raises(ConfigError, match="max_samples 6 is less than the 8 samples of a group"):
        Loader(plan, {"tokens": 640, "max_samples": 6})
    with pytest.raises(ConfigError, match="position 4 is inside a group"):
        Loader(plan, {"tokens": 640}, start=4)
    with pytest.raises(ConfigError, match="12 = 1 x 8"):
        spread(plan, 2, 12)
    sliced = [Loader(plan, 4, rank=rank, world_size=2, deal="contiguous", output="samples") for rank in range(2)]
    both = [sample.raw("txt").decode() for loader in sliced for sample in next(iter(loader))]
    assert both == [sample.raw("txt").decode() for sample in plan.read(np.arange(8))]
    different = planned("{source: {path: c, groups: group}}")
    with pytest.raises(ConfigError, match="the groups of samples have different sizes"):
        Loader(different, 8)
    assert next(iter(Loader(different, 8, deal="contiguous")))


def test_homogeneous_batches_have_whole_groups() -> None:
    text = "{seed: 3, samples: 960, homogeneous: %d, blend: [{path: a, groups: 4, weight: 2}, {path: d, weight: 1}]}"
    plan = planned(text % 24)
    for ranks in batches(plan, 12, 2, 20):
        assert len({name for rank in ranks for name, _ in rank}) == 1
        for rank in ranks:
            if rank[0][0] == "a":
                assert all(
                    [i for _, i in rank[at : at + 4]] == list(range(rank[at][1], rank[at][1] + 4)) for at in (0, 4, 8)
                )
    with pytest.raises(ConfigError, match=r"a blend in runs of 6 samples would tear groups of 4 apart"):
        planned(text % 6)
    with pytest.raises(ConfigError, match="a batch of 8 samples would hold several sources"):
        Loader(planned(text % 12), 8)


def test_skipped_samples_are_whole_groups() -> None:
    text = "{seed: 3, source: {path: a, groups: 4, shuffle: global}, epochs: 2, skip: [%s]}"
    plan = planned(text % "[8, 16]")
    assert plan.length == 184
    whole = planned(text.replace(", skip: [%s]", ""))
    assert (
        plan.locate(np.arange(20)).index.tolist() == whole.locate(np.delete(np.arange(28), np.s_[8:16])).index.tolist()
    )
    assert next(iter(Loader(plan, 8)))
    with pytest.raises(ConfigError, match=r"removes the positions \[9, 10\).*Skip whole groups, here \[8, 12\)"):
        planned(text % "9")
    with pytest.raises(ConfigError, match=r"Skip whole groups, here \[8, 20\)"):
        planned(text % "[9, 17]")


def test_groups_resume_with_a_changed_mixture_and_with_data_that_grew() -> None:
    text = "{seed: 5, blend: [{path: a, groups: 4}, {path: b, groups: {by: four}}], stages: [%s]}"

    class Fours(Growing):
        def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
            return np.arange(len(self)) // 4

    def made(stages: str, **sizes: int) -> Plan:
        known = {**SIZES, **sizes}
        return Recipe.parse(text % stages).plan(lambda path, **_: Fours(Path(path).name, known[Path(path).name]))

    state = Loader(made("{weights: {a: 1, b: 2}}"), 4, start=80, output="samples").state_dict()
    changed = "{samples: 80, weights: {a: 1, b: 2}}, {weights: {a: 5, b: 1}}"
    loader = Loader(made(changed), 4, output="samples")
    loader.load_state_dict(state, allow_change=True)
    assert loader.position == 80
    with pytest.raises(ConfigError, match=r"position \d+ was sample"):
        Loader(made("{samples: 40, weights: {a: 1, b: 2}}, {weights: {a: 5, b: 1}}"), 4).load_state_dict(
            state, allow_change=True
        )
    grown = Loader(made("{weights: {a: 1, b: 2}}", a=100, b=60), 4, output="samples")
    with pytest.raises(ConfigError, match=r"a grew from 96 to 100.*allow_append=True"):
        grown.load_state_dict(state)
    grown.load_state_dict(state, allow_append=True)
    assert grown.position == 80
    both = Loader(made(changed, a=100, b=60), 4, output="samples")
    both.load_state_dict(state, allow_append=True, allow_change=True)
    with pytest.raises(ConfigError, match="101 samples are not whole groups of 4: the last one would have 1"):
        made("{weights: {a: 1, b: 2}}", a=101)


class Odd(Numbered):
    """A column whose groups cannot be kept."""

    columns: dict[str, Any] = {  # noqa: RUF012
        "apart": lambda n: n // 4 % 20,
        "half": lambda n: np.where(n < n.size * 0.6, 0, n),
        "one": lambda n: n * 0,
    }

    def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
        column = self.columns.get(by)
        values: np.ndarray | None = None if column is None else column(np.arange(len(self)))
        return values


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("{source: {path: a, groups: {by: x}}}", r"recipe:1: the index of .*a has no column 'x'"),
        ("{source: {path: a, groups: apart}}", r"recipe:1: .*sample 80 has the value of sample 0, with others.*Sort"),
        ("{source: {path: a, groups: half}}", r"a group by 'half' has 58 of 96 samples, those from sample 0 on"),
        ("{source: {path: a, groups: one}}", r"a group by 'one' has 96 of 96 samples"),
        (
            "{source: {path: a, groups: 7}}",
            r"recipe:1: 96 samples are not whole groups of 7: the last one",
        ),
        ("{source: {path: a, groups: {size: 4, by: x}}}", "give exactly one of 'size' or 'by'"),
        ("{source: {path: a, groups: {within: stored}}}", "give exactly one of 'size' or 'by'"),
        ("{source: {path: a, groups: 0}}", "input should be greater than or equal to 1"),
        ("{source: {path: a, groups: 4, shuffle: shards}}", "'groups' are shuffled as units"),
        ("{source: {blend: [{path: a}], groups: 4}}", "'groups' needs a dataset"),
        ("{concat: [{path: a, groups: 4}]}", r"recipe:1: this shuffle would undo .*groups of 4.*'shuffle: none'"),
        ("{blend_epochized: [{path: a, groups: 4}, {path: b}]}", "'blend_epochized' would tear the groups"),
        ("{samples: 3, source: {path: a, groups: 4}}", "3 samples are less than one group"),
        ("{samples: 3, blend: [{path: a, groups: 4}, {path: b, weight: 0}]}", "weight"),
        ("{pack: {seq_len: 16}, source: {path: a, groups: 4}}", "24 of 24 groups of .a. have more than the 16 tokens"),
        (
            "{blend: [{path: a, groups: 4}, {path: b}], stages: [{samples: 10, weights: {a: 1, b: 1}},"
            " {weights: {b: 1}}]}",
            r"recipe:1: .*(10|runs of 4)",
        ),
    ],
)
def test_what_cannot_be_grouped_is_named_with_its_line(recipe: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe.parse(recipe).plan(lambda path, **_: Odd(Path(path).name, SIZES[Path(path).name], tokens=10))


def test_groups_of_different_sizes_are_for_one_source_or_a_concatenation() -> None:
    with pytest.raises(ConfigError, match=r"recipe:1: groups of different sizes cannot .*60 groups by group"):
        planned("{blend: [{path: c, groups: group}, {path: a}]}")
    plan = planned("{shuffle: none, epochs: 2, concat: [{path: c, groups: group, shuffle: global}, {path: a}]}")
    check_stream(plan, {"c": groups_by_column(0, 150)})
    single = planned("{samples: 400, blend: [{path: c, groups: group}]}")
    check_stream(single, {"c": groups_by_column(0, 150)})


def test_concat_packing_keeps_the_order_of_groups() -> None:
    plan = planned("{pack: {seq_len: 64, method: concat}, epochs: 1, source: {path: a, groups: 4}}")
    assert plan.length


def test_texts_are_groups_in_stored_data(tmp_path: Path) -> None:
    lines = [{"prompt": f"p{n // 3}", "n": n} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "r.yaml").write_text("{seed: 2, epochs: 2, source: {path: a.jsonl, groups: prompt, shuffle: global}}")
    plan = fm.Recipe.load(tmp_path / "r.yaml").plan()
    check_stream(plan, {"a": groups_of_size(3, 0, 30)})
    assert plan.node.first_group == 3  # they happen to have one size
    assert "10 groups by prompt, shuffle global" in str(plan)


def test_a_table_of_an_epoch_is_the_same_for_any_chunks() -> None:
    node = Groups.made(Leaf(0, 150), 3, ["global"], None, "group", "shuffled", [Numbered("c", 150)])
    epochs = [node.inward(np.arange(150), epoch)[0] for epoch in range(9)]
    assert len({tuple(each.tolist()) for each in epochs}) == 9
    rng = np.random.default_rng(0)
    for _ in range(20):
        positions, epoch = rng.integers(0, 150, 40), rng.integers(0, 9, 40)
        moved = node.inward(positions, epoch)[0]
        assert moved.tolist() == [epochs[e][p] for p, e in zip(positions, epoch, strict=True)]
        assert node.outward(moved, epoch)[0].tolist() == positions.tolist()


@pytest.mark.parametrize(("samples", "size", "world"), [(952, 16, 4), (948, 16, 2), (944, 24, 2), (930, 24, 2)])
def test_the_last_samples_are_shared_in_whole_groups(samples: int, size: int, world: int) -> None:
    plan = planned(GRPO.replace("960", str(samples)))
    total = plan.length or 0
    located = plan.locate(np.arange(total))
    stream = [(plan.names[s], i) for s, i in zip(located.source.tolist(), located.index.tolist(), strict=True)]
    got = []
    for rank in range(world):
        loader = Loader(plan, size, rank=rank, world_size=world, output="samples", remainder="ragged")
        *_, last = loader
        keys = [tuple(sample.raw("txt").decode().split(":")) for sample in last]
        got.append([(name, int(index)) for name, index in keys])
    left = total % (size * world)
    assert left and sorted(each for keys in got for each in keys) == sorted(stream[total - left :])
    for keys in got:
        for at in range(0, len(keys), 8):
            run = keys[at : at + 8]
            assert any(stream[place : place + len(run)] == run for place in range(total - left, total, 8))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("most", [None, 21])
@pytest.mark.parametrize("samples", [960, 947])
def test_batches_by_budget_have_whole_groups(world: int, most: int | None, samples: int) -> None:
    """Against batches that are filled group by group."""
    plan = planned(GRPO.replace("960", str(samples)))
    total = plan.length or 0
    located = plan.locate(np.arange(total))
    stream = [(plan.names[s], i) for s, i in zip(located.source.tolist(), located.index.tolist(), strict=True)]
    cost = [10 + index % 7 for _, index in stream]
    runs = [list(range(begin, min(begin + 8, total))) for begin in range(0, total, 8)]
    expected: list[list[int]] = [[]]
    for run in runs:
        filled = sum(cost[at] for at in expected[-1]) + sum(cost[at] for at in run)
        if filled > 400 * world or (most is not None and len(expected[-1]) + len(run) > most // 8 * 8 * world):
            expected.append([])
        expected[-1] += run
    budget = {"tokens": 400, **({} if most is None else {"max_samples": most})}
    loaders = [
        Loader(plan, budget, rank=rank, world_size=world, output="samples", remainder="drop") for rank in range(world)
    ]
    steps = list(zip(*loaders, strict=True))
    assert len(expected) - 1 <= len(steps) <= len(expected)
    for step, positions in zip(steps, expected, strict=False):
        got = [[(s.raw("txt").decode().split(":")[0], int(s.key)) for s in rank] for rank in step]
        assert sorted(each for rank in got for each in rank) == sorted(stream[at] for at in positions)
        for rank in got:
            for at in range(0, len(rank), 8):
                run = rank[at : at + 8]
                assert any(stream[begin : begin + len(run)] == run for begin in positions[::8])
    resumed = Loader(planned(GRPO.replace("960", str(samples))), budget, start=len(expected[0]), output="samples")
    assert next(iter(resumed))
