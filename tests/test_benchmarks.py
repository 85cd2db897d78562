"""Benchmarks are not run by the tests, but what they import from Feedmill has to be there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_a_benchmark_imports_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("feedmill"):
            module = import_module(node.module or "")
            for alias in node.names:
                found = hasattr(module, alias.name)
                assert found or import_module(f"{node.module}.{alias.name}"), f"line {node.lineno}: {alias.name}"
