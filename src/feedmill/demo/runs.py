"""Start, kill and compare runs of the small training program.

Rows of tokens as loaded by a run: a hash per position, independent of the layout of the run.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash

from feedmill.demo.train import newest_state
from feedmill.errors import FeedmillError
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.samples.targets import with_targets

_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a run: processes, threads per process, and samples per process and step."""

    ranks: int
    workers: int
    batch_size: int

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks} x {self.workers} worker{'' if self.workers == 1 else 's'} x batch {self.batch_size}"


Stream = dict[int, tuple[str, str]]
"""Position -> (key, digest of the sample in the step)."""


def run(
    layout: Layout, recipe: Path, out: Path, *, until: int, kill_at: int | None = None, resume: Path | None = None
) -> float:
    """Run all ranks up to position `until`; kill every one with SIGKILL when all have passed `kill_at`.

    They begin at the newest state in the folder `resume`, or at position 0 without one.

    Returns:
        Wall time in seconds.

    Raises:
        FeedmillError: a rank failed; the message is its own.
    """
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    ranks = [_start(layout, rank, recipe, out, until, resume) for rank in range(layout.ranks)]
    try:
        if kill_at is None:
            for process in ranks:
                _wait(process)
        else:
            _wait_for(ranks, out, kill_at)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    if kill_at is not None and any(process.returncode != -signal.SIGKILL for process in ranks):
        raise FeedmillError("a rank had ended before it could be killed", kind="demo", fix="Give more --samples.")
    return time.monotonic() - begun


def _start(
    layout: Layout, rank: int, recipe: Path, out: Path, until: int, resume: Path | None
) -> subprocess.Popen[str]:
    options: dict[str, object] = {
        "recipe": recipe,
        "out": out,
        "until": until,
        "batch-size": layout.batch_size,
        "rank": rank,
        "world-size": layout.ranks,
        "workers": layout.workers,
    }
    if resume is not None:
        options["resume"] = resume
    command = [sys.executable, "-m", "feedmill.demo.train"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        _, message = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise FeedmillError(f"a training process took more than {_PATIENCE:.0f} s", kind="demo") from None
    if process.returncode:
        _failed(process.returncode, message)


def _wait_for(ranks: Sequence[subprocess.Popen[str]], out: Path, position: int) -> None:
    """Until every rank has logged a step at or beyond `position`."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        for process in ranks:
            if process.poll():
                _failed(process.returncode, process.communicate()[1])
        reached = [max(_read(out / f"rank-{rank}.jsonl"), default=-1) for rank in range(len(ranks))]
        if min(reached) >= position:
            return
        if time.monotonic() > deadline:
            raise FeedmillError(f"the training processes did not reach position {position}", kind="demo")
        time.sleep(0.01)


def _failed(status: int, message: str) -> None:
    last = message.strip().splitlines()[-1:] or ["no message"]
    what = last[0].removeprefix("error: ")
    raise FeedmillError(f"a training process ended with status {status}: {what}", kind="demo")


def stream(out: Path, before: int) -> Stream:
    """Return what all ranks of the run in `out` gave to their steps at positions below `before`, in order.

    Raises:
        FeedmillError: a position was given twice.
    """
    found: Stream = {}
    for log in sorted(out.glob("rank-*.jsonl")):
        mine = _read(log)
        twice = mine.keys() & found.keys()
        if twice:
            raise FeedmillError(f"position {min(twice)} was given to two ranks", file=str(log), kind="demo")
        found.update(mine)
    return {position: found[position] for position in sorted(found) if position < before}


def saved_position(out: Path) -> int:
    """Position of the newest state that is whole, 0 if there is none."""
    state = newest_state(out)
    return 0 if state is None else int(state["position"])


def difference(wanted: Stream, found: Stream) -> str | None:
    """Return the first position at which two streams differ, in words; None if they are identical."""
    for position in sorted(wanted.keys() | found.keys()):
        left, right = wanted.get(position), found.get(position)
        if left != right:
            return f"position {position}: {_word(left)} in the undisturbed run, {_word(right)} in the resumed one"
    return None


def _word(entry: tuple[str, str] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]} with hash {entry[1]}"


def _read(log: Path) -> Stream:
    """Return a rank's log; the last line may be truncated by the kill and is then left out."""
    found: Stream = {}
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    for line in lines:
        entry = orjson.loads(line)
        found.update(enumerate(zip(entry["keys"], entry["digests"], strict=True), entry["position"]))
    return found


def load_rows(
    plan: Plan, *, until: int, batch_size: int, world_size: int = 1, state: dict[str, Any] | None = None
) -> tuple[dict[int, str], dict[str, Any]]:
    """Load every rank's batches from the state, or from position 0, to `until` or just beyond.

    Returns:
        Position -> hash of inputs and targets, and the state after the last step.
    """
    found: dict[int, str] = {}
    after: dict[str, Any] = {}
    for rank in range(world_size):
        with contextlib.closing(
            Loader(plan, batch_size, rank=rank, world_size=world_size, collate=with_targets, deal="contiguous")
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            while loader.position < until:
                first = loader.position + rank * batch_size
                batch = next(batches)
                rows = zip(batch["inputs"], batch["targets"], strict=True)
                found |= {
                    first + row: xxhash.xxh3_64_hexdigest(x.tobytes() + y.tobytes()) for row, (x, y) in enumerate(rows)
                }
            after = loader.state_dict()
    return found, after
