"""A writer, three readers and a trainer of one folder of rollouts, each killed again and again at a random system call.

``python -m helpers.rollout_processes FOLDER KILLS SEED`` runs them, each a process of its own, until each was killed so
often and all have then come to the end; the logs of what they saw are files of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedmill.formats.rollouts import commits, numbered
from feedmill.formats.rollouts.commits import Rollouts
from feedmill.loading.rollouts import RolloutLoader

GROUPS, SIZE, STEP = 3, 2, 4
ROLES = ("writer", "reader0", "reader1", "reader2", "trainer")
CALLS = ("open", "mkdir", "link", "fsync", "unlink", "stat", "pread", "scandir")


def names(commit: int) -> list[str]:
    """The groups of a commit."""
    return [f"{commit}.{group}" for group in range(GROUPS)]


def rows(commit: int) -> list[dict[str, Any]]:
    """The answers of a commit: a function of its number."""
    return [
        {"group": name, "version": commit, "reward": answer, "token_ids": [commit, group, answer]}
        for group, name in enumerate(names(commit))
        for answer in range(SIZE)
    ]


def recipe(folder: Path) -> dict[str, Any]:
    return {"seed": 1, "rollouts": {"path": str(folder / "r"), "groups": STEP, "priority": "reward"}}


def digest(batch: dict[str, Any]) -> str:
    """A hash of all that a batch has."""
    facts = [batch["step"], batch["group"], batch["input_ids"].tolist(), batch["reward"].tolist()]
    return hashlib.sha256(json.dumps([*facts, batch["version"].tolist()]).encode()).hexdigest()


def put(path: Path, value: Any) -> None:
    """Write a small file as a whole."""
    path.with_suffix(".new").write_text(json.dumps(value))
    os.replace(path.with_suffix(".new"), path)


def write(folder: Path) -> None:
    acknowledged = folder / "acknowledged"
    rollouts = Rollouts(folder / "r")
    while not (folder / "stop").exists():
        number = json.loads(acknowledged.read_text()) if acknowledged.exists() else 0
        rollouts.append(rows(number), id=f"c{number}")
        put(acknowledged, number + 1)


def read(folder: Path, reader: str) -> None:
    rollouts, seen = Rollouts(folder / "r"), 0
    while True:
        ended = (folder / "final").exists()
        rollouts.refresh()
        groups = range(seen, len(rollouts))
        assert len(rollouts) == GROUPS * rollouts.commits
        with (folder / f"{reader}.log").open("a") as log:
            for number, table in zip(groups, rollouts.read(groups), strict=True):
                log.write(json.dumps([number, table["group"].to_pylist(), table["token_ids"].to_pylist()]) + "\n")
        seen = len(rollouts)
        if ended:
            return


def train(folder: Path) -> None:
    state, final = folder / "state", folder / "final"

    def ended(_: float = 0) -> None:
        if final.exists() and loader.step >= json.loads(final.read_text()) * GROUPS // STEP:
            raise SystemExit(0)

    loader = RolloutLoader(recipe(folder), sleep=ended)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    ended()
    for batch in loader:
        with (folder / "trainer.log").open("a") as log:
            log.write(json.dumps([batch["step"], batch["group"], digest(batch)]) + "\n")
        put(state, loader.state_dict())
        ended()


def _dying(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    return called


def start(folder: Path, role: str, calls: int | None) -> int:
    """Start a process that is killed at this number of calls; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if calls is not None:
            left = [calls]
            for name in CALLS:
                setattr(os, name, _dying(getattr(os, name), left))
        {"writer": write, "trainer": train}.get(role, lambda folder: read(folder, role))(folder)
        code = 0
    except SystemExit:
        code = 0
    except BaseException as error:
        print(role, repr(error), file=sys.stderr)
    os._exit(code)


def main(folder: Path, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    numbered.BLOCK = commits.BLOCK = 16  # so that facts are copied often
    killed = dict.fromkeys(ROLES, 0)
    running = {start(folder, role, dice.randrange(10, 250)): role for role in ROLES}
    while running:
        process, status = os.wait()
        role = running.pop(process)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            killed[role] += 1
            calls = dice.randrange(10, 250) if killed[role] < kills else None
            running[start(folder, role, calls)] = role
        elif os.waitstatus_to_exitcode(status):
            for other in running:
                os.kill(other, signal.SIGKILL)
            raise SystemExit(1)
        elif role == "writer":
            put(folder / "final", json.loads((folder / "acknowledged").read_text()))
        if min(killed.values()) == kills:
            (folder / "stop").touch()
    print(json.dumps(killed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
