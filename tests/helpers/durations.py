"""How long tests take: what `make test-quick` leaves out, and which files parallel runs begin with.

`tests/durations.json` has, for each file of tests, how many functions it has, the seconds of those that take at least
`SHORT`, all their cases together, and the seconds of the rest. `pytest --quick` runs the others, and `ALWAYS`. A test
that the record does not have is quick, unless most tests of its file are not. `make durations` writes the record of a
whole run on a quiet machine; a run of some files replaces theirs.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/durations.json"
SHORT = 0.4
"""Seconds of all cases of a function, from which on it is not quick."""
_SETUP = 1.0  # the first test that needs a server waits for it, which says nothing of this test
ALWAYS: tuple[str, ...] = ()


@cache
def record() -> dict[str, dict[str, Any]]:
    """By file: the number of functions, the seconds of long ones by name, and of the rest."""
    return json.loads(RECORD.read_bytes()) if RECORD.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations")
    group.addoption("--quick", action="store_true", help="leave out tests that tests/durations.json knows to take long")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json, if all tests pass")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not _is_worker():
        config.pluginmanager.register(Recorder())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a file of which nothing is quick, as importing it takes time too."""
    if not config.getoption("--quick") or not collection_path.name.startswith("test_"):
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    known = record().get(file)
    always = any(name.startswith(f"{file}::") for name in ALWAYS)
    return True if known and not always and len(known["long"]) == known["functions"] else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        chosen = [item for item in items if is_quick(item.nodeid)]
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item.nodeid)])
        items[:] = chosen
    if _is_worker():  # the longest files first, so that no process ends with one while the others wait
        seconds = {file: sum(known["long"].values()) for file, known in record().items()}
        items.sort(key=lambda item: -seconds.get(_file(item.nodeid), 0.0))


def is_quick(name: str) -> bool:
    """Whether the quick run has this test."""
    if name in ALWAYS:
        return True
    known = record().get(_file(name))
    if known is None:
        return True
    return _function(name) not in known["long"] and len(known["long"]) <= known["functions"] / 2


class Recorder:
    """Collects what the tests of a run take."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        self.seconds[report.nodeid.partition("[")[0]] += min(report.duration, _SETUP if report.when == "setup" else 1e9)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.failed:
            terminalreporter.line("tests/durations.json is as it was, as tests have failed")
            return
        merged = {file: known for file, known in record().items() if (ROOT / file).exists()} | summed(self.seconds)
        lines = [f" {json.dumps(file)}: {json.dumps(known)}" for file, known in sorted(merged.items())]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        quick = sum(known["rest"] for known in merged.values())
        terminalreporter.line(f"tests/durations.json is written: {quick:.0f} s of tests are quick")


def summed(seconds: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The rows of files for the seconds of functions."""
    files: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in seconds.items():
        files[_file(name)][_function(name)] = value
    return {file: _row(functions) for file, functions in files.items()}


def _row(functions: dict[str, float]) -> dict[str, Any]:
    long = {name: round(value, 1) for name, value in sorted(functions.items()) if value >= SHORT}
    rest = sum(value for name, value in functions.items() if name not in long)
    return {"functions": len(functions), "long": long, "rest": round(rest, 1)}


def _file(name: str) -> str:
    return name.partition("::")[0]


def _function(name: str) -> str:
    return name.partition("::")[2].partition("[")[0]


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def missing(names: Iterable[str]) -> list[str]:
    """What `ALWAYS` has that is no test (any more)."""
    known = set(names)
    return [name for name in ALWAYS if name not in known]
