"""Which tests `make test-quick` runs, and the record that decides it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from helpers import durations
from helpers.durations import ALWAYS, ROOT, is_quick, quick_below, record, summed

FILES = {
    "tests/a/test_a.py": {"functions": 5, "long": {"test_one": 3.0, "test_two": 60.0}, "rest": 0.2},
    "tests/a/test_b.py": {
        "functions": 3,
        "long": {"test_one": 70.0, "test_two": 2.0, "TestX::test_x": 50.0},
        "rest": 0,
    },
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "record", lambda: FILES)
    monkeypatch.setattr(durations, "BUDGET", 60.0)
    monkeypatch.setattr(durations, "slow_functions", durations.slow_functions.__wrapped__)
    monkeypatch.setattr(durations, "quick_below", lambda files: quick_below(files, 60.0))


def test_the_shortest_functions_fill_the_budget() -> None:
    assert quick_below(FILES, 5.0) == 3.0
    assert quick_below(FILES, 60.0) == 60.0
    assert quick_below(FILES, 1000.0) == float("inf") == quick_below({}, 1.0)


def test_what_is_quick(known: None) -> None:
    assert is_quick("tests/a/test_a.py::test_one[x]") and is_quick("tests/a/test_a.py::test_new")
    assert not is_quick("tests/a/test_a.py::test_two[a-b::c]") and not is_quick("tests/a/test_b.py::test_one")
    assert is_quick("tests/new/test_c.py::test_one")
    assert is_quick("tests/a/test_b.py::TestX::test_x[1]")


def test_a_new_function_is_as_slow_as_most_of_its_file(known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "quick_below", lambda files: 10.0)
    assert not is_quick("tests/a/test_b.py::test_new") and is_quick("tests/a/test_a.py::test_new")


def test_what_always_runs_is_quick_by_function_or_by_case(known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "ALWAYS", ("tests/a/test_a.py::test_two[1]", "tests/a/test_b.py::test_one"))
    assert is_quick("tests/a/test_a.py::test_two[1]") and not is_quick("tests/a/test_a.py::test_two[2]")
    assert is_quick("tests/a/test_b.py::test_one[2]")


def test_the_cases_of_a_function_are_one_row() -> None:
    seconds = {"tests/x.py::test_a": 0.04, "tests/x.py::T::test_b": 1.26, "tests/y.py::test_c": 0.01}
    assert summed(seconds) == {
        "tests/x.py": {"functions": 2, "long": {"T::test_b": 1.3}, "rest": 0.0},
        "tests/y.py": {"functions": 1, "long": {}, "rest": 0.0},
    }


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_always_runs_and_the_record_are_of_tests_that_exist() -> None:
    for name in ALWAYS:
        file, _, function = name.partition("::")
        assert function.partition("[")[0] in functions(ROOT / file), name
    assert sum(not (ROOT / file).exists() for file in record()) < 20  # `make durations` takes them out
    assert durations.RECORD.stat().st_size < 200_000
