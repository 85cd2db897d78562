"""The memory of a task: the budget of all of them, less what their processes take without work."""

from __future__ import annotations

import pytest

from feedmill.errors import ConfigError
from feedmill.jobs import memory
from feedmill.jobs.memory import FIXED, FULL, LEAST, room_of, sized

MB = 1 << 20


@pytest.mark.parametrize(
    ("budget", "workers", "threads", "room"),
    [
        (FIXED + LEAST, 1, 1, 32 * MB),
        (FIXED + 127 * MB, 1, 1, 64 * MB),
        (FIXED + 128 * MB, 1, 1, 128 * MB),
        (3 * FIXED + 2 * LEAST, 2, 1, 32 * MB),
        (FIXED + 2 * LEAST, 2, 4, 32 * MB),  # threads share a process
        (6 * FIXED + 5 * 64 * MB, 5, 4, 64 * MB),
        ("100GB", 2, 1, FULL),
    ],
)
def test_the_share_of_a_task(budget: int | str, workers: int, threads: int, room: int) -> None:
    assert room_of(budget, workers, threads) == room


@pytest.mark.parametrize(("workers", "threads", "least"), [(1, 1, 101), (2, 1, 269), (2, 4, 135)])
def test_too_little_is_an_error_that_names_the_least(workers: int, threads: int, least: int) -> None:
    with pytest.raises(ConfigError, match=f"at least {least}MB are needed"):
        room_of(f"{least - 1}MB", workers, threads)
    assert room_of(f"{least}MB", workers, threads) == LEAST


def test_what_is_not_a_size_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--memory='much' is not a size"):
        room_of("much", 1)


@pytest.mark.parametrize(("machine", "room"), [(None, FULL), (1 << 30, 128 * MB), (1 << 40, FULL), (1 << 27, LEAST)])
def test_the_default_is_a_quarter_of_the_machine(
    machine: int | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: machine)
    assert room_of(None, 1) == room


def test_sizes_shrink_together() -> None:
    assert [sized(n, FULL // 4) for n in (1 << 20, 100, 3)] == [1 << 18, 25, 1] and sized(7, FULL) == 7
