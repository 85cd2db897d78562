"""Batches of one value of a field, counted by reading them."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.views import SelectedDataset
from helpers.number_dataset import Numbered

RECIPE = """
seed: 3
homogeneous: {by: tokens, samples: 12}
blend:
  - {path: docs, weight: 0.75}
  - {path: code, weight: 0.25}
"""


def planned(text: str, **sizes: int) -> Plan:
    sizes = sizes or {"docs": 1000, "code": 311}
    return Recipe.parse(text).plan(lambda path, **_: Numbered(Path(path).name, sizes[Path(path).name], tokens=10))


def test_every_run_has_one_value_and_shares_are_within_one_run() -> None:
    plan = planned(RECIPE)
    value = lambda number: 10 + number % 7  # noqa: E731 - as the datasets of this test have it
    exact = {
        wanted: sum(
            Fraction(weight) * Fraction(sum(value(n) == wanted for n in range(size)), size)
            for weight, size in (("3/4", 1000), ("1/4", 311))
        )
        for wanted in range(10, 17)
    }
    given: Counter[int] = Counter()
    sources: Counter[tuple[str, int]] = Counter()
    runs = 2000
    read = plan.read(np.arange(runs * 12))
    for run in range(runs):
        samples = [sample.raw("txt").decode().split(":") for sample in read[12 * run : 12 * run + 12]]
        values = {value(int(number)) for _, number in samples}
        assert len(values) == 1
        given[values.pop()] += 1
        sources.update((name, value(int(number))) for name, number in samples)
        for wanted, share in exact.items():
            assert abs(given[wanted] - (run + 1) * share) < 1
    for wanted in range(10, 17):  # inside each value, the sources by their weights
        part = Fraction(3, 4) * Fraction(sum(value(n) == wanted for n in range(1000)), 1000)
        drawn = sources["docs", wanted] + sources["code", wanted]
        assert abs(sources["docs", wanted] - drawn * part / exact[wanted]) < 1
    assert len({tuple(sample.raw("txt").split(b":")) for sample in read[:1200]}) == 1200, "no sample twice in an epoch"


def test_ranks_resume_and_go_back_to_positions() -> None:
    plan = planned(RECIPE)
    dice = random.Random(2)
    position, state = 0, None
    for _ in range(6):
        batch, ranks = dice.choice([(1, 4), (2, 6), (3, 1), (4, 3), (6, 2), (12, 2)])
        if position % (batch if 12 % (batch * ranks) else batch * ranks):
            continue
        loaders = [Loader(plan, batch, rank=rank, world_size=ranks, output="samples") for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(3):
            parts = [[sample.raw("txt").decode() for sample in next(iterator)] for iterator in iterators]
            assert all(len({int(text.split(":")[1]) % 7 for text in part}) == 1 for part in parts)
            whole = np.arange(position, position + batch * ranks)
            assert Counter(chain.from_iterable(parts)) == Counter(each.raw("txt").decode() for each in plan.read(whole))
            position += batch * ranks
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    located = plan.locate(np.arange(500))
    back, _ = plan.node.positions(located)
    assert back.tolist() == list(range(500))
    assert plan.names[:2] == ["docs[tokens=10]", "docs[tokens=11]"] and len(plan.names) == 14


def test_it_is_the_same_in_every_process_and_changes_with_the_field(tmp_path: Path) -> None:
    rows = [{"text": f"{n}", "width": 256 << n % 3} for n in range(90)]
    file = tmp_path / "pictures.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "homogeneous": {"by": "width", "samples": 6},
        "samples": 90,
        "blend": [{"path": str(file), "subset": ["0%", "100%"]}],
    }
    plan = Recipe.parse(recipe).plan()
    read = plan.read(np.arange(90))
    assert sorted(int(json.loads(sample.raw("json"))["text"]) for sample in read) == list(range(90))
    for run in range(15):
        assert len({json.loads(sample.raw("json"))["width"] for sample in read[6 * run : 6 * run + 6]}) == 1
    again = pickle.loads(pickle.dumps(plan))
    assert again.fingerprint == plan.fingerprint == Recipe.parse(recipe).plan().fingerprint
    rows[0]["width"], rows[1]["width"] = rows[1]["width"], rows[0]["width"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Recipe.parse(recipe).plan().fingerprint != plan.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"homogeneous": {"by": "widht", "samples": 6}}, "has no numeric field 'widht'"),
        ({"homogeneous": {"by": "number", "samples": 6}}, "has 1,030 values of 'number', from 0 to 1,029"),
        ({"stages": [{"weights": {"a": 1}}], "blend": [{"path": "a.jsonl", "name": "a"}]}, "cannot be combined"),
        ({"blend": [{"blend": [{"path": "a.jsonl"}]}]}, "needs datasets as sources"),
        ({"blend": [{"path": "a.jsonl", "subset": ["10%", "10%"]}]}, "is empty"),
        ({"samples": 6}, "gets none of the 1 runs of 6 samples"),
    ],
)
def test_what_cannot_be_grouped(tmp_path: Path, change: dict, message: str) -> None:
    rows = ({"text": "", "number": n, "width": n % 2} for n in range(1030))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"homogeneous": {"by": "width", "samples": 6}, "blend": [{"path": "a.jsonl"}], **change}
    with pytest.raises(ConfigError, match=message):
        Recipe.parse(recipe, base=str(tmp_path)).plan()


def test_token_data_has_no_fields(tmp_path: Path) -> None:
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.storage import LocalStore

    with write_pbin(LocalStore(tmp_path), "a.pbin", 2) as out:
        out.add(np.arange(9, dtype=np.uint16), np.array([9]))
    with pytest.raises(ConfigError, match="is token data"):
        Recipe.parse({"homogeneous": {"by": "tokens", "samples": 2}, "blend": [{"path": f"{tmp_path}/a.pbin"}]}).plan()


def test_a_source_of_weight_zero_is_never_drawn() -> None:
    plan = planned(RECIPE.replace("0.25", "0"), docs=3, code=70)
    assert {plan.names[number].split("[")[0] for number in plan.locate(np.arange(600)).source} == {"docs"}


def test_a_selection_is_read_as_the_dataset_is(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"{n}", "n": n}) + "\n" for n in range(20)))
    whole = fm.open(str(file))
    assert isinstance(whole, JsonlDataset)
    part = SelectedDataset(whole, np.arange(3, 20, 4), "every fourth")
    assert len(part) == 5
    assert [sample["json"] for sample in part.read([4, 0])] == [sample["json"] for sample in whole.read([19, 3])]
    assert part.locate(1) == whole.locate(7)
    assert part.find(whole.read([11])[0].key) == 2
    with pytest.raises(NotFound):
        part.find(whole.read([12])[0].key)
    assert part.costs("n").tolist() == [3, 7, 11, 15, 19]
    facts = part.describe()
    assert facts["samples"] == 5 and facts["selection"] == "every fourth"
    assert facts["bytes"] == sum(part.locate(n).length for n in range(5))
    assert part.fingerprint() != SelectedDataset(whole, np.arange(3, 20, 4) - 1, "every fourth").fingerprint()
