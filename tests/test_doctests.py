"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import feedmill

MODULES = [
    info.name
    for info in pkgutil.walk_packages(feedmill.__path__, "feedmill.")
    if not info.ispkg and ".cli." not in info.name
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(import_module(name))
    assert not failed
