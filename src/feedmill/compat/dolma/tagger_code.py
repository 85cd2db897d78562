"""The code of Dolma's modules of taggers: their classes, to call and to derive from, and the search for repetitions.

docs/tagging.md describes the taggers. A class of `feedmill.compat.dolma.modules.CLASSES` is made when it is first used.
Lists and models are not downloaded: pass the path as `file`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.compat.dolma.modules import CLASSES
from feedmill.curation.plugin_types import DocumentWithMetadata
from feedmill.curation.plugins import BuiltInTagger
from feedmill.curation.taggers.token_repetitions import Repetition as RepetitionTuple
from feedmill.curation.taggers.token_repetitions import find_periods
from feedmill.curation.taggers.urls import AdblockList, DomainList, UrlList


def __getattr__(name: str) -> Any:
    for classes in CLASSES.values():
        if name in classes:
            tagger = classes[name]
            about = {"__module__": __name__, "__doc__": f"Dolma's class of the tagger ``{tagger}``."}
            made = globals()[name] = type(name, (BuiltInTagger,), about, tagger=tagger)
            return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class BaseUrlTagger(BuiltInTagger):
    """Base class of taggers with lists of URLs in local files: set `BLOCKLIST_PATHS`."""

    BLOCKLIST_PATHS: ClassVar[Sequence[str]] = ()
    DOCUMENT = DocumentWithMetadata

    def __init__(self) -> None:
        self.inner = UrlList(*self.BLOCKLIST_PATHS)


class BaseDomainTagger(BaseUrlTagger):
    """Base class of taggers with lists of domains."""

    def __init__(self) -> None:
        self.inner = DomainList(*self.BLOCKLIST_PATHS)


class AdbUrlTagger(BaseUrlTagger):
    """Base class of taggers with rules of ad blockers."""

    def __init__(self) -> None:
        self.inner = AdblockList(*self.BLOCKLIST_PATHS)


def find_periodic_sequences(
    arr: npt.NDArray[Any], max_period: int, min_period: int = 1, mask_value: int = -1
) -> Iterator[RepetitionTuple]:
    """Yield the units of `min_period` to `max_period` numbers that are repeated at least three times.

    Raises:
        ValueError: `mask_value` is in the array, which Dolma forbids.
    """
    if (arr == mask_value).any():
        raise ValueError(f"the mask value {mask_value} is in the array")
    yield from find_periods(arr, max_period, min_period)


def find_end_first_consecutive_true(arr: npt.NDArray[np.bool_]) -> int:
    """Return the number of values before the first one that is false."""
    return int(np.argmin(np.append(arr, False)))


def find_start_last_consecutive_true(arr: npt.NDArray[np.bool_]) -> int:
    """Return where the true values at the end begin, or -1 if there are none."""
    start = len(arr) - find_end_first_consecutive_true(arr[::-1])
    return start if start < len(arr) else -1


def group_consecutive_values(arr: npt.NDArray[Any], stepsize: int = 1) -> list[npt.NDArray[Any]]:
    """Return the runs in which each value is `stepsize` more than the one before."""
    return np.split(arr, np.flatnonzero(np.diff(arr) != stepsize) + 1)
