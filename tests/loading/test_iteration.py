"""An iteration in the hands of several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from helpers.fakes import FakePlan


def test_an_iteration_that_two_threads_use_is_an_error_for_the_second_alone() -> None:
    entered, proceed = threading.Event(), threading.Event()

    def transform(sample: dict[str, Any]) -> Any:
        entered.set()
        assert proceed.wait(120)
        return sample

    batches = iter(Loader(FakePlan(length=8), 4, transform=transform))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, batches)
        assert entered.wait(120)
        with pytest.raises(ConfigError, match="cannot be shared by threads"):
            next(batches)
        proceed.set()
        assert first.result()["position"].tolist() == [0, 1, 2, 3]
    assert [batch["position"].tolist() for batch in batches] == [[4, 5, 6, 7]]
