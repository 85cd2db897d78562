"""A writer, three readers and a trainer of rollouts, killed again and again: nothing is lost, doubled or in half."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from feedmill.formats.rollouts.commits import Rollouts
from feedmill.loading.rollouts import RolloutLoader
from helpers.rollout_processes import GROUPS, ROLES, SIZE, STEP, digest, names, recipe, rows


def lines(path: Path) -> list:
    """The lines of a log; one that its process was killed in has no end."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_nothing_is_lost_doubled_or_seen_in_half(tmp_path, kills):
    words = [sys.executable, "-m", "helpers.rollout_processes", str(tmp_path), str(kills), str(kills)]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(ROLES, kills)

    rollouts = Rollouts(tmp_path / "r")
    commits = rollouts.refresh()
    assert commits == json.loads((tmp_path / "final").read_text())
    groups = [name for commit in range(commits) for name in names(commit)]
    assert rollouts.names(range(len(rollouts))) == groups
    assert not [*rollouts.verify()]

    for reader in ROLES[1:4]:
        seen = lines(tmp_path / f"{reader}.log")
        for number, of, tokens in seen:
            expected = [row for row in rows(number // GROUPS) if row["group"] == groups[number]]
            assert of == [groups[number]] * SIZE and tokens == [row["token_ids"] for row in expected]
        assert {number for number, _, _ in seen} == set(range(len(groups)))

    steps: dict[int, tuple] = {}
    for step, drawn, hashed in lines(tmp_path / "trainer.log"):
        assert steps.setdefault(step, (drawn, hashed)) == (drawn, hashed)  # trained again after a kill: the same
    assert sorted(steps) == [*range(len(groups) // STEP)]
    drawn = [name for step in sorted(steps) for name in steps[step][0]]
    assert len(drawn) == len(steps) * STEP * SIZE and len(set(drawn)) == len(steps) * STEP  # whole, and once

    loader = RolloutLoader(recipe(tmp_path))
    past = random.Random(kills).choices(sorted(steps), k=100 if kills > 1 else 10)
    assert all(digest(loader.replay(step)) == steps[step][1] for step in past)
    assert not [*loader.steps.verify()]
    rollouts.append(rows(commits))
    assert not [name for name in os.listdir(tmp_path / "r/commits") if name.endswith(".feedmill-tmp")]
