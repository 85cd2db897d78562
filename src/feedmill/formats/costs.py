"""Costs of samples from indices: the names of costs, and numeric columns as costs.

A cost is a whole number from 0 to `LARGEST`, int64. `Dataset.costs` returns one per sample:

    tokens       tokens of the sample
    loss_tokens  tokens of the sample that contribute to the loss, by its loss mask: without a mask, all of them
    bytes        bytes of the sample as it is stored
    pixels       width x height of each image, width x height x frames of each video, summed over the sample's media
    frames       1 for each image, the frames of each video, summed
    FIELD        the value of a numeric field of the sample, fractions rounded up
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError

Int64s = npt.NDArray[np.int64]

LOSS_TOKENS = "loss_tokens"
INDEXED = ("tokens", LOSS_TOKENS, "bytes", "pixels", "frames")
"""Names of predefined costs; any other name is a field."""
LARGEST = (1 << 62) - 1
"""The largest cost: the sum of two still fits into an int64."""
_COARSEST = 0.1
"""The largest change of a column's sum by rounding."""


def checked_costs(values: npt.NDArray[Any], by: str, *, file: str, count: int) -> Int64s:
    """Return the costs that a format computed as a read-only array, int64[count].

    Args:
        values: integers[count].
        by: the cost's name.
        file: path or URL of the dataset, for errors.
        count: number of samples.

    Raises:
        DataError: the values have another shape or type.
    """
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise DataError(
            f"invalid costs {by}: expected {count:,} integers, found shape {values.shape} of type {values.dtype}",
            file=file,
            kind="bad-costs",
        )
    out = np.asarray(values, np.int64).view()
    out.flags.writeable = False
    return out


def field_costs(values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, by: str, *, file: str) -> Int64s:
    """Return the values of a field as costs, int64[n]: whole numbers as they are, fractions rounded up.

    Args:
        values: integers or floats, [n].
        present: bool[n], False if the value is missing; None if none is.
        by: the field's name.
        file: path or URL of the dataset, for errors.

    Raises:
        DataError: a value is missing, NaN, negative or above `LARGEST`; names the first such sample and its value.
        ConfigError: the values are so small that rounding them up changes their sum by more than a tenth.
    """
    if present is not None and not present.all():
        raise bad_cost(by, int(np.argmin(present)), "missing", file=file)
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    good = (wide >= 0) & (wide < LARGEST + 1)  # neither holds for NaN
    if not good.all():
        number = int(np.argmin(good))
        raise bad_cost(by, number, values[number].item(), file=file)
    if values.dtype.kind != "f":
        return np.asarray(values, np.int64)
    whole = np.ceil(wide)
    total, change = float(wide.sum()), float((whole - wide).sum())
    if change > _COARSEST * total:
        raise ConfigError(
            f"the values of {by!r} are too small for costs: rounding them up changes their sum by {change / total:.0%}",
            file=file,
            kind="bad-costs",
            fix="Store them in a smaller unit, such as milliseconds instead of seconds.",
        )
    return np.asarray(whole, np.int64)


def field_values(
    values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, by: str, *, file: str
) -> npt.NDArray[Any]:
    """Return the values of a field as `Dataset.values` does: int64, float64 or uint64, [n].

    Args:
        values, present, by, file: as for `field_costs`; uint64 if they are hashes of texts.

    Raises:
        DataError: a value is missing, NaN, or a whole number of more than 63 bits; names the first such sample.
    """
    if present is not None and not present.all():
        raise _no_value(by, int(np.argmin(present)), "missing", file)
    if values.dtype.kind == "f":
        wide = values.astype(np.float64, copy=False)
        if np.isnan(wide).any():
            raise _no_value(by, int(np.argmax(np.isnan(wide))), "nan", file)
        return wide
    return values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def text_hashes(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return a hash of each text, uint64[n]: xxh3-64 of its UTF-8 bytes."""
    import xxhash

    return np.fromiter((xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts), np.uint64)


def _no_value(by: str, number: int, value: object, file: str) -> DataError:
    return DataError(
        f"{by!r} of this sample is {value}, expected a value",
        file=file,
        record=f"sample {number}",
        kind="bad-costs",
        fix="Correct the value, exclude the sample, or choose another field.",
    )


def bad_cost(by: str, number: int, value: object, *, file: str, fix: str | None = None) -> DataError:
    """Return the error for a sample with an invalid cost."""
    return DataError(
        f"{by!r} of this sample is {value}, expected a number from 0 to 2^62 - 1",
        file=file,
        record=f"sample {number}",
        kind="bad-costs",
        fix=fix or "Correct the value, exclude the sample, or choose another cost.",
    )
