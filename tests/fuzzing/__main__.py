"""Deal inputs to forked workers, and say what they found: ``PYTHONPATH=tests python -m fuzzing --inputs 50000``."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
BATCH = 200
WALL = 120
"""Seconds without a word from a worker; its own bound is 5 s of the processor, which a busy machine does not change."""


class Finding(NamedTuple):
    """What is wrong, and with which input."""

    number: int
    reader: str
    what: str


def main() -> int:
    options = _options()
    scratch = Path(tempfile.mkdtemp(prefix="feedmill-fuzz-"))
    os.environ["FUZZ_SCRATCH"] = str(scratch)
    os.environ["FEEDMILL_CACHE_DIR"] = str(scratch / "cache")
    try:
        return _fuzz(options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one reader")
    parser.add_argument("--replay", type=int, help="one input, with its traceback; its files are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--list", action="store_true", help="list the readers")
    return parser.parse_args()


def _fuzz(options: argparse.Namespace, scratch: Path) -> int:
    from fuzzing import readers, worker

    if options.list:
        print("\n".join(reader.name for reader in readers.READERS))
        return 0
    seeds = readers.make_seeds(scratch, options.only)
    if options.replay is not None:
        return _replay(options, seeds)
    _warm(seeds, options, scratch)
    gc.collect()
    gc.freeze()  # what is loaded is not looked through again and again by those forked
    numbers = list(range(options.first, options.first + options.inputs))
    batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
    counts, findings = _run(batches, options, seeds, scratch, worker.run)
    for finding in sorted(findings):
        print(f"FOUND {finding.reader} --replay {finding.number}: {finding.what}")
    print(f"{sum(counts.values()):,} inputs, {len(findings)} findings")
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    unread = [name for name in seeds if options.only in (None, name) and not counts[name]]
    if unread:  # a bar that a busy machine lowers says nothing about these
        print(f"WITHOUT INPUT {', '.join(unread)}: give it more --seconds or --inputs")
    return 1 if findings or unread else 0


def _replay(options: argparse.Namespace, seeds: Any) -> int:
    from fuzzing import worker

    folder = Path(tempfile.mkdtemp(prefix=f"input-{options.replay}-"))
    reader, name, rng = worker.make(options.replay, options.seed, seeds, options.only, folder)
    print(f"{reader.name}: {folder}, of which {name} was damaged", flush=True)
    os.environ["FEEDMILL_DEBUG"] = "1"
    os.chdir(folder)
    from feedmill.errors import FeedmillError

    try:
        reader.run(folder, rng)
    except FeedmillError as error:
        print(f"refused: {error}")
    return 0


def _warm(seeds: Any, options: argparse.Namespace, scratch: Path) -> None:
    """Read every valid input once, and by every command line, in this process, so that those forked have all code
    loaded and compiled. None may be refused."""
    from fuzzing.readers import READERS

    for reader in READERS:
        forms = seeds.get(reader.name, ())
        for number in range(max(len(forms), getattr(reader.run, "ways", 1)) if forms else 0):
            files = forms[number % len(forms)]
            folder = scratch / f"{reader.name}-{number}"  # at a path of its own: files that were read may stay open
            for path, data in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            os.chdir(folder)
            try:
                reader.run(folder, _Turn(number))
            finally:
                os.chdir("/")
                shutil.rmtree(folder)


class _Turn(random.Random):
    """Chooses one after another where others choose by chance."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def choice(self, seq: Any) -> Any:
        return seq[self.number % len(seq)]


class _Worker:
    """A forked process and the rest of its batch."""

    def __init__(self, batch: list[int], options: argparse.Namespace, seeds: Any, scratch: Path, run: Any) -> None:
        self.batch, self.current, self.heard = batch, None, time.monotonic()  # type: ignore[var-annotated]
        self.rest = b""
        self.root = tempfile.mkdtemp(dir=scratch)
        self.read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.read)
            status = 1
            try:
                run(batch, options.seed, seeds, options.only, self.root, write)
                status = 0
            finally:
                os._exit(status)
        os.close(write)

    def lines(self) -> list[dict[str, Any]] | None:
        """What it said since; None at its end."""
        data = os.read(self.read, 1 << 16)
        if not data:
            return None
        self.heard = time.monotonic()
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def end(self) -> str | None:
        """Wait for its end: why it ended before its batch did."""
        os.close(self.read)
        _, status = os.waitpid(self.pid, 0)
        shutil.rmtree(self.root, ignore_errors=True)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "took more than 5 s" if number == signal.SIGXCPU else f"ended by {signal.Signals(number).name}"
        return f"ended with status {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else None


def _run(
    batches: list[list[int]], options: argparse.Namespace, seeds: Any, scratch: Path, run: Any
) -> tuple[Counter[str], list[Finding]]:
    from fuzzing.worker import choice

    counts: Counter[str] = Counter()
    findings: list[Finding] = []
    running: dict[int, _Worker] = {}
    stop = time.monotonic() + options.seconds

    def found(number: int, what: str) -> None:
        reader = choice(number, options.seed, seeds, options.only)[0].name
        findings.append(Finding(number, reader, what))
        print(f"FOUND {reader} --replay {number}: {what}", file=sys.stderr, flush=True)

    batches = batches[::-1]
    while batches or running:
        while batches and len(running) < options.workers:
            new = _Worker(batches.pop(), options, seeds, scratch, run)
            running[new.read] = new
        for ready in wait(list(running), 1):
            one = running[ready]
            lines = one.lines()
            for line in lines or ():
                one.current = line.get("begin")
                if "end" in line:
                    counts[choice(line["end"], options.seed, seeds, options.only)[0].name] += 1
                    for what in line["found"]:
                        found(line["end"], what)
                    one.batch = one.batch[one.batch.index(line["end"]) + 1 :]
            if lines is None:
                del running[ready]
                why = one.end()
                if why is not None and one.batch:
                    found(one.batch[0], why)
                    counts[choice(one.batch[0], options.seed, seeds, options.only)[0].name] += 1
                    if one.batch[1:]:
                        batches.append(one.batch[1:])
        for one in list(running.values()):
            if time.monotonic() - one.heard > WALL:
                os.kill(one.pid, signal.SIGKILL)
        if time.monotonic() > stop:
            batches.clear()
            for one in running.values():
                os.kill(one.pid, signal.SIGKILL)
                one.batch = []
    return counts, findings


if __name__ == "__main__":
    sys.exit(main())
