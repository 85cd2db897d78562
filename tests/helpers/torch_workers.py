"""Errors of the workers of a torch `DataLoader`."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(error: type[Exception], match: str) -> Iterator[None]:
    """`pytest.raises` that lets the workers end.

    An error that torch passes on refers to itself, and to the iterator: the workers would live until the next search
    for garbage, which waits for each of them for five seconds.
    """
    with pytest.raises(error, match=match) as caught:
        yield
    traceback.clear_frames(caught.tb)
