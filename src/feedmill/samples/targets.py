"""Make inputs and targets from rows of tokens: windows, packed rows, and documents of any length.

Pass `with_targets` to the loader as `collate`; with a mask as ``functools.partial(with_targets, mask=...)``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.samples.lossmask import Bools, LossMask, Tokens

__all__ = ["IGNORE", "LossMask", "ends_together", "with_targets"]

IGNORE = -100
"""Value of targets that do not contribute to the loss: the default ``ignore_index`` of torch's cross entropy."""
ENDS = ("cu_seqlens", "boundaries")
"""Fields of a row with the offsets of its documents and its end: [0, ..., width]."""


def with_targets(
    samples: Sequence[Mapping[str, Any]],
    *,
    key: str = "input_ids",
    inputs: str = "inputs",
    targets: str = "targets",
    mask: LossMask | None = None,
    ignore_index: int | None = None,
    across_documents: bool | None = None,
    pad: int = 0,
) -> dict[str, Any]:
    """Return a batch of inputs and targets: all tokens but the last, and all but the first.

    A target is ignored if it is padding, if it starts another document than that of its input, or if `mask` excludes
    it. Rows of different lengths are padded to the longest.

    Args:
        samples: rows of w tokens or fewer, as numpy arrays or torch tensors. The field ``tokens`` is the number
            of tokens that are not padding; ``positions`` (0 at the start of a document), ``cu_seqlens`` or
            ``boundaries`` locate the documents.
        key: the field of the tokens.
        inputs, targets: names of the fields in the batch.
        mask: ignores targets outside of answers.
        ignore_index: value of ignored targets; default: the `ignore` of the mask, or -100.
        across_documents: whether the first token of a document is a target of the previous document. By default it is
            ignored if the row locates its documents; other rows (windows opened without ``positions``) are treated as
            one stream. With False, a row that does not locate its documents is an error.
        pad: id that pads shorter rows of inputs.

    Returns:
        ``inputs`` and ``targets``, integers [n, w - 1], and every other field of the rows: arrays as long as the tokens
        are cut like the inputs, ``tokens`` counts inputs, and ``cu_seqlens`` and ``boundaries`` are [n, k] arrays that
        end at w - 1 (rows with fewer documents repeat it). If no target can be ignored, inputs and targets are views of
        one batch in the type of the rows; otherwise the targets are int64. Tensors if the tokens are tensors.

    Raises:
        ConfigError: `across_documents` is False, and a row does not locate its documents.
        DataError: no row has 2 tokens; or as `LossMask` does.

    >>> batch = with_targets([{"input_ids": np.array([5, 6, 7])}])
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[5, 6]], [[6, 7]])
    """
    rows = [_array(sample[key]) for sample in samples]
    width = max(map(len, rows), default=0)
    if width < 2:
        raise DataError(
            f"rows of at most {width} tokens have no target: expected at least 2 tokens",
            kind="bad-windows",
            fix="Open token data with seq_len=..., or pack it.",
        )
    ignore = ignore_index if ignore_index is not None else IGNORE if mask is None else mask.ignore
    batch = _together(rows, width, pad)
    real = [_real(sample, len(row)) for sample, row in zip(samples, rows, strict=True)]
    starts = [None if across_documents else _starts(sample, count) for sample, count in zip(samples, real, strict=True)]
    if across_documents is False and any(found is None for found in starts):
        raise ConfigError(
            "a row does not locate its documents, which is required for across_documents=False",
            kind="no-documents",
            fix="Open token data with positions=True, or omit across_documents.",
        )
    ignored = _ignored(width, real, starts) if _may_ignore(samples, rows, width, starts) else None
    out: dict[str, Any] = {inputs: batch[:, :-1], targets: batch[:, 1:]}
    if mask is not None or ignored is not None:
        out[targets] = _masked(samples, batch, real, mask, ignored, ignore)
    names = dict.fromkeys(name for sample in samples for name in sample if name not in (key, "__key__"))
    for name in names:
        out[name] = _field(name, [sample.get(name) for sample in samples], rows, real, width)
    if len({*map(len, rows)}) > 1 and "tokens" not in out:
        out["tokens"] = _field("tokens", real, rows, real, width)
    return _as_given(out) if _is_tensor(samples[0][key]) else out


def ends_together(values: Sequence[Any], width: int | None = None) -> npt.NDArray[Any] | None:
    """Return ``cu_seqlens`` or ``boundaries`` of several rows as one array [n, k]; None for other values.

    Rows with fewer entries repeat the last one, which adds empty sequences. With `width`, all rows end there: longer
    rows are truncated, and the rest of a shorter row counts as one more sequence.
    """
    rows = [_array(value) for value in values]
    if not rows or any(row.ndim != 1 or row.dtype.kind not in "iu" or not len(row) for row in rows):
        return None
    if width is not None:
        end = [width]
        rows = [np.unique(np.concatenate((np.minimum(row, width), end))).astype(row.dtype) for row in rows]
    out = np.empty((len(rows), max(map(len, rows))), rows[0].dtype)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)], line[len(row) :] = row, row[-1]
    return out


def _array(value: Any) -> npt.NDArray[Any]:
    """Return the value as an array; a tensor shares its memory."""
    return np.asarray(value.detach().cpu() if _is_tensor(value) else value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # no value can be a tensor unless torch is imported
    return torch is not None and isinstance(value, torch.Tensor)


def _as_given(batch: dict[str, Any]) -> dict[str, Any]:
    torch = sys.modules["torch"]
    return {
        name: torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        else value
        for name, value in batch.items()
    }


def _together(rows: list[Tokens], width: int, pad: int) -> Tokens:
    if all(len(row) == width for row in rows):
        return np.stack(rows)
    out = np.full((len(rows), width), pad, np.result_type(*rows))
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def _real(sample: Mapping[str, Any], length: int) -> int:
    """Return the number of tokens of a row that are not padding."""
    tokens = sample.get("tokens")
    if tokens is None or _array(tokens).ndim:
        return length
    return min(int(tokens), length)


def _starts(sample: Mapping[str, Any], real: int) -> list[int] | None:
    """Return the starts of documents in a row, from 0; None if the row does not locate them."""
    for name in ENDS:
        if sample.get(name) is not None:
            found = _array(sample[name])
            return sorted({0, *found[found < real].tolist()})
    if sample.get("positions") is None:
        return None
    return sorted({0, *np.flatnonzero(_array(sample["positions"])[:real] == 0).tolist()})


def _may_ignore(
    samples: Sequence[Mapping[str, Any]], rows: list[Tokens], width: int, starts: Sequence[list[int] | None]
) -> bool:
    """Return whether rows of this kind can have ignored targets, even if these rows have none."""
    return (
        any(found is not None for found in starts)
        or any(len(row) < width for row in rows)
        or any(sample.get("tokens") is not None for sample in samples)
    )


def _ignored(width: int, real: list[int], starts: Sequence[list[int] | None]) -> Bools:
    """Return a mask of targets that are padding or begin a document, bool[n, width - 1]."""
    out = np.arange(1, width) >= np.asarray(real)[:, None]
    for line, places in zip(out, starts, strict=True):
        for place in places or ():
            if place:
                line[place - 1] = True
    return out


def _masked(
    samples: Sequence[Mapping[str, Any]],
    batch: Tokens,
    real: list[int],
    mask: LossMask | None,
    ignored: Bools | None,
    ignore: int,
) -> npt.NDArray[np.int64]:
    """Return the targets, int64[n, width - 1], with the ignored ones replaced by `ignore`."""
    targets: npt.NDArray[np.int64] = batch[:, 1:].astype(np.int64)
    if mask is not None and mask.scope == "row":
        targets = np.where(mask(targets) == mask.ignore, ignore, targets)
    elif mask is not None:
        kept = np.zeros(batch.shape, np.bool_)
        for number, (sample, row, count) in enumerate(zip(samples, batch, real, strict=True)):
            places = _starts(sample, count)
            if places is None:
                known = getattr(sample, "starts", None)  # a window locates its documents even without the fields
                places = [0] if known is None else [place for place in known() if place < count]
            kept[number, :count] = mask.learned(sample, row[:count], places, number)
        targets = np.where(kept[:, 1:], targets, ignore)
    if ignored is not None:
        targets = np.where(ignored, ignore, targets)
    return targets


def _field(name: str, values: list[Any], rows: list[Tokens], real: list[int], width: int) -> Any:
    """Return a further field of all rows, cut to match inputs of ``width - 1`` tokens."""
    if name == "tokens" and all(value is not None and not _array(value).ndim for value in values):
        return np.minimum(np.asarray(real, np.int64), width - 1)
    if any(value is None for value in values):
        return values
    if name in ENDS:
        together = ends_together(values, width - 1)
        return values if together is None else together
    if not all(isinstance(value, np.ndarray | np.number | int | float) or _is_tensor(value) for value in values):
        return values
    arrays = [_array(value) for value in values]
    if all(array.ndim == 1 and len(array) == len(row) for array, row in zip(arrays, rows, strict=True)):
        return _together(arrays, width, 0)[:, :-1]
    alike = all(array.shape == arrays[0].shape and array.dtype == arrays[0].dtype for array in arrays)
    return np.stack(arrays) if alike and arrays[0].dtype != object else values
