"""The process that starts the tasks of an exact run holds nothing of a segment, and sends each task a few numbers."""

from __future__ import annotations

import pickle
import random
import subprocess
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.curation.dedupe import exact
from feedmill.curation.dedupe.segments import Scanned, cuts, totals
from feedmill.curation.dedupe.task import DedupeTask
from feedmill.curation.options import Dedupe
from feedmill.documents.find import find_in_datasets
from feedmill.storage import LocalStore
from helpers.document_folders import texts, write_documents
from helpers.kills import command

FILES = 4
KEYS = 30_000
"""Keys of a segment."""


def tables(work: Path, segments: int, names: list[str]) -> None:
    """The tables of files of that many segments; all but the totals are holes in the files."""
    parts = np.linspace(0, segments * KEYS, exact.PARTS + 1).astype(np.int64)
    for name in names:
        with open(work / f"{name}.parts", "wb") as f:
            f.seek(segments * parts.nbytes)
            f.write(parts.tobytes())


def driven(root: Path, segments: int, patch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Return the peak memory of the driver, the number of ranges, and the largest task sent, in bytes."""
    root.mkdir()
    write_documents(root, *[texts(3)] * FILES)
    work = root / "work"
    work.mkdir()
    sent = {"reading": [0], "comparing": [0], "writing": [0]}

    def run(function: Any, items: Iterable[Any], *, where: Any, policy: Any = None, **_: Any) -> list[Any]:
        results: list[Any] = []
        for item in items:
            size = len(pickle.dumps((item, policy and policy.shared)))
            sent[where.stage][0] = max(sent[where.stage][0], size)
            results.append(Scanned(3, "", segments, "") if where.stage == "reading" else None)
        return results if where.stage != "comparing" else [len(results)]

    patch.setattr(exact, "run", run)
    patch.setattr(exact, "run_cut", lambda function, items, sizes, **o: run(function, items, **o))
    options = Dedupe((), name="d", keep_empty=True).settled()
    files = find_in_datasets([f"{root}/documents"], [], "documents")
    tasks = [DedupeTask(n, file, options, str(work)) for n, file in enumerate(files)]
    names = [task.fingerprint for task in tasks]
    tables(work, segments, names)
    tracemalloc.start()
    exact.find_exact(tasks, LocalStore(work), progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bounds = exact._ranges([f"{work}/{name}" for name in names], exact.RANGE)
    return peak, len(bounds), max(max(sizes) for sizes in sent.values())


def test_memory_does_not_grow_with_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(tmp_path / "warm", 1, monkeypatch)  # imports
    few, _, small = driven(tmp_path / "few", 10, monkeypatch)
    many, ranges, large = driven(tmp_path / "many", 100_000 // FILES, monkeypatch)
    assert ranges > 700
    assert many < few + (256 << 10) < 2 << 20  # the bounds of more ranges, at most of all parts
    assert large < small + 8 * ranges < 40 << 10


PEAK = """import atexit
def peak():
    with open("/proc/self/status") as f:
        print(*(line.split()[1] for line in f if line.startswith("VmHWM:")))
atexit.register(peak)
"""
"""Program after which a process prints its peak of resident memory in KiB at its end."""


@pytest.mark.slow
@pytest.mark.parametrize("near", [False, True])
def test_a_process_keeps_within_the_least_budget(tmp_path: Path, near: bool) -> None:
    (tmp_path / "documents").mkdir()
    numbers = random.Random(1)
    pool = [" ".join(numbers.choices("abcdefghijklmnopqrstuvwxyz", k=14)) for _ in range(350_000)]
    with open(tmp_path / "documents/a.jsonl", "w") as f:
        f.writelines(f'{{"id":"{n}","text":"{numbers.choice(pool)}"}}\n' for n in range(400_000))
    words = command(
        "dedupe", "documents", *["--near"] * near, "--workers", "1", "--memory", "101MB", "--json", first=PEAK
    )
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert 40 << 20 < int(done.stdout.split()[-1]) << 10 <= 101 * 10**6


def test_the_tables_say_where_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.curation.dedupe.segments.SEGMENT", 1)
    monkeypatch.setattr("feedmill.formats.documents.BLOCK", 100)
    write_documents(tmp_path, texts(40), [])
    options = Dedupe((), name="d", keep_empty=True).settled()
    for number, file in enumerate(find_in_datasets([f"{tmp_path}/documents"], [], "documents")):
        task = DedupeTask(number, file, options, str(tmp_path))
        scanned, name = exact.scan(task), f"{tmp_path}/{task.fingerprint}"
        bounds = range(exact.PARTS + 1)
        table, keys = cuts(name, exact.PARTS, bounds), f"{name}.keys"
        hashes = np.fromfile(keys, np.uint64).reshape(-1, 2)
        assert table.shape == (scanned.segments, exact.PARTS + 1) and bool(scanned.rows) == bool(len(hashes))
        rows = [row.tolist() for row in table]
        assert [row[0] for row in rows] + [len(hashes)] == [0, *(row[-1] for row in rows)]
        for row in rows:
            for part, (low, high) in enumerate(pairwise(row)):
                assert (hashes[low:high, 0] >> np.uint64(52) == part).all()
        wanted = (table - table[:, :1]).sum(axis=0)
        assert totals(name, exact.PARTS).tolist() == wanted.tolist()
    assert number == 1 and scanned.segments == 0
