"""How long tests take: what `make test-quick` leaves out, and which files parallel runs begin with.

`tests/durations.json` has, for each file of tests, how many functions it has, the seconds of those that take at least
`LONG`, all their cases together, and the seconds of the rest. `pytest --quick` runs the shortest functions that take
`BUDGET` together, and `ALWAYS`. A function that the record does not have is quick, unless most of its file are not.
`make durations` writes the record of a whole run, on a quiet machine; a run of some files replaces theirs.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/durations.json"
LONG = 0.1
"""Seconds of all cases of a function from which on it has a row of its own."""
BUDGET = 100.0
"""Seconds of the quick run without `ALWAYS`, in one process: half of them for each of two, beside what they import."""
_SETUP = 1.0  # the first test that needs a server waits for it, which says nothing of this test
ALWAYS = (  # a kill, a pool, a bucket or a page of every room, however long it takes: a function, or one of its cases
    "tests/contracts/test_dataset.py::test_the_same_through_an_object_store",
    "tests/contracts/test_engines.py::test_parts_in_any_order[tag]",
    "tests/contracts/test_writing_remote.py::test_the_bytes_are_those_of_a_disk[webdataset-s3]",
    "tests/contracts/test_writing_remote.py::test_the_bytes_are_those_of_a_disk[append-s3]",
    "tests/converting/test_killed.py::test_killed_and_finished[rows-3]",
    "tests/converting/test_rows.py::test_the_bytes_do_not_depend_on_the_processes[jsonl.gz]",
    "tests/curation/dedupe/test_job.py::test_any_number_of_processes[False-paragraphs]",
    "tests/curation/mix/test_job.py::test_killed_before_any_file_is_in_place[one]",
    "tests/importing/test_killed.py::test_a_killed_import_is_finished[one-documents]",
    "tests/indexing/test_prepare_media_killed.py::test_killed_before_the_index_is_in_place",
    "tests/test_docs.py::test_the_page_runs[docs/convert.md]",
    "tests/test_docs.py::test_the_page_runs[docs/filter.md]",
    "tests/test_docs.py::test_the_page_runs[docs/import.md]",
    "tests/test_docs.py::test_the_page_runs[docs/loading.md]",
    "tests/test_docs.py::test_the_page_runs[docs/prepare.md]",
    "tests/test_docs.py::test_the_page_runs[docs/recipes.md]",
    "tests/test_docs.py::test_the_page_runs[docs/tokenize.md]",
    "tests/test_docs.py::test_the_page_runs[docs/writing.md]",
    "tests/tokens/test_numbered_files.py::test_killed_before_each_file[one]",
    "tests/tracing/test_kills.py::test_a_killed_run_finishes_with_the_same_lineage[one-filter]",
    "tests/writing/test_killed.py::test_a_killed_append[one]",
)


@cache
def record() -> dict[str, dict[str, Any]]:
    """By file: the number of functions, the seconds of long ones by name, and of the rest."""
    return json.loads(RECORD.read_bytes()) if RECORD.exists() else {}


def quick_below(files: dict[str, dict[str, Any]], budget: float = BUDGET) -> float:
    """Return the seconds below which functions take no more than the budget together."""
    total = sum(known["rest"] for known in files.values())
    for seconds in sorted(seconds for known in files.values() for seconds in known["long"].values()):
        total += seconds
        if total > budget:
            return seconds
    return float("inf")


@cache
def slow_functions() -> dict[str, set[str]]:
    """By file: the functions that are not quick."""
    limit = quick_below(record())
    return {file: {name for name, s in known["long"].items() if s >= limit} for file, known in record().items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations")
    group.addoption("--quick", action="store_true", help="leave out tests that tests/durations.json knows to take long")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not _is_worker():
        if config.option.keyword or any("::" in argument for argument in config.args):
            raise pytest.UsageError("--record-durations needs whole files of tests: a part would replace what is known")
        config.pluginmanager.register(Recorder())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a file of which nothing is quick, as importing it takes time too."""
    if not config.getoption("--quick") or not collection_path.is_relative_to(ROOT):
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    slow = slow_functions().get(file)
    always = any(name.startswith(f"{file}::") for name in ALWAYS)
    return True if slow and not always and len(slow) == record()[file]["functions"] else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        quick = {item for item in items if is_quick(item.nodeid)}
        config.hook.pytest_deselected(items=[item for item in items if item not in quick])
        items[:] = [item for item in items if item in quick]
    if _is_worker():  # the longest files first, and before them new ones: no process ends with one while others wait
        seconds = {file: sum(known["long"].values()) for file, known in record().items()}
        items.sort(key=lambda item: -seconds.get(_file(item.nodeid), float("inf")))


def is_quick(name: str) -> bool:
    """Whether the quick run has this test."""
    if name in ALWAYS or name.partition("[")[0] in ALWAYS:
        return True
    slow = slow_functions().get(_file(name), set())
    return _function(name) not in slow and (not slow or len(slow) <= record()[_file(name)]["functions"] / 2)


class Recorder:
    """Collects what the tests of a run take."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("[")[0]] += min(report.duration, _SETUP if report.when == "setup" else 1e9)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        merged = {file: known for file, known in record().items() if (ROOT / file).exists()} | summed(self.seconds)
        lines = [f" {json.dumps(file)}: {json.dumps(known)}" for file, known in sorted(merged.items())]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        terminalreporter.line(f"tests/durations.json is written; functions below {quick_below(merged):g} s are quick")


def slow_but(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Arguments of a test of which the default run has those that are kept, and slow runs all. Tuples are several."""
    rows = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*row, marks=() if value in kept else pytest.mark.slow) for value, row in rows]


def needs(*modules: str) -> None:
    """Skip a file of tests without these modules. They are not imported: each process of a run collects all files."""
    for name in modules:
        if find_spec(name.partition(".")[0]) is None or find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def examples(number: int) -> int:
    """How many examples of a property a profile has whose other properties have 100 with no profile."""
    return max(1, number * settings().max_examples // 100)


def summed(seconds: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The rows of files for the seconds of functions."""
    files: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in seconds.items():
        files[_file(name)][_function(name)] = value
    return {file: _row(functions) for file, functions in files.items()}


def _row(functions: dict[str, float]) -> dict[str, Any]:
    long = {name: round(value, 1) for name, value in sorted(functions.items()) if value >= LONG}
    rest = sum(value for name, value in functions.items() if name not in long)
    return {"functions": len(functions), "long": long, "rest": round(rest, 1)}


def _file(name: str) -> str:
    return name.partition("::")[0]


def _function(name: str) -> str:
    return name.partition("::")[2].partition("[")[0]


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ
