"""VLA Foundry's tokenized text as documents: each sequence of token ids is one."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError
from feedmill.formats.base import Sample
from feedmill.formats.sniff import open_raw

_BATCH = 256
_MOST = 64 << 20


def files_of(source: str) -> tuple[list[Any], int]:
    """What tells this data set from another, and the number of its sequences."""
    dataset, _ = open_raw(source)
    return [dataset.fingerprint()], len(dataset)


def name_of(source: str) -> str:
    """A name for the file of all its sequences."""
    last = source.rstrip("/").rpartition("/")[2].removesuffix(".jsonl")
    return last if last and not last.startswith(".") else "tokens"


def sequences_of(source: str) -> Iterator[list[npt.NDArray[np.int64]]]:
    """The sequences, some at a time. Raises `DataError` where a sample holds no token ids."""
    dataset, _ = open_raw(source)
    for low in range(0, len(dataset), _BATCH):
        samples = dataset.read_raw(range(low, min(low + _BATCH, len(dataset))))
        yield [_ids(sample) for sample in samples]


def _ids(sample: Sample) -> npt.NDArray[np.int64]:
    name = next((name for name in ("json.gz", "json") if name in sample), None)
    if name is None:
        raise _no_tokens(sample, f"it has no part json.gz (it has {', '.join(sample)})")
    try:
        data = sample.raw(name)
        if name == "json.gz":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(_MOST + 1)
        found = orjson.loads(data)
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        raise _no_tokens(sample, str(error)) from None
    if not isinstance(found, list) or not all(type(item) is int and 0 <= item < 2**32 for item in found):
        raise _no_tokens(sample, "it is no list of token ids")
    return np.asarray(found, np.int64)


def _no_tokens(sample: Sample, why: str) -> DataError:
    return DataError(
        f"this is no sequence of tokens: {why}",
        file=sample.source.where,
        record=sample.key,
        kind="no-tokens",
        fix="Only data sets of tokenized text become token files.",
    )
