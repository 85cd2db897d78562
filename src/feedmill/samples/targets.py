"""Make inputs and targets from rows of tokens: windows, packed rows, and documents of any length.

    loader = Loader(plan, batch_size=32, collate=Targets(document_ids=True))

A recipe can hold the same settings under ``targets``. `with_targets` is the short form for a list of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.batches import INPUTS, TARGETS, Shifted, Want
from feedmill.formats.sample import Sample
from feedmill.jobs.buffers import empty
from feedmill.kernels.rows import targets_of
from feedmill.samples.rows import SampleRow

Int64s = npt.NDArray[np.int64]
ENDS = ("cu_seqlens", "boundaries")
"""Fields of a row with the offsets of its documents and its end: [0, ..., width]."""


def ends_together(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return ``cu_seqlens`` or ``boundaries`` of several rows as one array [n, k]; None for other values.

    Rows with fewer entries repeat the last one, which adds empty sequences.
    """
    if not values or any(not isinstance(row, np.ndarray) or row.ndim != 1 or not len(row) for row in values):
        return None
    if any(row.dtype.kind not in "iu" for row in values):
        return None
    out = np.empty((len(values), max(map(len, values))), values[0].dtype)
    for line, row in zip(out, values, strict=True):
        line[: len(row)], line[len(row) :] = row, row[-1]
    return out


def until(ends: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return offsets [n, k] of rows that all end at `width`, without empty sequences before it.

    Longer rows are truncated, and the rest of a shorter row counts as one more sequence.

    >>> until(np.array([[0, 3, 9], [0, 5, 5]]), 7).tolist()
    [[0, 3, 7], [0, 5, 7]]
    """
    longer = np.concatenate((np.minimum(ends, width), np.full((len(ends), 1), width, ends.dtype)), axis=1)
    kept = np.ones(longer.shape, np.bool_)
    kept[:, 1:] = longer[:, 1:] > longer[:, :-1]
    place = np.cumsum(kept, axis=1) - 1
    out = np.full((len(ends), int(place.max(initial=0)) + 1), width, ends.dtype)
    row, column = np.nonzero(kept)
    out[row, place[row, column]] = longer[row, column]
    return out


def begins_of(ends: npt.NDArray[Any], real: Int64s, width: int) -> npt.NDArray[np.bool_]:
    """Return where documents begin, bool[n, width].

    Args:
        ends: integers[n, k], offsets of the documents of each row.
        real: int64[n], where the padding of each row begins.
        width: tokens of each row.
    """
    out = np.zeros((len(ends), width), np.bool_)
    row, column = np.nonzero(ends < np.asarray(real)[:, None])
    out[row, ends[row, column]] = True
    out[:, 0] = True
    return out


Tokens = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]
_FIRST_LOOK = 1 << 12
"""Tokens read first before a row to find the last marker; each further read takes four times as many."""


@dataclass(frozen=True, slots=True)
class LossMask:
    """A loss mask that keeps the targets between a begin and an end marker, and ignores all others.

    The markers themselves are ignored. With the scope ``document``, each document is masked as a whole, wherever rows
    begin and end: a row that begins inside an answer keeps that answer, and an answer without an end marker extends to
    the end of its document (as with ``feedmill tokens merge --learn-between``). If a row does not show whether it
    begins inside an answer, the tokens of its document before the row are read.

    The scope ``row`` is that of Modalities: each row is masked on its own. A row without a begin marker or without an
    end marker is ignored entirely, and an end before its begin is an error. For a batch of one row, Feedmill and
    Modalities agree.

    Args:
        begin, end: Token ids of the markers.
        ignore: Value of ignored targets.
        scope: ``document`` or ``row``.

    Raises:
        ConfigError: Both markers are the same, or the scope is unknown.

    >>> LossMask(begin=1, end=2)(np.array([[9, 1, 8, 7, 2, 9]])).tolist()
    [[-100, -100, 8, 7, -100, -100]]
    """

    begin: int
    end: int
    ignore: int = -100
    scope: Literal["document", "row"] = "document"

    def __post_init__(self) -> None:
        if self.begin == self.end:
            raise ConfigError(
                f"the begin marker and the end marker are both {self.begin}",
                fix="Use two different token ids.",
                kind="bad-mask",
            )
        if self.scope not in ("document", "row"):
            raise ConfigError(f"unknown loss mask scope {self.scope!r}", fix="Use document or row.")

    def __call__(self, targets: Tokens) -> npt.NDArray[np.int64]:
        """Return a copy of the targets, int64[n, width], masked with the scope ``row``.

        Args:
            targets: integers[n, width].

        Raises:
            DataError: A row has an end before its begin, or two begins without an end between them. The error names
                the row and the target.
        """
        begins, ends = targets == self.begin, targets == self.end
        usable = begins.any(axis=1) & ends.any(axis=1)
        inside = np.cumsum(begins.astype(np.int8) - ends.astype(np.int8), axis=1, dtype=np.int64)
        wrong = np.argwhere(usable[:, None] & ((inside < 0) | (inside > 1)))
        if len(wrong):
            row, place = wrong[0].tolist()
            raise _bad_markers(row, place, int(inside[row, place]))
        kept = usable[:, None] & (inside == 1) & ~begins
        return np.where(kept, targets, np.int64(self.ignore)).astype(np.int64, copy=False)

    def learned(self, sample: Any, tokens: Tokens, starts: Sequence[int], number: int = 0) -> Bools:
        """Return a mask of the tokens of a row that lie inside an answer of their document.

        Args:
            sample: The row's sample. If it has a method ``before(place, most)``, the method returns the last `most`
                tokens before a position of the row that belong to the document at that position. A `Sample` without
                the method is a whole document. For anything else only the row's own markers are used.
            tokens: integers[width], the row.
            starts: Positions in the row at which documents begin, ascending from 0.
            number: Number of the row in the batch, for errors.

        Returns:
            bool[width].

        Raises:
            DataError: An end comes before its begin, or two begins have no end between them. The error names the row
                and the target.
        """
        step = (tokens == self.begin).astype(np.int64) - (tokens == self.end)
        markers = np.flatnonzero(step)
        level = np.cumsum(step)
        for at, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
            inside = self._inside(sample, at, step, markers[(markers >= at) & (markers < stop)])
            level[at:stop] += inside - (int(level[at] - step[at]) if stop > at else 0)
        wrong = np.flatnonzero((level < 0) | (level > 1))
        if len(wrong):
            raise _bad_markers(number, int(wrong[0]), int(level[wrong[0]]))
        return np.asarray((level == 1) & (tokens != self.begin), np.bool_)

    def _inside(self, sample: Any, at: int, step: npt.NDArray[np.int64], markers: npt.NDArray[np.int64]) -> int:
        """Return 1 if the document at a position is inside an answer there, otherwise 0."""
        first = int(step[markers[0]]) if len(markers) else 0
        if first > 0:
            return 0
        before = getattr(sample, "before", None)
        if before is None:
            return int(first < 0 and (at > 0 or not isinstance(sample, Sample)))
        if first < 0:  # an answer ends here: it began before the row, or the document starts here and is invalid
            return int(len(before(at, 1)) > 0)
        most = _FIRST_LOOK
        while True:
            tokens = before(at, most)
            last = np.flatnonzero((tokens == self.begin) | (tokens == self.end))
            if len(last) or len(tokens) < most:
                return int(len(last) > 0 and int(tokens[last[-1]]) == self.begin)
            most *= 4


def _bad_markers(row: int, place: int, level: int) -> DataError:
    what = "an end marker has no begin marker before it" if level < 0 else "a begin marker follows another one"
    return DataError(
        f"row {row} of the batch: {what}, at target {place}",
        kind="bad-mask",
        fix="Fix the document, or check the marker ids.",
    )


__all__ = ["IGNORE", "LossMask", "Targets", "with_targets"]

IGNORE = -100
"""Value of targets that do not contribute to the loss: the default ``ignore_index`` of torch's cross entropy."""
LOSS_MASK = "loss_mask"
"""Field of a row that tells which of its tokens contribute to the loss, as targets."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Rule by which rows become inputs (all tokens but the last) and targets (all but the first).

    A target is ignored if it is padding, if it starts another document than that of its input, if the row's
    ``loss_mask`` excludes it, or if `mask` does. Rows of different lengths are padded to the longest.

    Args:
        key: the field of the tokens.
        inputs, targets: names of the fields in the batch.
        mask: ignores targets outside of answers, by their markers. Stored masks need no setting.
        ignore_index: value of ignored targets; default: the `ignore` of the mask, or -100.
        across_documents: whether the first token of a document is a target of the previous document. By default it is
            ignored if the row locates its documents; other rows (windows opened without ``positions``) are treated as
            one stream. With False, a row that does not locate its documents is an error.
        pad: id that pads shorter rows of inputs.
        document_ids: add ``document_ids``, int32[n, w - 1]: number of each input's document in its row, from 0; -1 for
            padding.
        max_seqlen: add ``max_seqlen``, the number of inputs of the longest document of the batch, an int.

    A call takes rows of w tokens or fewer, as numpy arrays or torch tensors. The field ``tokens`` is the number of
    tokens that are not padding; ``positions`` (0 at the start of a document), ``cu_seqlens`` or ``boundaries`` locate
    the documents. It returns ``inputs`` and ``targets``, integers [n, w - 1], and every other field of the rows except
    ``loss_mask``: arrays as long as the tokens are cut like the inputs, ``tokens`` counts inputs, and ``cu_seqlens``
    and ``boundaries`` are [n, k] arrays that end at w - 1 (rows with fewer documents repeat it). If no target can be
    ignored, inputs and targets are views of one batch in the type of the rows; otherwise the targets are int64. A
    loader's windows of local token files are read straight into inputs and targets, int64 and contiguous. Tensors if
    the tokens are tensors. Rows of one token that locate their documents, such as the rest that packing keeps, are
    padded to 2, and all targets are ignored. It raises `ConfigError` if `across_documents` is False and a row does not
    locate its documents, and `DataError` if no other row has 2 tokens, or as `LossMask` does.

    >>> batch = Targets()([{"input_ids": np.array([5, 6, 7])}])
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[5, 6]], [[6, 7]])
    """

    key: str = "input_ids"
    inputs: str = "inputs"
    targets: str = "targets"
    mask: LossMask | None = None
    ignore_index: int | None = None
    across_documents: bool | None = None
    pad: int = 0
    document_ids: bool = False
    max_seqlen: bool = False

    @property
    def ignore(self) -> int:
        """The value of ignored targets."""
        if self.ignore_index is not None:
            return self.ignore_index
        return IGNORE if self.mask is None else self.mask.ignore

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of rows. Raises `ConfigError` for rows of whole samples, which have no tokens yet."""
        if any(isinstance(sample, SampleRow) for sample in samples):
            raise ConfigError(
                "targets are of rows of tokens, and these are rows of samples, which a processor makes tokens of",
                kind="bad-batch",
                fix="Remove 'targets', and collate with feedmill.tokens.collate_rows, which makes labels.",
            )
        rows = [_array(sample[self.key]) for sample in samples]
        width = _width(max(map(len, rows), default=0), samples)
        real = np.array([real_tokens(sample, len(row)) for sample, row in zip(samples, rows, strict=True)], np.int64)
        begins, located = _begins(samples, real, width)
        batch = _Batch(
            _together(rows, width, self.pad),
            real,
            begins,
            located,
            _loss(samples, rows, width),
            padded=any(
                len(row) < width or sample.get("tokens") is not None for sample, row in zip(samples, rows, strict=True)
            ),
        )
        markers = None if self.mask is None else _learned(self.mask, samples, batch)
        out = self._made(batch, markers)
        for name in dict.fromkeys(name for sample in samples for name in sample if name not in (self.key, "__key__")):
            if name != LOSS_MASK:
                out[name] = _field(name, [sample.get(name) for sample in samples], rows, real, width)
        if "tokens" not in out and any(len(row) < width for row in rows):
            out["tokens"] = np.minimum(real, width - 1)
        return _as_given(out) if _is_tensor(samples[0][self.key]) else out

    @property
    def want(self) -> Want:
        """Columns of `Dataset.read_batch` that `of_columns` can use."""
        if self.document_ids or self.max_seqlen or self.mask is not None:
            return "columns"
        return Shifted(self.key, self.ignore, not self.across_documents)

    @property
    def of_columns(self) -> Callable[[Mapping[str, Any]], dict[str, Any] | None] | None:
        """A function that makes the batch of rows from their columns; None if `mask` needs the rows.

        The batch equals that of the rows. A `Loader` uses it to make batches without an object for each row. The
        function returns None for columns that have no rectangle of 2 tokens or more.
        """
        return self._of_columns if self.mask is None else None

    def _of_columns(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        if TARGETS in columns:
            return self._of_shifted(columns)
        tokens = columns.get(self.key)
        if not isinstance(tokens, np.ndarray) or tokens.ndim != 2 or tokens.shape[1] < 2:
            return None
        count, width = tokens.shape
        real = columns.get("tokens")
        padded, real = real is not None, np.full(count, width, np.int64) if real is None else np.minimum(real, width)
        ends = next((columns[name] for name in ENDS if name in columns), None)
        begins = None
        if ends is None and (positions := columns.get("positions")) is not None:
            begins = np.asarray(positions == 0)
            begins[:, 0] = True
        located = np.full(count, begins is not None or ends is not None)
        out = self._made(_Batch(tokens, real, begins, located, columns.get(LOSS_MASK), padded, ends))
        for name, values in columns.items():
            if name in (self.key, "__key__", LOSS_MASK):
                continue
            if name == "tokens":
                out[name] = np.minimum(real, width - 1)
            elif name in ENDS:
                out[name] = until(values, width - 1)
            else:
                alike = isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == width
                out[name] = values[:, :-1] if alike else values
        return out

    def _of_shifted(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch of inputs and targets that were made while the tokens were read."""
        self._check_located("positions" in columns)
        out = {self.inputs: columns[INPUTS], self.targets: columns[TARGETS]}
        width = columns[INPUTS].shape[1]
        for name, values in columns.items():
            if name not in (INPUTS, TARGETS, "__key__"):
                out[name] = values if name == "tokens" or name in ENDS else values[:, :width]
        return out

    def _check_located(self, located: bool) -> None:
        if self.across_documents is False and not located:
            raise ConfigError(
                "a row does not locate its documents, which is required for across_documents=False",
                kind="unsupported",
                fix="Open token data with positions=True, or omit across_documents.",
            )

    def _made(self, batch: _Batch, markers: Bools | None = None) -> dict[str, Any]:
        """Return inputs, targets, and the fields about documents."""
        self._check_located(bool(batch.located.all()))
        out: dict[str, Any] = {self.inputs: batch.tokens[:, :-1], self.targets: batch.tokens[:, 1:]}
        borders = not self.across_documents and batch.located.any()
        loss = batch.loss if markers is None else markers if batch.loss is None else markers & batch.loss
        if borders or batch.padded or loss is not None:
            out[self.targets] = targets_of(
                batch.tokens,
                self.ignore,
                loss=loss,
                begins=batch.begins if borders and batch.ends is None else None,
                ends=batch.ends if borders else None,
                real=batch.real if batch.padded else None,
                out=empty(out[self.targets].shape, np.int64),
            )
        if self.document_ids or self.max_seqlen:
            numbers, longest = batch.documents()
            out |= {"document_ids": numbers} if self.document_ids else {}
            out |= {"max_seqlen": longest} if self.max_seqlen else {}
        return out


def with_targets(samples: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Return a batch of inputs and targets; see `Targets` for the options, the batch and the errors.

    >>> batch = with_targets([{"input_ids": np.array([5, 6, 7])}])
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[5, 6]], [[6, 7]])
    """
    return Targets(**options)(samples)


@dataclass(slots=True)
class _Batch:
    """Rows as arrays.

    Attributes:
        tokens: integers[n, width].
        real: int64[n], tokens of each row that are not padding.
        begins: bool[n, width], whether a document (or its padding) begins at a token; None if no row locates them, or
            for `ends`.
        located: bool[n], whether the row locates its documents.
        loss: bool[n, width], which tokens contribute to the loss; None if all do.
        padded: whether rows of this kind can have padding.
        ends: integers[n, k], the same as offsets, if all rows have them.
    """

    tokens: Tokens
    real: Int64s
    begins: Bools | None
    located: Bools
    loss: Bools | None
    padded: bool
    ends: npt.NDArray[Any] | None = None

    def documents(self) -> tuple[npt.NDArray[np.int32], int]:
        """Return the number of each input's document, int32[n, width - 1], and the inputs of the longest document."""
        width = self.tokens.shape[1] - 1
        real = np.minimum(self.real, width)
        if self.begins is None and self.ends is not None:
            begins = begins_of(self.ends, real, width)
        else:
            begins = np.zeros((len(real), width), np.bool_) if self.begins is None else self.begins[:, :-1].copy()
        begins[:, 0] = True
        numbers = np.cumsum(begins, axis=1, dtype=np.int32) - 1
        padding = np.arange(width) >= real[:, None]
        numbers[padding] = -1
        ends = np.flatnonzero((begins | _first(padding)).reshape(-1))
        lengths = np.diff(np.append(ends, begins.size))
        longest = lengths[~padding.reshape(-1)[ends]]
        return numbers, int(longest.max(initial=0))


def _first(padding: Bools) -> Bools:
    """Return where padding begins in each row."""
    out = padding.copy()
    out[:, 1:] &= ~padding[:, :-1]
    return out


def _width(longest: int, samples: Sequence[Mapping[str, Any]]) -> int:
    """Return the width of a batch: the tokens of its longest row, but 2 for a packed rest of one token."""
    if longest >= 2:
        return longest
    if longest and all(any(sample.get(name) is not None for name in (*ENDS, "positions")) for sample in samples):
        return 2  # other ranks have their batch of this step too
    raise DataError(
        f"rows of at most {longest} tokens have no target: expected at least 2 tokens",
        kind="bad-batch",
        fix="Open token data with seq_len=..., or pack it.",
    )


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


def _together(rows: Sequence[npt.NDArray[Any]], width: int, pad: Any) -> npt.NDArray[Any]:
    if all(len(row) == width for row in rows):
        return np.stack(rows)
    out = np.full((len(rows), width), pad, np.result_type(*rows))
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def real_tokens(sample: Mapping[str, Any], length: int) -> int:
    """Return the number of tokens of a row that are not padding."""
    tokens = sample.get("tokens")
    if tokens is None or _array(tokens).ndim:
        return length
    return min(int(tokens), length)


def _begins(samples: Sequence[Mapping[str, Any]], real: Int64s, width: int) -> tuple[Bools | None, Bools]:
    """Return `_Batch.begins` and `_Batch.located`."""
    located = np.zeros(len(samples), np.bool_)
    out = np.zeros((len(samples), width), np.bool_)
    for number, sample in enumerate(samples):
        ends = next((sample[name] for name in ENDS if sample.get(name) is not None), None)
        if ends is not None:
            places = _array(ends)
            out[number, places[places < real[number]]] = True
        elif sample.get("positions") is not None:
            places = _array(sample["positions"])[: real[number]]
            out[number, : len(places)] = places == 0
        else:
            continue
        located[number] = out[number, 0] = True
    return (out if located.any() else None), located


def _loss(samples: Sequence[Mapping[str, Any]], rows: list[Tokens], width: int) -> Bools | None:
    """Return the stored masks of rows, bool[n, width]; None if no row has one. Rows without one count in full."""
    masks = [sample.get(LOSS_MASK) for sample in samples]
    if all(mask is None for mask in masks):
        return None
    full = [np.ones(len(row), np.bool_) if m is None else _array(m) != 0 for m, row in zip(masks, rows, strict=True)]
    wrong = next((i for i, (mask, row) in enumerate(zip(full, rows, strict=True)) if mask.shape != row.shape), None)
    if wrong is not None:
        raise DataError(
            f"row {wrong} of the batch has {len(rows[wrong])} tokens, and a loss mask of {list(full[wrong].shape)}",
            kind="bad-mask",
            fix="Give one value per token.",
        )
    return _together(full, width, False)


def _learned(mask: LossMask, samples: Sequence[Mapping[str, Any]], batch: _Batch) -> Bools:
    """Return which tokens are inside of answers by their markers, bool[n, width]."""
    kept = np.zeros(batch.tokens.shape, np.bool_)
    if mask.scope == "row":
        targets = batch.tokens[:, 1:].astype(np.int64)
        kept[:, 1:] = mask(targets) != mask.ignore
        return kept
    for number, (sample, row, count) in enumerate(zip(samples, batch.tokens, batch.real.tolist(), strict=True)):
        if batch.located[number]:
            assert batch.begins is not None
            places = np.flatnonzero(batch.begins[number, :count]).tolist()
        else:
            known = getattr(sample, "starts", None)  # a window locates its documents even without the fields
            places = [0] if known is None else [place for place in known() if place < count]
        kept[number, :count] = mask.learned(sample, row[:count], places, number)
    return kept


def _field(name: str, values: list[Any], rows: list[Tokens], real: Int64s, width: int) -> Any:
    """Return a further field of all rows, cut to match inputs of ``width - 1`` tokens."""
    if name == "tokens" and all(value is not None and not _array(value).ndim for value in values):
        return np.minimum(real, width - 1)
    if any(value is None for value in values):
        return values
    if name in ENDS:
        together = ends_together([_array(value) for value in values])
        return values if together is None else until(together, width - 1)
    if not all(isinstance(value, np.ndarray | np.number | int | float) or _is_tensor(value) for value in values):
        return values
    arrays = [_array(value) for value in values]
    if all(array.ndim == 1 and len(array) == len(row) for array, row in zip(arrays, rows, strict=True)):
        return _together(arrays, width, 0)[:, :-1]
    alike = all(array.shape == arrays[0].shape and array.dtype == arrays[0].dtype for array in arrays)
    return np.stack(arrays) if alike and arrays[0].dtype != object else values
