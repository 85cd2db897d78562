"""Samples with given lengths and media, for tests of packing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from feedmill.formats.base import Dataset
from feedmill.samples.counted import CountedDataset, Refused, SampleLengths
from helpers.number_dataset import Numbered


def _counts(
    dataset: Dataset, tokens: np.ndarray, media: np.ndarray, patches: np.ndarray, processor: str
) -> SampleLengths:
    without = np.flatnonzero(tokens < 0)
    refused = [Refused("it has no text", len(without), [str(each) for each in without[:5]])] if len(without) else []
    identity = {"processor": processor, "tokenizer": "t"}
    return SampleLengths(tokens.astype(np.int32), refused, media, identity, partial(_vision, patches))


def _vision(patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return patches, patches**2


def counted(
    name: str,
    tokens: Sequence[int] | np.ndarray,
    media: Sequence[int] | np.ndarray | None = None,
    processor: str = "SomeProcessor 1",
    each: int = 100,
) -> CountedDataset:
    """Sample `i` has ``tokens[i]`` tokens (-1: no length), ``media[i]`` media, and `each` patches for each of these."""
    sizes = np.asarray(tokens, np.int64)
    pictures = np.zeros(len(sizes), np.int64) if media is None else np.asarray(media, np.int64)
    again = partial(_counts, tokens=sizes, media=pictures, patches=pictures * each, processor=processor)
    dataset = Numbered(name, len(sizes))
    return CountedDataset(dataset, again(dataset), again)
