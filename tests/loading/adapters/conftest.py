from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_worker_outlives_its_test() -> Iterator[None]:
    """Workers of torch end when their iterator is collected; other tests look at all children of the process."""
    yield
    if multiprocessing.active_children():
        gc.collect()
        for child in multiprocessing.active_children():
            child.join(120)
        assert not multiprocessing.active_children()
