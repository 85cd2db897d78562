"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
from importlib import import_module

import pytest

import feedmill
import oracles

MODULES = [
    info.name
    for info in pkgutil.walk_packages(feedmill.__path__, "feedmill.")
    if not info.ispkg and ".cli." not in info.name
]
MODULES += [info.name for info in pkgutil.iter_modules(oracles.__path__, "oracles.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:  # the adapter of a framework that is not installed
        assert name.startswith("feedmill.loading.adapters.") and error.name not in (None, "feedmill"), name
        pytest.skip(f"{error.name} is not installed")
    if ">>>" in inspect.getsource(module):  # to look for examples takes as long as to import most modules
        failed, found = doctest.testmod(module)
        assert found and not failed
