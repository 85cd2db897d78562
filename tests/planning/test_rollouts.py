"""What a step draws of rollouts: a function of what its record says; one record, whoever comes first."""

import threading
from pathlib import Path

import numpy as np
import orjson
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.rollouts.commits import Rollouts
from feedmill.formats.rollouts.numbered import seal
from feedmill.planning.rollouts import Settings, Steps, draw, runs_of
from helpers.rollout_data import answers


class Clock:
    """Time that passes when someone sleeps; then something may happen."""

    def __init__(self, happens=lambda: None):
        self.now, self.happens = 0.0, happens

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.happens()


def take(steps, step, settings, version=None, wait=5.0, clock=None):
    clock = clock or Clock()
    return steps.take(step, settings, step if version is None else version, wait, clock, clock.sleep)


def filled(path, versions=range(5), groups=4, **more) -> Rollouts:
    rollouts = Rollouts(path)
    for version in versions:
        rollouts.append(answers(*(f"{version}.{number}" for number in range(groups)), version=version, **more))
    return rollouts


def test_groups_are_drawn_oldest_first_within_their_age_and_reuse(tmp_path):
    rollouts = filled(tmp_path)
    none = np.zeros(20, np.int64)
    assert draw(rollouts, Settings(3), 0, 0, 20, none).groups.tolist() == [0, 1, 2]
    found = draw(rollouts, Settings(3, max_age=1), 0, 3, 20, none)
    assert found.groups.tolist() == [8, 9, 10]
    assert found.left_out == {"older than 1 versions": 8, "of a later version": 4, "later in line": 5}
    times = none.copy()
    times[[0, 2]] = 1
    assert draw(rollouts, Settings(3), 0, 0, 20, times).groups.tolist() == [1, 3, 4]
    found = draw(rollouts, Settings(19, reuse=2), 0, 0, 20, times)
    assert found.groups.tolist() == [1, *range(3, 20), 0] and found.left_out == {"later in line": 1}
    assert draw(rollouts, Settings(3), 0, 0, 2, none).groups.tolist() == [0, 1]  # no more was seen then


def test_priorities_are_weights_without_replacement(tmp_path):
    rollouts = Rollouts(tmp_path)
    weights = np.arange(8.0)
    rows = [row | {"advantage": weights[int(row["group"])]} for row in answers(*"01234567")]
    rollouts.append([row for row in rows if row["group"] != "1"] + answers("1"))
    none, settings = np.zeros(8, np.int64), Settings(1, by="advantage")
    found = [draw(rollouts, settings, step, 0, 8, none) for step in range(1000)]
    counts = np.bincount([int(each.groups[0]) for each in found], minlength=8)
    numbers = np.array([0.0 if name == "1" else weights[int(name)] for name in rollouts.names(range(8))])
    assert np.abs(counts - 1000 * numbers / numbers.sum()).max() < 4 * np.sqrt(1000 * 0.25)
    assert found[0].left_out == {"without a value of 'advantage'": 1, "of priority 0": 1, "later in line": 5}
    whole = draw(rollouts, Settings(8, by="advantage"), 0, 0, 8, none).groups.tolist()
    assert len(whole) == 6 == len(set(whole))
    again = draw(rollouts, Settings(3, by="advantage"), 0, 0, 8, none).groups.tolist()
    assert again == whole[:3] != draw(rollouts, Settings(3, by="advantage", seed=1), 0, 0, 8, none).groups.tolist()
    assert len(draw(rollouts, Settings(8, by="reward", of="spread"), 0, 0, 8, none).groups) == 8
    with pytest.raises(ConfigError, match=r"no group has the column 'x' \(columns of numbers: advantage, reward"):
        draw(rollouts, Settings(1, by="x"), 0, 0, 8, none)
    rollouts.append([row | {"advantage": -1.0} for row in answers("bad")])
    with pytest.raises(ConfigError, match=r"'advantage' is -1 for the group 'bad'"):
        draw(rollouts, settings, 0, 0, 9, np.zeros(9, np.int64))


def test_ranks_agree_on_one_record(tmp_path):
    """Eight at once, each with what it has seen by then: all get the same, and each group once."""
    filled(tmp_path)
    found: list[list[object]] = [[] for _ in range(8)]
    more = threading.Thread(target=filled, args=(tmp_path, range(5, 9)))

    def run(rank: int) -> None:
        steps = Steps(Rollouts(tmp_path), "r")
        found[rank] = [take(steps, step, Settings(3), wait=100.0).picks for step in range(6)]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(8)]
    for thread in (more, *threads):
        thread.start()
    for thread in (more, *threads):
        thread.join()
    assert all(picks == found[0] for picks in found)
    drawn = [tuple(pick) for picks in found[0] for pick in picks]
    assert len(drawn) == 18 == len(set(drawn))
    assert not [*Steps(Rollouts(tmp_path), "r").verify()]


def test_a_step_waits_for_groups_and_says_why_there_are_too_few(tmp_path):
    filled(tmp_path, range(2))
    steps = Steps(Rollouts(tmp_path), "r")
    settings = Settings(4, max_age=1)
    clock = Clock(lambda: filled(tmp_path, range(7, 8)) if clock.now > 2 and len(steps.rollouts) == 8 else None)
    assert take(steps, 0, settings, version=8, clock=clock).picks == [[2, number] for number in range(4)]
    with pytest.raises(ConfigError, match=r"needs 4 groups, 0 are there after 5 s \(left out of 12: 4 drawn before, 8"):
        take(steps, 1, settings, version=8)
    with pytest.raises(ConfigError, match="step 3 of 'r' cannot be drawn: step 1 was not drawn"):
        take(steps, 3, settings)
    assert runs_of(steps.store) == ["r"]


def test_a_step_is_the_same_for_ever(tmp_path):
    """Whatever is appended, and whatever the settings are by then; another run draws on its own."""
    steps = Steps(filled(tmp_path / "r"), "a")
    records = [take(steps, step, Settings(2, by="reward")) for step in range(4)]
    filled(tmp_path / "r", range(5, 7))
    again = Steps(Rollouts(tmp_path / "r"), "a")
    assert [take(again, step, Settings(3, seed=5)) for step in (2, 0, 3, 1)] == [records[n] for n in (2, 0, 3, 1)]
    later = take(again, 4, Settings(3, seed=5))
    assert not {tuple(p) for p in later.picks} & {tuple(p) for record in records for p in record.picks}
    assert take(Steps(Rollouts(tmp_path / "r"), "b"), 0, Settings(2, by="reward")).picks != []
    assert not [*again.verify()]


def test_check_draws_steps_again(tmp_path):
    steps = Steps(filled(tmp_path), "a")
    for step in range(3):
        take(steps, step, Settings(2))
    assert fm.check(tmp_path).findings == [] and "run 'a': 3 steps were drawn" in fm.check(tmp_path).notes
    path: Path = tmp_path / "steps/a/00000001.json"
    facts = orjson.loads(path.read_bytes())
    del facts["crc32"]
    path.write_bytes(seal({**facts, "picks": [[0, 2], [1, 1]]}))
    assert [error.kind for error in fm.check(tmp_path).findings] == ["changed", "changed"]  # step 2 depends on it
    path.write_bytes(path.read_bytes().replace(b"[0,2]", b"[0,1]"))
    assert [error.kind for error in fm.check(tmp_path).findings] == ["bad-data"]
    with pytest.raises(DataError, match="their checksum differs"):
        steps.find(1)
    path.unlink()
    assert [error.kind for error in fm.check(tmp_path).findings] == ["missing-shard"]
