"""Rollouts: appended whole or not at all, by any number of writers, read while they grow; layouts of other tools."""

import errno
import os
import threading
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, StorageError
from feedmill.formats.rollouts import numbered
from feedmill.formats.rollouts.commits import Commit, Rollouts
from feedmill.formats.rollouts.layouts import Given, read_answers
from feedmill.storage import local, open_store
from helpers.rollout_data import answers


def seen(path) -> list[tuple[str, int]]:
    """Group and version of each group, after all of it was read and verified."""
    rollouts = Rollouts(path)
    rollouts.refresh()
    assert not [*rollouts.verify()]
    found = []
    for table, size in zip(rollouts.read(range(len(rollouts))), rollouts.sizes, strict=True):
        groups = set(table["group"].to_pylist())
        assert len(table) == size and len(groups) == 1
        found.append((groups.pop(), min(table["version"].to_pylist())))
    return found


def test_groups_come_back_as_they_were_appended(tmp_path):
    """Rows of a group side by side, however they came; mappings as they were; by any reader of Parquet."""
    rollouts = Rollouts(tmp_path / "r")
    first, second = answers("a", "b", messages=[{"role": "user", "content": "x"}])[:2], answers("b")
    first = [row | {"task": {"n": number}} for number, row in enumerate(first)]
    assert rollouts.append([first[0], second[0], first[1], second[1]]) == Commit(0, 2, 4, is_new=True)
    rollouts.append([row | {"group": 7, "extra": 1.5} for row in answers("x", size=3)], id="later")
    assert rollouts.about() == {"commits": 2, "groups": 3, "group_size": None, "versions": [0, 0]}
    tables = rollouts.read([2, 0])
    assert tables[0]["group"].to_pylist() == ["7"] * 3 and tables[0]["extra"].to_pylist() == [1.5] * 3
    assert [row["token_ids"] for row in first] == tables[1]["token_ids"].to_pylist()
    assert [orjson.loads(text) for text in tables[1]["task"].to_pylist()] == [{"n": 0}, {"n": 1}]
    assert rollouts.numbers("reward").tolist() == [0.5, 0.5, 1.0]
    assert rollouts.numbers("extra").tolist()[2] == 1.5 and rollouts.find("7") == [2]
    assert len(fm.open(tmp_path / "r")) == 7 == pq.read_table(tmp_path / "r/commits")["group"].length()
    assert fm.info(tmp_path / "r").facts["rollouts"]["groups"] == 3


PLAIN = {"token_ids": [0, 1, 2], "loss_mask": [False] * 3, "logprobs": [0.0] * 3}
WRONG = {
    "nothing to append": [],
    "has no 'reward'": [*answers("a")[:1], {"group": "a", "version": 0, "token_ids": [1]}],
    "expected a finite number": [row | {"reward": float("nan")} for row in answers("a")],
    "the version is -1": answers("a", version=-1),
    "the group is 1.5": [row | {"group": 1.5} for row in answers("a")],
    "neither 'token_ids' nor text": [{"group": "a", "version": 0, "reward": 1}],
    "1 values of 'logprobs', but 3": [row | {"logprobs": [0.0]} for row in answers("a")],
    "has no 'logprobs', which other": [answers("a")[0], answers("a")[1] | {"logprobs": None}],
    "'token_ids' has the value -1": [row | PLAIN | {"token_ids": [0, 1, -1]} for row in answers("a")],
    "'logprobs' has the value nan": [row | PLAIN | {"logprobs": [0, 1, float("nan")]} for row in answers("a")],
    "of type float64": [row | PLAIN | {"token_ids": [0, 1, 0.5]} for row in answers("a")],
    "values of different types": [answers("a")[0] | {"x": 1}, answers("a")[1] | {"x": "1"}],
    "the group 'old' of version 0 is in commit 0": answers("new", "old"),
    "the group 'a' has 3 answers, expected 2": answers("a", size=3),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_contradicts_itself_is_refused_whole(tmp_path, what):
    Rollouts(tmp_path).append(answers("old"), group_size=2)
    with pytest.raises(DataError) as error:
        Rollouts(tmp_path).append([*answers("fresh"), *WRONG[what]] if WRONG[what] else [])
    assert what in str(error.value) and error.value.kind == "bad-rollout" and error.value.fix
    assert seen(tmp_path) == [("old", 0)]


def test_an_id_is_committed_once(tmp_path):
    rollouts = Rollouts(tmp_path)
    assert rollouts.append(answers("a"), id="x", group_size=2).is_new
    assert not Rollouts(tmp_path).append(answers("a"), id="x").is_new
    with pytest.raises(ConfigError, match="which has other groups"):
        rollouts.append(answers("b"), id="x")
    with pytest.raises(ConfigError, match="the first commit declares 2"):
        rollouts.append(answers("b"), group_size=3)
    rollouts.append(answers("a", version=1), id="y")
    assert seen(tmp_path) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_writers_race_for_numbers(tmp_path, request, place):
    """No group is lost, doubled or in half; a reader sees whole commits only, and more and more of them."""
    path = str(tmp_path / "r") if place == "local" else request.getfixturevalue("s3_bucket") + "/r"
    writers, each = (4, 6) if place == "local" else (2, 2)
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            rollouts = Rollouts(path)
            for number in range(each):
                rollouts.append(answers(f"{writer}-{number}", f"{writer}-{number}b"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    reader, counts = Rollouts(path), [0]
    while counts[-1] < writers * each and not errors:
        counts.append(reader.refresh())
        assert len(reader) == 2 * reader.commits
    for thread in threads:
        thread.join()
    assert not errors and counts == sorted(counts)
    assert sorted(seen(path)) == sorted(
        (f"{w}-{n}{b}", 0) for w in range(writers) for n in range(each) for b in ("", "b")
    )


CALLS = ("open", "mkdir", "link", "fsync", "unlink", "stat")


def _killed_at(moment: int, path: Path) -> bool:
    """Append in a process that ends, without a word, at its n-th system call on files; whether it came so far."""
    child = os.fork()
    if not child:
        left = [moment]

        def dying(call):
            def called(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return call(*arguments, **options)

            return called

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            Rollouts(path).append(answers("a", "b"), id="once")
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_writer_is_killed_at_each_call(tmp_path, every):
    """Before or after: never a part. The same call again commits once, and removes what was left."""
    committed = set()
    for moment in range(0, 200, every):
        path = tmp_path / str(moment)
        Rollouts(path).append(answers("old"))
        killed = _killed_at(moment, path)
        rollouts = Rollouts(path)
        committed.add(rollouts.refresh())
        assert len(rollouts) == {1: 1, 2: 3}[rollouts.commits]
        local.sweep_again()
        rollouts.append(answers("a", "b"), id="once")
        rollouts.append(answers("c"))
        assert seen(path) == [("old", 0), ("a", 0), ("b", 0), ("c", 0)]
        assert sorted(os.listdir(path / "commits")) == [f"{number:08d}.parquet" for number in range(3)]
        if not killed:
            break
    assert not killed and moment > 10 and committed == {1, 2}


def test_a_lost_answer_is_no_second_commit(tmp_path, monkeypatch):
    """The name was written, and the connection broke: the commit is found by its id."""
    rollouts = Rollouts(tmp_path)
    put = rollouts.store.put_new

    def lost(path, data):
        put(path, data)
        raise StorageError("the connection was reset")

    monkeypatch.setattr(rollouts.store, "put_new", lost)
    rollouts.append(answers("a"))
    monkeypatch.undo()
    monkeypatch.setattr(rollouts.store, "put_new", lambda path, data: put(path, data) and False)
    rollouts.append(answers("b"))
    assert seen(tmp_path) == [("a", 0), ("b", 0)]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    rollouts = Rollouts(tmp_path)
    rollouts.append(answers("a"))

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(local, "sync", full)
    with pytest.raises(StorageError) as error:
        rollouts.append(answers("b"))
    monkeypatch.undo()
    assert error.value.kind == "enospc"
    assert os.listdir(tmp_path / "commits") == ["00000000.parquet"]
    rollouts.append(answers("b"))
    assert seen(tmp_path) == [("a", 0), ("b", 0)]


def test_damage_and_holes_are_named(tmp_path):
    rollouts = Rollouts(tmp_path)
    for name in "abc":
        rollouts.append(answers(name, text=name * 500))
    path = tmp_path / "commits/00000001.parquet"
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match=r"00000001\.parquet.*missing, but 00000002\.parquet is there"):
        Rollouts(tmp_path).refresh()
    found = 0
    for at in (*range(4, len(whole), 61), len(whole) - 9):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        try:
            errors = [*Rollouts(tmp_path).verify()]
            tables = Rollouts(tmp_path)
            tables.refresh()
            same = tables.read([1])[0].equals(rollouts.read([1])[0]) if not errors else True
        except FeedmillError as error:
            errors = [error]
            same = True
        assert errors or same, at  # what is read is what was written, or an error
        assert all("00000001.parquet" in str(error) for error in errors)
        found += bool(errors)
    assert found > 10
    path.write_bytes(whole)
    assert len(seen(tmp_path)) == 3


def test_facts_of_many_commits_are_read_from_their_copies(tmp_path, monkeypatch):
    """Made by whoever comes first; damaged ones are not believed; what differs from a commit is found."""
    monkeypatch.setattr(numbered, "BLOCK", 4)
    monkeypatch.setattr("feedmill.formats.rollouts.commits.BLOCK", 4)
    rollouts = Rollouts(tmp_path)
    for number in range(10):
        rollouts.append(answers(f"g{number}", version=number))
    copy = tmp_path / "commits/.facts/00000001.z"
    assert sorted(os.listdir(copy.parent)) == ["00000000.z", "00000001.z"]
    data = copy.read_bytes()
    other = (tmp_path / "commits/.facts/00000000.z").read_bytes()
    for wrong in (data[:-5], b"", None, other[:-1] + bytes([other[-1] ^ 1])):
        copy.unlink() if wrong is None else copy.write_bytes(wrong)
        again = Rollouts(tmp_path)
        assert again.refresh() == 10 and again.versions.tolist() == [*range(10)]
        assert copy.read_bytes() == data
    requests: list[str] = []
    again = Rollouts(tmp_path)
    monkeypatch.setattr(
        again._files, "_sealed", lambda store, path: requests.append(path) or rollouts._files._sealed(store, path)
    )
    again.refresh()
    assert requests == [f"commits/{number:08d}.parquet" for number in (8, 9, 10)]
    copy.write_bytes((tmp_path / "commits/.facts/00000000.z").read_bytes())
    assert [error.kind for error in Rollouts(tmp_path).verify()] == ["wrong-count"] * 4


def layout(tmp_path, name, rows, given=Given()):
    if name.endswith(".jsonl"):
        (tmp_path / name).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    return read_answers(open_store(tmp_path), name, given)


def test_verl_dumps_are_read(tmp_path):
    rows = [{"input": p, "output": o, "gts": "4", "score": s, "step": 3} for p, o, s in [("q", "4", 1), ("q", "5", 0)]]
    found = layout(tmp_path, "3.jsonl", rows)
    Rollouts(tmp_path / "r").append(found.rows, group_size=2)
    table = Rollouts(tmp_path / "r")
    table.refresh()
    row = table.read([0])[0].to_pylist()[0]
    assert (
        found.layout == "verl"
        and row.items() >= {"prompt": "q", "completion": "4", "gts": "4", "reward": 1.0, "version": 3}.items()
    )


def test_completions_of_trl_are_read(tmp_path):
    """With the rewards that are named, as nothing tells them from other columns that are logged."""
    rows = [
        {"step": 5, "prompt": "q", "completion": c, "right": r, "short": None, "seen": 0.25, "advantage": 0.1}
        for c, r in [("a", 1.0), ("b", 0.0)]
    ]
    with pytest.raises(ConfigError, match=r"'right', 'seen'.*--reward"):
        layout(tmp_path, "completions_00005.parquet", rows)
    found = layout(tmp_path, "completions_00005.parquet", rows, Given(rewards=("right", "short")))
    assert found.layout == "trl" and [row["reward"] for row in found.rows] == [1.0, 0.0]
    assert len({row["group"] for row in found.rows}) == 1 and found.rows[0]["version"] == 5
    fm.edit.append(tmp_path / "r", [tmp_path / "completions_00005.parquet"], reward=["right"])
    layout(tmp_path, "completions_00006.parquet", [row | {"step": 6} for row in rows], Given(rewards=("right",)))
    with pytest.raises(ConfigError, match="2 of groups that are there already"):
        fm.edit.append(tmp_path / "r", [tmp_path / "completions_00006.parquet"], reward=["right"])


def trace(**more):
    """A trace as verifiers 0.4.0 saves it: two paths that share their first message."""
    node = {"semantic_parents": [], "sampled": False, "logprobs": [], "is_content": []}
    said = [
        {**node, "message": {"role": "user", "content": "q"}, "token_ids": [1, 2], "mask": [False, False]},
        *(
            {**node, "parent": 0, "message": {"role": "assistant", "content": c}, "sampled": True}
            | {"token_ids": [3, n], "mask": [False, True], "logprobs": [-0.25]}
            for n, c in [(4, "a"), (5, "b")]
        ),
    ]
    task = {"type": "T", "data": {"idx": 0}, "key": "k", "hash": "h"}
    rewards = {"right": {"score": 1.0, "weight": 0.5}, "short": {"score": 2.0, "weight": 1.0}}
    own = {"version": 1, "id": "t", "task": task, "agent": {"trainable": True}, "nodes": said, "rewards": rewards}
    return {**own, "metrics": {"turns": 1.0}, "info": {}, "ok": True, **more}


def test_traces_of_verifiers_are_read(tmp_path):
    lines = [{"traces": [trace(), trace(ok=False)]}, {"traces": [trace(agent={"trainable": False}), trace(rewards={})]}]
    with pytest.raises(ConfigError, match="--policy"):
        layout(tmp_path, "traces.jsonl", lines)
    found = layout(tmp_path, "traces.jsonl", lines, Given(version=2))
    assert dict(found.left_out) == {
        "with an error": 1,
        "of an agent that is not trained": 1,
        "without a reward": 1,
    }
    assert [row["token_ids"] for row in found.rows] == [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert found.rows[0]["logprobs"] == [0, 0, 0, -0.25] and found.rows[0]["loss_mask"] == [False] * 3 + [True]
    assert {(row["group"], row["reward"], row["version"]) for row in found.rows} == {("k", 2.5, 2)}
    report = fm.edit.append(tmp_path / "r", [tmp_path / "traces.jsonl"], policy=2)
    assert report.samples == 2 and len(report.warnings) == 3
    assert fm.edit.append(tmp_path / "r", [tmp_path / "traces.jsonl"], policy=2).reused == 1
    assert seen(tmp_path / "r") == [("k", 2)]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"text": "x"}], "no layout of answers"),
        ([], "no answers"),
        ([{"traces": [{"ok": True}]}], "no trace of verifiers"),
    ],
)
def test_other_files_are_refused(tmp_path, rows, what):
    with pytest.raises(DataError, match=what):
        layout(tmp_path, "x.jsonl", rows)
