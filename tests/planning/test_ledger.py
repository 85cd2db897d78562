"""The ledger: forwards it says what the loader gives, backwards it finds exactly that again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.loading.loader import Loader
from feedmill.planning import ledger
from feedmill.planning.dealing.rules import Dealing
from feedmill.planning.nodes import Located
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Numbered

INNER = """
seed: 5
epochs: 3
concat:
- {path: news, subset: ["10%", "90%"]}
- {path: books, epochs: 2}
shuffle: global
"""
OUTER = """
seed: 7
samples: 400_000
skip: [17, [1000, 1300], {source: web, keys: [5, 11], since: 2000}]
stages:
- {samples: 60_000, weights: {web: 0.5, inner: 0.3, mixed: 0.2}}
- {samples: 90_000, weights: {web: 0.2, inner: 0, mixed: 0.8}}
- {weights: {web: 0.6, inner: 0.3, mixed: 0.1}}
blend:
- {path: web, max_repeats: 900}
- {recipe: inner.yaml, name: inner}
- name: mixed
  blend:
  - {path: code, weight: 2, subset: [10, 90], shuffle: {kind: block, block: 8, window: 3}}
  - {path: maths, weight: 1, shuffle: none}
"""
SIZES = {"web": 400, "news": 150, "books": 60, "code": 120, "maths": 31}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("ledger")
    (folder / "inner.yaml").write_text(INNER)
    (folder / "outer.yaml").write_text(OUTER)
    return Recipe.load(folder / "outer.yaml").plan(opened)


def opened(path: str, **_: str) -> Numbered:
    name = Path(path).name
    return Numbered(name, SIZES[name])


def test_forwards_and_backwards_agree_for_a_hundred_thousand_positions(plan: Plan) -> None:
    rng = np.random.default_rng(3)
    positions = rng.integers(0, len(plan), 100_000)
    located = plan.locate(positions)
    back, epochs = plan.node.positions(located)
    assert np.array_equal(back, positions) and not epochs.any()
    for source in range(len(plan.sources)):
        for index in range(len(plan.sources[source])):
            asked = np.unique(positions[(located.source == source) & (located.index == index)])
            found = plan.positions(source, index)
            assert np.isin(asked, found).all()
            again = plan.locate(found)
            assert (again.source == source).all() and (again.index == index).all()
            assert len(np.unique(again.epoch)) == len(found)


def test_all_occurrences_of_all_samples_are_all_positions(plan: Plan) -> None:
    found = [
        occurrence.position
        for number, name in enumerate(plan.names)
        for index in range(len(plan.sources[number]))
        for occurrence in ledger.occurrences(plan, name, index, samples=20_000)
    ]
    assert sorted(found) == list(range(20_000))


def test_entries_found_by_their_key_lead_back(plan: Plan) -> None:
    positions = np.random.default_rng(4).integers(0, 50_000, 200)
    for position, entry in zip(positions.tolist(), ledger.entries(plan, positions), strict=True):
        assert entry.position == position and entry.file == "numbers" and entry.offset == entry.index * 8
        assert entry.key is not None
        assert (entry.source, entry.index) in ledger.find(plan, entry.key)
        seen = ledger.occurrences(plan, entry.source, entry.index, samples=50_000, global_batch=64)
        (here,) = [occurrence for occurrence in seen if occurrence.position == position]
        assert (here.unskipped, here.epoch, here.step) == (entry.unskipped, entry.epoch, position // 64)


def test_unskipped_positions_are_those_of_the_plan_without_its_list(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(INNER)
    plain = Recipe.parse(OUTER.replace("skip:", "# skip:"), base=tmp_path).plan(opened)
    entries = ledger.entries(plan, np.arange(900, 3000))
    same = plain.locate([entry.unskipped for entry in entries])
    assert [entry.index for entry in entries] == same.index.tolist()
    assert [plan.names.index(entry.source) for entry in entries] == same.source.tolist()


@given(
    st.integers(0, 200),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(0, 5),
    st.sampled_from(["uneven", "drop"]),
    st.integers(201, 230),
)
@settings(max_examples=examples(12), deadline=None)
def test_a_step_is_what_the_loader_gives(
    start: int, batch_size: int, world_size: int, first_step: int, remainder: Any, length: int
) -> None:
    plan = Recipe.parse(f"source: {{path: web}}\nsamples: {length}").plan(opened)
    total = batch_size * world_size
    for rank in range(world_size):
        loader = Loader(plan, batch_size, rank=rank, world_size=world_size, remainder=remainder, output="samples")
        loader.load_state_dict({**loader.state_dict(), "position": start})
        common = {"start": start, "first_step": first_step, "remainder": remainder}
        if remainder == "uneven" and 0 < (length - start) % total < world_size:
            with pytest.raises(ConfigError, match="would end before"):
                iter(loader)
            return
        for number, samples in enumerate(loader, first_step):
            step = ledger.batch(plan, number, total, rank=rank, world_size=world_size, **common)
            entries = ledger.entries(plan, step.positions)
            assert [entry.key for entry in entries] == [sample.key for sample in samples]
            whole = ledger.batch(plan, number, total, **common)
            assert whole.first <= step.first <= step.stop <= whole.stop == step.end
        with pytest.raises(NotFound, match="there is no step"):
            ledger.batch(plan, first_step + -(-(length - start) // total), total, **common)


def test_steps_of_an_endless_plan_reach_far() -> None:
    plan = Recipe.parse("source: web").plan(opened)
    positions = ledger.batch(plan, 10**9, 4096, rank=3, world_size=8).positions
    assert len(positions) == 512 and positions.tolist() == ledger.ranks_of(plan, 10**9, 4096, 8)[3].tolist()
    assert 10**9 * 4096 <= positions[0] < positions[-1] < 10**9 * 4096 + 4096
    slices = ledger.batch(plan, 10**9, 4096, rank=3, world_size=8, dealing=Dealing("contiguous"))
    assert slices.first == 10**9 * 4096 + 3 * 512


def test_what_makes_no_sense_is_refused(plan: Plan) -> None:
    for options in ({"rank": 1}, {"rank": 8, "world_size": 8}, {"rank": 0, "world_size": 3}):
        with pytest.raises(ConfigError):
            ledger.batch(plan, 0, 64, **options)
    with pytest.raises(NotFound, match=r"with 64 samples a step the run has steps 5 to 6,004"):
        ledger.batch(plan, 4, 64, first_step=5, start=len(plan) - 64 * 6000)
    with pytest.raises(NotFound, match=r"no source has a sample with this key \(looked in web, inner/news, "):
        ledger.find(plan, "nobody")
    with pytest.raises(NotFound):
        ledger.find(plan, "399", "code")
    with pytest.raises(ConfigError, match="endless"):
        ledger.occurrences(Recipe.parse("source: web").plan(opened), "web", 3)


def test_a_sample_before_the_start_has_no_step(plan: Plan) -> None:
    seen = ledger.occurrences(plan, "web", 3, samples=5000, global_batch=10, start=2000, first_step=7)
    for occurrence in seen:
        before = occurrence.position < 2000
        assert occurrence.step == (None if before else 7 + (occurrence.position - 2000) // 10)
    assert {occurrence.step is None for occurrence in seen} == {True, False}


class Damaged(Numbered):
    """Sample 3 cannot be read."""

    def read_raw(self, indices):  # type: ignore[no-untyped-def]
        if 3 in list(indices):
            raise DataError("cut short", file="numbers")
        return super().read_raw(indices)

    def locate(self, index):  # type: ignore[no-untyped-def]
        self.read_raw([index])
        return super().locate(index)


def test_the_ledger_answers_for_damaged_data_too() -> None:
    plan = Plan.over(Damaged("web", 6), shuffle="none", epochs=1)
    entries = ledger.entries(plan, np.arange(6))
    assert [entry.key for entry in entries] == ["0", "1", "2", None, "4", "5"]
    assert entries[3].as_dict()["problem"] == "numbers: cut short" and "problem" not in entries[4].as_dict()


def test_located_arrays_of_no_positions() -> None:
    plan = Plan.over(Numbered("web", 6), epochs=1)
    assert ledger.entries(plan, []) == []
    none = np.zeros(0, np.int64)
    assert len(plan.node.positions(Located(none.astype(np.int32), none, none))[0]) == 0


def test_a_run_begins_inside_its_plan_and_steps_end_with_64_bits() -> None:
    ends, endless = Plan.over(Numbered("a", 10), epochs=1), Plan.over(Numbered("a", 10))
    for plan, start in ((ends, 11), (ends, 30), (ends, -3), (endless, -1)):
        with pytest.raises(ConfigError, match=f"a run cannot begin at position {start}"):
            ledger.batch(plan, 0, 4, start=start)
    with pytest.raises(NotFound, match="there is no step"):
        ledger.batch(ends, 0, 4, start=10)
    last = (2**63 - 1) // 4 - 1
    assert len(ledger.entries(endless, np.arange(*ledger.batch(endless, last, 4)[:2]))) == 4
    with pytest.raises(NotFound, match="there is no step"):
        ledger.batch(endless, last + 1, 4)
