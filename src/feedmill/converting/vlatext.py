"""Read tokenized text of VLA Foundry as documents, one per sequence of token ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError
from feedmill.formats import pth
from feedmill.formats.sample import Sample, locate
from feedmill.formats.sniff import open_raw
from feedmill.storage.codec import gunzip

_BATCH = 256
_TENSOR = "input_ids.pth"


def files_of(source: str) -> tuple[list[Any], int, frozenset[str]]:
    """Return the identity of a dataset, its number of sequences, and the parts of its first sample besides the ids.

    Raises:
        DataError: the first sample has no token ids.
    """
    dataset, _ = open_raw(source)
    first = dataset.read_raw([0]) if len(dataset) else []
    for sample in first:
        _ids(sample, list(sample))
    beside = frozenset(name for sample in first for name in sample if name != _part(sample))
    return [dataset.fingerprint()], len(dataset), beside


def name_of(source: str) -> str:
    """Return the name of the output file, without a suffix."""
    last = source.rstrip("/").rpartition("/")[2].removesuffix(".jsonl")
    return last if last and not last.startswith(".") else "tokens"


def sequences_of(source: str, beside: Collection[str] = ()) -> Iterator[list[npt.NDArray[np.int64]]]:
    """Yield the sequences in batches. Each is int64[tokens].

    Args:
        source: a dataset of VLA Foundry.
        beside: parts besides the ids, which are skipped.

    Raises:
        DataError: a sample has no token ids, or a part that is not in `beside` and so was not reported as lost.
    """
    dataset, _ = open_raw(source)
    for low in range(0, len(dataset), _BATCH):
        samples = dataset.read_raw(range(low, min(low + _BATCH, len(dataset))))
        yield [_ids(sample, beside) for sample in samples]


def _part(sample: Sample) -> str | None:
    """Return the part that holds the ids. A tensor has precedence, as in VLA Foundry's own loader."""
    return next((name for name in (_TENSOR, "json.gz", "json") if name in sample), None)


def _ids(sample: Sample, beside: Collection[str]) -> npt.NDArray[np.int64]:
    name = _part(sample)
    if name is None:
        raise _no_tokens(sample, f"it has no part {_TENSOR} or json.gz (it has {', '.join(sample)})")
    others = [other for other in sample if other != name and other not in beside]
    if others:
        raise _no_tokens(sample, f"it has parts that the first sample does not have ({', '.join(others)})")
    try:
        data = sample.raw(name)
        if name == _TENSOR:
            return _of_tensor(sample, pth.load(data))
        if name == "json.gz":
            data = gunzip(data)
        found = orjson.loads(data)
    except (OSError, EOFError, orjson.JSONDecodeError) as error:
        raise _no_tokens(sample, str(error)) from None
    except DataError as error:
        raise locate(error, sample.source, f"{sample.key}.{name}") from error
    if not isinstance(found, list) or not all(type(item) is int and 0 <= item < 2**32 for item in found):
        raise _no_tokens(sample, "it is not a list of token ids")
    return np.asarray(found, np.int64)


def _of_tensor(sample: Sample, found: Any) -> npt.NDArray[np.int64]:
    """Return the ids of a tensor of any integer type and one dimension."""
    if not (isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu"):
        shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise _no_tokens(sample, f"{_TENSOR} is {shape}, not a list of integers")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < 2**32:
        raise _no_tokens(sample, f"{_TENSOR} has values outside the range of token ids, 0 to 2^32 - 1")
    return found.astype(np.int64)


def _no_tokens(sample: Sample, why: str) -> DataError:
    fix = "Only datasets of tokenized text can be converted to token files."
    what = f"the sample is not a sequence of tokens: {why}"
    return locate(DataError(what, kind="no-tokens", fix=fix), sample.source, sample.key)
