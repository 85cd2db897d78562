"""How much freed memory glibc keeps: what is set, and what is left to the environment."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from feedmill.allocator import keep_freed_memory

VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda number, value: found.append((number, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return found


def test_both_limits_are_set(calls: list[tuple[int, int]]) -> None:
    keep_freed_memory(64 << 20)
    assert sorted(calls) == [(-3, 32 << 20), (-1, 64 << 20)]


@pytest.mark.parametrize("name", VARIABLES)
def test_settings_of_the_environment_are_kept(
    name: str, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    keep_freed_memory(64 << 20)
    assert calls == []


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    keep_freed_memory(64 << 20)
    assert calls == []
