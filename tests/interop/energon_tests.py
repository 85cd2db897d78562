"""Run Energon's own tests on Feedmill: ``python tests/interop/energon_tests.py FOLDER [MODULE...] [-k NAME] [--json]``.

FOLDER is the folder `tests` of a clone of Megatron Energon. The tests are unchanged: `megatron.energon` and its
submodules are other names of `feedmill.compat.energon` and its submodules, and nothing else is replaced. Names that
Feedmill does not have are stand-ins, so that the other tests of a module run. Each module runs in a process of its own.
Prints one line per module and the first line of each failure.

The tests require PyTorch, webdataset, click, and for some modules torchvision and multi-storage-client.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ENERGON, FEEDMILL = "megatron.energon", "feedmill.compat.energon"
_IN_WORKERS = "import sys, energon_tests; sys.meta_path.insert(0, energon_tests.Aliases())"
LIMIT = 600
"""Seconds that one module may take by default."""


class Absent:
    """Stand-in for a name that Feedmill does not have: the tests that use it fail."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("Feedmill does not have this name")


class Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes each import of a module of Energon return the module of Feedmill that has its name."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name == "megatron":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name != ENERGON and not name.startswith(f"{ENERGON}."):
            return None
        try:
            module = importlib.import_module(FEEDMILL + name.removeprefix(ENERGON))
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        if spec.name == "megatron":
            return None
        module = importlib.import_module(FEEDMILL + spec.name.removeprefix(ENERGON))
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "megatron":
            return
        module.__spec__ = self.own_spec  # the import has set that of the alias
        for name in [name for name in sys.modules if name.startswith(f"{FEEDMILL}.")]:
            sys.modules.setdefault(ENERGON + name.removeprefix(FEEDMILL), sys.modules[name])
            _complete(sys.modules[name])


def _complete(module: types.ModuleType) -> None:
    """Give a module stand-ins for the names that it does not have."""
    from feedmill.compat.energon.modules import ABSENT

    for name in (*ABSENT, "command"):
        try:
            getattr(module, name)
        except (ImportError, AttributeError):
            setattr(module, name, Absent)


class Results:
    """Plugin of pytest that collects the outcome of each test, and the reason of each failure."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            self.failed.setdefault(name, _reason(report))
        elif report.skipped:
            self.skipped.append(name)
        elif report.when == "call":
            self.passed.append(name)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed["import"] = _reason(report)


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{Path(crash.path).name}:{crash.lineno}: {crash.message.splitlines()[0] if crash.message else ''}"
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return lines[-1].removeprefix("E").strip() if lines else "no reason"


def run_module(path: Path, pattern: str, report: Path) -> int:
    """Run the tests of one module in this process, and write the outcome to `report`."""
    import pytest

    results = Results()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(path.parent.parent)]
    code = pytest.main([str(path), *options, *(["-k", pattern] if pattern else [])], plugins=[results])
    report.write_text(json.dumps(vars(results)))
    return int(code)


def run(
    folder: Path, modules: Sequence[str], pattern: str, show: bool, limit: float = LIMIT
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the modules of a folder one after another. Yields the name and the outcome of each.

    Args:
        folder: the folder `tests` of Energon.
        modules: names of modules; all if empty.
        pattern: only tests whose names have this text.
        show: whether to print the output of pytest.
        limit: seconds that one module may take.
    """
    for path in sorted(folder.resolve().glob("test_*.py")):
        if modules and path.stem not in modules:
            continue
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report.json"
            Path(place, "sitecustomize.py").write_text(_IN_WORKERS)  # worker processes import the tests too
            command = [sys.executable, __file__, str(path), "-k", pattern, "--report", str(report)]
            paths = [place, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "TMPDIR": place, "PYTHONPATH": os.pathsep.join(paths)}
            try:
                done = subprocess.run(
                    command, cwd=folder.resolve().parent, env=environment, capture_output=not show, timeout=limit
                )
                reason = f"exit status {done.returncode}"
            except subprocess.TimeoutExpired:
                reason = f"not finished in {limit} seconds"
            if report.exists():
                yield path.stem, json.loads(report.read_text())
            else:
                yield path.stem, {"passed": [], "failed": {"process": reason}, "skipped": []}


def count_tests(path: Path) -> int:
    """Return the number of tests that a module defines, whether or not it can be imported."""
    return len(re.findall(r"^    def test_", path.read_text(), re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder `tests` of Energon")
    parser.add_argument("modules", nargs="*", help="names of modules, for example test_dataset; default: all")
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose names have this text")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--show", action="store_true", help="show the output of pytest")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that one module may take")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.report is not None:
        sys.exit(run_module(given.folder, given.pattern, given.report))
    outcomes, passed, defined = {}, 0, 0
    for module, outcome in run(given.folder, given.modules, given.pattern, given.show, given.limit):
        outcomes[module] = outcome
        tests = count_tests(given.folder / f"{module}.py")
        passed, defined = passed + len(outcome["passed"]), defined + tests
        if given.json:
            continue
        print(f"{module:28} {len(outcome['passed']):3} of {tests} passed", flush=True)
        for name, reason in outcome["failed"].items():
            print(f"    {name}: {reason}", flush=True)
    if not outcomes:
        sys.exit(f"{given.folder} has no such test modules")
    if given.json:
        print(json.dumps(outcomes, indent=2))
        return
    print(f"{passed} of {defined} passed")


if __name__ == "__main__":
    main()
