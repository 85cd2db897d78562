"""The examples in this room's docstrings."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["decode", "fieldmap", "yamls"])
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(import_module(f"feedmill.samples.{name}"))
    assert tried and not failed
