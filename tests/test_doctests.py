"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import feedmill
import oracles

MODULES = [
    info.name
    for info in pkgutil.walk_packages(feedmill.__path__, "feedmill.")
    if not info.ispkg and ".cli." not in info.name
]
MODULES += [info.name for info in pkgutil.iter_modules(oracles.__path__, "oracles.")]


def has_examples(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None and ">>>" in Path(spec.origin).read_text()


def test_every_module_is_imported() -> None:
    for name in MODULES:
        try:
            import_module(name)
        except ModuleNotFoundError as error:  # the adapter of a framework that is not installed
            assert name.startswith("feedmill.loading.adapters.") and error.name not in (None, "feedmill"), name


@pytest.mark.parametrize("name", [name for name in MODULES if has_examples(name)])
def test_examples(name: str) -> None:
    failed, found = doctest.testmod(import_module(name))
    assert found and not failed
