"""Batches of rollouts: whole groups on each rank; the same groups after a resume, on any number of ranks."""

import json
from itertools import chain

import numpy as np
import pytest
import yaml

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from helpers.rollout_data import answers


@pytest.fixture
def recipe(tmp_path):
    rollouts = fm.loading.Rollouts(tmp_path / "rollouts")
    for version in range(6):
        groups = [f"{version}.{number}" for number in range(6)]
        rollouts.append(answers(*groups, version=version, size=2 + version % 2, messages=[{"role": "user"}]))
    path = tmp_path / "rl.yaml"
    path.write_text(yaml.safe_dump({"seed": 3, "rollouts": {"path": "rollouts", "groups": 6, "wait": 1}}))
    return path


def loader(recipe, **options):
    options = {"steps": 4, "sleep": lambda _: None, **options}
    return fm.loading.RolloutLoader(recipe, **options)


def rows(batch):
    """The answers of a batch without what fills up."""
    of = range(len(batch["reward"]))
    ids = [batch["input_ids"][row][batch["attention_mask"][row]].tolist() for row in of]
    return [(batch["group"][row], ids[row], batch["reward"][row], batch["version"][row]) for row in of]


def test_a_batch_has_the_columns_of_its_answers(recipe):
    batch = next(iter(loader(recipe, pad_id=9)))
    assert batch["step"] == batch["policy"] == 0 and batch["group_index"].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
    ]
    assert batch["input_ids"].shape == batch["loss_mask"].shape == batch["logprobs"].shape == (12, 4)
    assert [batch[name].dtype for name in ("input_ids", "loss_mask", "logprobs")] == [np.int64, np.bool_, np.float32]
    assert batch["input_ids"][0, 3] == 9 and not batch["attention_mask"][0, 3]
    assert batch["loss_mask"][1].tolist() == [False, False, True, True]
    assert batch["messages"] == [[{"role": "user"}]] * 12 and batch["reward"].tolist() == [0, 1] * 6


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_ranks_share_the_answers_of_a_step(recipe, world):
    """Whole groups where they divide; else equal parts of the answers."""
    whole = [rows(batch) for batch in loader(recipe)]
    ranks = [loader(recipe, rank=rank, world_size=world) for rank in range(world)]
    for step, batches in enumerate(zip(*ranks, strict=True)):
        assert [*chain(*map(rows, batches))] == whole[step]
        sizes = [len(batch["reward"]) for batch in batches]
        assert max(sizes) - min(sizes) <= 1
        if ranks[0].is_whole:
            assert not set(batches[0]["group"]) & set(batches[1]["group"])
    assert ranks[0].is_whole == (world in (2, 3))


def test_a_run_resumes_on_other_ranks(recipe):
    """What was drawn and not trained on is drawn again, whatever samplers have added since."""
    first = loader(recipe)
    seen = []
    state = {}
    for batch in first:
        seen.append(rows(batch))
        if batch["step"] == 1:
            state = json.loads(json.dumps(first.state_dict()))
    fm.loading.Rollouts(recipe.parent / "rollouts").append(answers("late"))
    again = [loader(recipe, rank=rank, world_size=3) for rank in range(3)]
    for each in again:
        each.load_state_dict(state)
    assert [[*chain(*map(rows, batches))] for batches in zip(*again, strict=True)] == seen[2:]
    assert rows(again[0].replay(0)) == seen[0][:4]
    with pytest.raises(NotFound, match="step 4 of 'main' was not drawn"):
        again[0].replay(4)


def test_steps_of_another_run_are_not_taken_for_this_one(recipe, caplog):
    """A second experiment over the same rollouts would train on what the first drew, in batches of its size."""
    first = loader(recipe)
    next(iter(first))
    state = first.state_dict()
    assert len(list(loader(recipe))) == 4, "the same settings draw the same groups"
    changed = yaml.safe_load(recipe.read_text())
    changed["rollouts"]["groups"] = 3
    recipe.write_text(yaml.safe_dump(changed))
    with pytest.raises(ConfigError, match="step 0 of 'main' was drawn with groups 6 instead of 3") as raised:
        next(iter(loader(recipe)))
    assert raised.value.kind == "plan-changed"
    again = loader(recipe, steps=5)
    again.load_state_dict(state)
    assert [len(set(batch["group"])) for batch in again] == [6, 6, 6, 3]
    assert caplog.text.count("step 1 of 'main' was drawn with groups 6 instead of 3") == 1
    changed["rollouts"]["run"] = "second"
    recipe.write_text(yaml.safe_dump(changed))
    assert len(set(next(iter(loader(recipe)))["group"])) == 3


def test_wrong_states_and_recipes_are_refused(recipe, tmp_path):
    for state, what in (({}, "not the state"), ({"feedmill_rollouts": 1, "run": "x", "step": 1}, "the run 'x'")):
        with pytest.raises(ConfigError, match=what):
            loader(recipe).load_state_dict(state)
    with pytest.raises(ConfigError, match="rank is 2 of 2"):
        loader(recipe, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="no 'rollouts'"):
        loader({"source": str(tmp_path)})
    with pytest.raises(ConfigError, match="rollouts have no plan"):
        fm.Loader(recipe, batch_size=2)


def test_steps_are_traced(recipe):
    """A step's groups, and a group's steps, by the recipe as it is."""
    drawn = [batch["group"] for batch in loader(recipe)]
    facts = fm.trace(recipe, step=2).facts
    assert [row["group"] for row in facts["groups"]] == list(dict.fromkeys(drawn[2]))
    assert facts["horizon"] == 6 and facts["left_out"] == {"drawn before": 12, "later in line": 18}
    assert [row["steps"] for row in fm.trace(recipe, key="3.1").facts["groups"]] == [[3]]
    with pytest.raises(NotFound, match="no group 'x'"):
        fm.trace(recipe, key="x")
    with pytest.raises(ConfigError, match="--rank has no effect"):
        fm.trace(recipe, step=1, rank=0)
