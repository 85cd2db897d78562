"""Measure what the process of a command does beside its units, and print the numbers as JSON. SIZE is a fraction.

units SIZE        10^6 units that do nothing, in this process, on two processes, and as a part of a job array
ray SIZE          10^4 units that do nothing on a Ray cluster of two nodes on this machine, one by one and 100 at a time
journal SIZE      a journal of 10^6 finished units
tagged SIZE       `tag` of 10^5 files of one document; and again, when all are up to date
deduped SIZE      `dedupe` of them; `neardedupe` of a tenth of them
pipeline SIZE     `run` of a pipeline with them; and again, when it is up to date
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.lib import corpus
from benchmarks.lib.side import answer
from benchmarks.scale import data
from benchmarks.scale.clock import Clock, now_mb, peak_mb
from feedmill.jobs.engine import StageUnfinished, Where
from feedmill.jobs.journal import Units
from feedmill.jobs.parts import PartEngine
from feedmill.jobs.run import run
from feedmill.storage import LocalStore

UNITS, PARTS = 1_000_000, 1000


def nothing(unit: int) -> tuple[int, str]:
    """Return facts of a unit that has no work."""
    return unit, "0123456789abcdef0123456789abcdef"


def units(size: str) -> dict[str, float]:
    """Measure the time of a unit, and how the memory of the driver grows."""
    count = data.scaled(UNITS, float(size))
    numbers = Clock(start_mb=now_mb())
    for name, workers, chunk in (("here", 1, 1), ("processes_chunks", 2, 100), ("processes", 2, 1)):
        some = count if chunk > 1 or workers == 1 else max(2, count // 10)
        grown = 0.0
        with numbers.step(name):
            for number, (unit, _) in enumerate(run(nothing, range(some), workers=workers, chunk=chunk)):
                assert unit == number
                if number == some // 1000:
                    grown = now_mb()
        numbers[f"{name}_us"] = numbers.pop(name) / some * 1e6
        numbers[f"{name}_grown_mb"] = now_mb() - grown
    with tempfile.TemporaryDirectory() as folder:
        with numbers.step("part"):
            _part(PartEngine(3, PARTS), count, folder)
        numbers["part_mb"] = now_mb() - numbers["start_mb"]
        with numbers.step("finish"):
            _part(PartEngine(parts=PARTS, finish=True), count, folder)
    numbers["peak_mb"] = peak_mb()
    return numbers


def _part(engine: PartEngine, count: int, folder: str) -> None:
    where = Where("nothing", "0", LocalStore(folder))
    with engine:
        try:
            for _ in run(nothing, range(count), workers=1, where=where):
                pass
        except StageUnfinished:
            pass


def ray(size: str) -> dict[str, float]:
    """Measure the same on Ray, where a task has a price of its own."""
    from benchmarks.engines.suite import cluster
    from feedmill.jobs.ray_engine import RayEngine

    count = data.scaled(UNITS // 100, float(size))
    with tempfile.TemporaryDirectory() as folder, cluster() as address, RayEngine(address):
        where = Where("nothing", "0", LocalStore(folder))
        list(run(nothing, range(100), where=where))  # not counted: starts the workers
        numbers = Clock(start_mb=now_mb())
        for name, chunk in (("tasks", 1), ("chunks", 100)):
            with numbers.step(name):
                assert sum(1 for _ in run(nothing, range(count), chunk=chunk, where=where)) == count
            numbers[f"{name}_us"] = numbers.pop(name) / count * 1e6
        numbers["grown_mb"] = now_mb() - numbers["start_mb"]
    return numbers


def journal(size: str) -> dict[str, float]:
    """Measure the journal of a job."""
    count = data.scaled(UNITS, float(size))
    numbers = Clock(start_mb=now_mb())
    with tempfile.TemporaryDirectory() as folder:
        kept = Units(LocalStore(folder), "units")
        with numbers.step("add"):
            for number in range(count):
                kept.add(f"unit-{number:09d}", b"0" * 200)
        kept.close()
        numbers["bytes"] = sum(file.stat().st_size for file in Path(folder).iterdir())
        with numbers.step("read"):
            found = Units(LocalStore(folder), "units").read()
        assert len(found) == count
        numbers["read_mb"] = now_mb() - numbers["start_mb"]
    numbers["peak_mb"] = peak_mb()
    return numbers


def tagged(size: str) -> dict[str, float]:
    """Measure the work for each file."""
    from feedmill import tag

    folder = data.small_files(float(size))
    numbers = Clock(start_mb=peak_mb())
    for name in ("tag", "again"):
        with numbers.step(name):
            report = tag([f"{folder}/documents"], ["char_length_v1"], name="lengths", workers=1, progress=False)
        numbers[f"{name}_mb"] = peak_mb()
    assert report.reused == report.files
    return numbers


def deduped(size: str) -> dict[str, float]:
    """Measure the work for each file of the global steps."""
    from feedmill import dedupe

    folder = data.small_files(float(size))
    numbers = Clock(start_mb=peak_mb())
    with numbers.step("dedupe"):
        dedupe([f"{folder}/documents"], workers=1, progress=False)
    numbers["dedupe_mb"] = peak_mb()
    folder = data.small_files(float(size) / 10)
    with numbers.step("neardedupe"):
        dedupe([f"{folder}/documents"], near=True, workers=1, progress=False)
    numbers["neardedupe_mb"] = peak_mb()
    return numbers


def pipeline(size: str) -> dict[str, float]:
    """Measure the manifest of a pipeline with as many inputs and outputs."""
    from feedmill import run as run_pipeline

    folder = data.small_files(float(size))
    step: dict[str, Any] = {"verb": "tag", "inputs": [f"{folder}/documents"], "outputs": [f"{folder}/attributes"]}
    step["options"] = {"taggers": ["char_length_v1"], "name": "lengths", "workers": 1}
    numbers = Clock(start_mb=peak_mb())
    with tempfile.TemporaryDirectory(dir=corpus.folder()) as place:
        path = Path(place, "pipeline.yaml")
        path.write_text(yaml.safe_dump({"steps": [step]}))
        for name in ("run", "again"):
            with numbers.step(name):
                report = run_pipeline(path, progress=False)
            numbers[f"{name}_mb"] = peak_mb()
        assert not report.steps[0].ran
        numbers["manifest_bytes"] = os.stat(report.manifest).st_size
    return numbers


if __name__ == "__main__":
    answer(globals())
