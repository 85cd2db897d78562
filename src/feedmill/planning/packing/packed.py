"""Packed plans: their positions are rows of tokens, windows or packed documents of another plan's stream.

Rows with samples that have `lengths` are lists of samples, `SampleRow`. Other rows hold tokens.

Rows of tokens are read as samples, or as columns of a batch. If files are mapped, inputs and targets are made in the
pass that reads the tokens: a kernel copies each span of a document from its file to its place in the batch. Otherwise a
batch of rows is laid out, filled, and read again for its targets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset, TokenReader
from feedmill.formats.batches import INPUTS, TARGETS, Columns, Shifted, Want
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.offsets import Extents
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.shifted import FlatSpans
from feedmill.jobs.buffers import empty
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.kernels.rows import lay_out, lay_out_shifted, shift_spans
from feedmill.planning.nodes import Located
from feedmill.planning.nodes.base import LONGEST, render, tree_of
from feedmill.planning.nodes.groups import groups_in
from feedmill.planning.nodes.skip import Gaps
from feedmill.planning.packing import best_fit, windows
from feedmill.planning.packing.documents import Documents, IntArray
from feedmill.planning.packing.options import CONCAT_VERSION, FIELDS, Packing
from feedmill.planning.packing.phases import Phase, Phases
from feedmill.planning.packing.segments import FOLDER
from feedmill.planning.packing.spans import LocatedSpans, Placements, Spans
from feedmill.planning.packing.whole import (
    Kept,
    fit,
    kept_samples,
    long_documents,
    ranges_of,
    whole_samples,
)
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Bases, Plan
from feedmill.planning.report import PackedReport, RowsOfWidth, WholeSamples, held
from feedmill.samples.counted import CountedDataset
from feedmill.samples.rows import SampleRow
from feedmill.storage.folders import cache_folder

GROUP_IDS = FIELDS[-2:]


class PackedPlan(Plan):
    """A pure function from rows to tokens. Can be used wherever a `Plan` can; its positions are the rows.

    The number of rows is known once the whole stream of documents has been planned: at the first call that needs it, or
    from the sidecar of an earlier run. An endless stream is planned as far as rows are requested.

    Args:
        documents: the plan of documents; the indexes of its datasets must have lengths in tokens.
        packing: how documents become rows.
        cache: folder of the sidecar; `storage.folders.cache_folder()` by default. Needs 8 bytes per row and about 12
            per document for best_fit, almost nothing for concat.
        where: ``file:line`` for error messages about the packing.
        skip: rows that are skipped.

    Attributes:
        documents: the plan of documents.
        packing: how they become rows.
        width: tokens in a full row; of rows of several widths (`Packing.later`), in the widest. See `widths`.
        of_samples: whether a source has `lengths`; rows are then of the type `SampleRow`.

    Raises:
        ConfigError: the lengths of a dataset are unknown, the documents have no tokens, or the plan is already packed.
    """

    reads_apart = False

    def __init__(
        self,
        documents: Plan,
        packing: Packing,
        cache: Path | None = None,
        *,
        where: str | None = None,
        skip: Gaps | None = None,
    ) -> None:
        if isinstance(documents, PackedPlan):
            raise ConfigError("rows cannot be packed again", kind="bad-recipe", fix="Pack the documents themselves.")
        super().__init__(documents.node, documents.sources, documents.names, documents.seed)
        self.documents, self.loss, self.proxy, self.units = documents, documents.loss, documents.proxy, documents.units
        self.packing = packing
        self._cache, self._where, self._skip = cache, where, skip
        self._landmark: dict[str, Any] = {}
        self._fits: dict[str, list[list[Fraction]]] = {}
        self.stream = Documents(documents, tuple(packing.limits))
        end = self.stream.length
        self._phases = [each for each in packing.phases if end is None or each[0] < end]
        self._kept = [self._kept_of(number) for number in range(len(self._phases))]
        self.of_samples = bool(self.stream.samples)
        self._grouped = {leaf for node in groups_in(documents.node) for leaf in node.leaves} | set(self.stream.samples)
        for start, how in self._phases if packing.method == "best_fit" else ():
            if self.stream.whole(start) != start:
                raise ConfigError(
                    f"the rows of {how.seq_len:,} tokens begin at document {start:,}, inside a group",
                    file=where,
                    kind="bad-recipe",
                    fix=f"Begin that stage a multiple of the size of groups later, or at {self.stream.whole(start):,}.",
                )
        folder = (cache_folder() if cache is None else cache) / FOLDER
        parts = [Phase(*self._range(number), self._map(folder, number)) for number in range(len(self._phases))]
        self._values  # noqa: B018 - a source that lacks one is an error here
        self.map = parts[0].map if len(parts) == 1 else Phases(parts)
        self.width = self.map.width

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle the arguments only: the other process maps the sidecar itself."""
        if self.again is not None:
            made = super().__reduce_ex__(protocol)
        else:
            made = partial(PackedPlan, where=self._where, skip=self._skip), (self.documents, self.packing, self._cache)
        return (_at_landmark, (*made[:2], self._landmark)) if self._landmark else made

    @cached_property
    def whole(self) -> tuple[WholeSamples, ...]:
        """The lengths and media of each source whose samples have `lengths`, and what is dropped of it."""
        several, ranges = len(self._phases) > 1, ranges_of(self.documents.node)
        return tuple(
            replace(each, name=f"{each.name} in rows of {how.seq_len:,} tokens") if several else each
            for (_, how), kept in zip(self._phases, self._kept, strict=True)
            for each in (
                *whole_samples(self.stream, kept),
                *long_documents(self.stream, how, {n: own for n, own in ranges.items() if n not in self._grouped}),
            )
        )

    @property
    def skip(self) -> Gaps | None:
        """The skipped rows, or None."""
        return self._skip

    def skipping(self, ranges: Iterable[tuple[int, int]], text: str = "") -> PackedPlan:
        """Return this plan without the given ranges ``(first, stop)`` of rows; the packing does not change.

        Raises:
            ConfigError: a range is empty or outside the plan, or no row would remain.
        """
        gaps = Gaps(ranges, LONGEST if self.length is None else self.length, text)
        plan = PackedPlan(self.documents, self.packing, self._cache, where=self._where, skip=gaps)
        plan.dealing, plan.transform, plan.collate = self.dealing, self.transform, self.collate
        return plan

    @property
    def length(self) -> int | None:
        """The number of rows, or None if the plan is endless. Packs the whole of a finite stream.

        Raises:
            ConfigError: there are no rows, or fewer than `Packing.rows`.
        """
        return self._rows if self._rows is None or self._skip is None else self._rows - self._skip.count

    @cached_property
    def _rows(self) -> int | None:
        asked = self.packing.rows
        if asked is not None and self.map.has(asked - 1):
            return asked
        if self.documents.length is None:
            return None
        total = self.map.total
        if asked is not None or total == 0:
            raise ConfigError(
                f"{self.documents.length:,} documents give {total:,} rows" + (f", not {asked:,}" if asked else ""),
                file=self._where,
                kind="too-few-samples",
                fix=f"Use at most 'rows: {total}', or more epochs." if total else self._no_rows(),
            )
        return total

    def _no_rows(self) -> str:
        if self.packing.method == "concat":
            return "Choose a smaller seq_len."
        dropped = "; with 'long: drop' one of them must fit into seq_len" if self.packing.long == "drop" else ""
        return f"Check that the documents have tokens{dropped}."

    def bookmark(self, position: int) -> dict[str, Any]:
        """See `Plan.bookmark`; with where planning can begin for this row, if it must read documents.

        Without it, another machine would have to read all documents before the row; and without the tokens of the
        rows before, for the first account of sources.
        """
        counted = {"counted_by": self.counted_by} if self.of_samples else {}
        if not self.stream.counted_on_read or position == 0:
            return {**super().bookmark(position), **counted}
        row = position - 1 if self._skip is None else int(self._skip.inward(np.array([position - 1]))[0])
        landmark = self.map.landmark(row)
        before = self.map.tokens_before(landmark) if isinstance(self.map, best_fit.BestFit) else None
        packed = {} if before is None else {"packed": list(before)}
        return {**super().bookmark(position), **counted, "packing": [self._landmark_key, *landmark], **packed}

    @property
    def counted_by(self) -> dict[str, str]:
        """Return what counts the samples of sources with `lengths`, such as ``processor of NAME``."""
        return self.stream.counted_by

    def use_landmark(self, state: Mapping[str, Any]) -> None:
        """Begin planning where the state of a loader says, if it is of the same rows."""
        saved = state.get("packing")
        if isinstance(saved, list) and len(saved) >= 3 and saved[0] == self._landmark_key:
            packed = state.get("packed")
            self._landmark = {"packing": saved, "packed": packed}
            if not all(type(number) is int and number >= 0 for number in saved[1:]):
                return
            if isinstance(self.map, best_fit.BestFit):
                known = isinstance(packed, list) and len(packed) == 2 and all(type(each) is int for each in packed)
                self.map.begin_at(saved[1:], (packed[0], packed[1]) if known and packed is not None else None)
            else:
                self.map.begin_at(saved[1:])

    @property
    def _landmark_key(self) -> str:
        """Return what identifies the rows that a landmark is of."""
        keys = [self._key(number) for number in range(len(self._phases))]
        if len(keys) == 1:
            return keys[0]
        widths = [how.seq_len for _, how in self._phases]  # the sums of windows do not depend on them
        return hashlib.blake2b(repr((keys, widths)).encode(), digest_size=16).hexdigest()

    def widths(self, rows: npt.ArrayLike) -> IntArray:
        """Return the tokens in each row, int64[n], if it is full.

        Raises:
            NotFound: a row outside ``[0, length)``.
        """
        asked = self._checked(rows)
        if not isinstance(self.map, Phases):
            return np.full(len(asked), self.width, np.int64)
        return self.map.widths(asked if self._skip is None else self._skip.inward(asked))

    def _width_of(self, positions: npt.ArrayLike) -> int | None:
        """Return the tokens in each of some rows; None if they have several widths."""
        if not isinstance(self.map, Phases):
            return self.width
        found = np.unique(self.widths(positions)).tolist()
        return None if len(found) > 1 else found[0] if found else self.width

    @property
    def borders(self) -> tuple[int, ...]:
        """Return the rows, without skipped ones, from which rows have another width than before.

        Packs the documents of all rows before the last of them.
        """
        if not isinstance(self.map, Phases):
            return ()
        end = self.packing.rows
        firsts = [first for first in self.map.firsts[1:] if end is None or first < end]
        return tuple(first if self._skip is None else first - self._skip.skipped(first) for first in firsts)

    def spans(self, rows: npt.ArrayLike) -> Spans:
        """Return the spans of documents in rows, in the order of the row.

        Raises:
            NotFound: a row outside ``[0, length)``.
        """
        asked = self._checked(rows)
        return self.map.spans(asked if self._skip is None else self._skip.inward(asked))

    def locate_spans(self, rows: npt.ArrayLike) -> LocatedSpans:
        """Return `spans` with the source, sample number and epoch of each span's document. Raises as `spans` does."""
        spans = self.spans(rows)
        return LocatedSpans(spans, self.documents.node.locate(spans.position))

    def amounts(self, found: LocatedSpans) -> npt.NDArray[np.float64]:
        """Return how much of what weights count each span has, float64[n]: its tokens; loss tokens if they count these.

        A part of a document has as large a share of its loss tokens as of its tokens.
        """
        amounts = found.spans.length.astype(np.float64)
        if self.units is not None and self.units.unit == LOSS_TOKENS:
            placed = self._read_from(found).located
            for number in np.unique(placed.source).tolist():
                dataset, of_it = self.bases.datasets[number], np.flatnonzero(placed.source == number)
                learned, tokens = dataset.costs(LOSS_TOKENS), dataset.lengths
                assert learned is not None and tokens is not None  # the weights count them
                index = placed.index[of_it]
                amounts[of_it] *= learned[index] / np.maximum(tokens[index], 1)
        return amounts

    def placements(self, positions: npt.ArrayLike) -> Placements:
        """Return the rows of documents, given by their positions in the plan of documents; the inverse of `spans`.

        Rows beyond `length` are included; a skipped row is -1. Documents without tokens, and dropped tokens, are in no
        row.
        """
        found = self.map.placements(self.documents._checked(positions))
        return found if self._skip is None else replace(found, row=self._skip.outward(found.row))

    def locate(self, positions: npt.ArrayLike) -> Located:
        """Return source, sample number and epoch of the first document in each row: int32[n], int64[n], int64[n]."""
        spans = self.spans(positions)
        return self.documents.node.locate(spans.position[spans.row_offsets[:-1]])

    def extents(self, positions: npt.ArrayLike, located: Located | None = None) -> list[Extents]:  # noqa: ARG002
        rows_at = self._read_from(self.locate_spans(positions))
        spans, placed = rows_at.spans, rows_at.located
        row = np.repeat(np.arange(len(spans)), np.diff(spans.row_offsets))
        extents_of_files: list[Extents] = []
        for number in np.unique(placed.source).tolist():
            dataset, of_it = self.bases.datasets[number], np.flatnonzero(placed.source == number)
            if dataset.is_remote and isinstance(dataset, CountedDataset):
                extents_of_files += [extents.of_samples(row[of_it]) for extents in dataset.extents(placed.index[of_it])]
            elif dataset.is_remote and isinstance(dataset, TokenDataset):
                asked = placed.index[of_it], spans.start[of_it], spans.length[of_it]
                extents_of_files += [extents.of_samples(row[of_it]) for extents in dataset.extents_of_tokens(*asked)]
        return extents_of_files

    def _read_from(self, rows_at: LocatedSpans) -> LocatedSpans:
        """Return the documents of rows as those of the datasets that are read, `Plan.bases`."""
        return replace(rows_at, located=self.bases.read_from(rows_at.located)) if self.bases else rows_at

    def positions_of(self, source: int | str, indices: Sequence[int], within: int | None = None) -> IntArray:
        """Return all rows that hold a token of the samples, in order, int64[n]. See `Plan.positions_of`."""
        end = self._budget(within)
        rows = np.unique(self.placements(self._documents_of(source, indices, end)).row)
        return rows[(rows >= 0) & (rows < (LONGEST if end is None else end))]

    def documents_of(self, source: int | str, index: int, within: int | None = None) -> IntArray:
        """Return the positions of a sample in the plan of documents, for the documents of the first `within` rows."""
        return self._documents_of(source, [index], self._budget(within))

    def _documents_of(self, source: int | str, indices: Sequence[int], end: int | None) -> IntArray:
        return self.documents.positions_of(source, indices, None if end is None else self.map.reach(self._after(end)))

    def locate_ahead(self, positions: npt.ArrayLike) -> None:
        """Return None: rows are read by their spans."""

    def locate_batches(self, positions: npt.ArrayLike) -> LocatedSpans | None:
        """Return the spans of the rows of several batches at once, for `read_batch`; None if that would read documents.

        Locating a batch has the fixed cost of locating thousands of documents.
        """
        return None if self.stream.counted_on_read else self.locate_spans(positions)

    def locate_to_read(self, positions: npt.ArrayLike) -> LocatedSpans:
        """Return the locations that `read` needs for these rows, so that a caller can share them."""
        return self.locate_spans(positions)

    def read_batch(self, positions: npt.ArrayLike, want: Want, located: Any = None) -> Columns | None:
        """Return the fields of `read` as columns, ``cu_seqlens`` as one array. None if rows can have several widths."""
        if want == "fields" or self._shorter or self.of_samples:
            return None
        rows_at = located if isinstance(located, LocatedSpans) else self.locate_spans(positions)
        width = self._width_of(positions)
        if width is None:
            return None
        if isinstance(want, Shifted) and want.key == "input_ids":
            rows_at = self._read_from(rows_at)
            found = shifted_rows(self.bases.datasets, rows_at, width, self.packing.pad, want)
            if found is not None:
                return {**found, **self._by_token(rows_at, width)}
            return self._columns(rows_at, width)
        return self._columns(self._read_from(rows_at), width)

    def read(self, positions: npt.ArrayLike, located: Located | LocatedSpans | None = None) -> list[Any]:
        """Return the rows in the requested order: as a `SampleRow` each if a source has `lengths`, otherwise as dicts.

        The fields of a dict are ``input_ids`` int64[width], ``positions`` int32[width] (from 0 in each span),
        ``cu_seqlens`` int32 (the start of each span, and the end; padding counts as one more span), and ``tokens``, the
        number of tokens without padding. If a source has loss masks, ``loss_mask`` is bool[width]: which tokens
        contribute to the loss. Tokens of other sources do, and padding does not. If a source has groups, ``group_ids``
        and ``member_ids`` are int32[width]: the number of each token's group in its row, and the number of its document
        in the group, as stored; -1 for padding. Single documents are groups of one. The columns of `Packing.values` are
        float32[width]: the value of each token's document, 0 for padding.

        Raises:
            ConfigError: a dataset has no tokens to read.
            DataError: a dataset returned a different number of tokens than its index says.
        """
        rows_at = located if isinstance(located, LocatedSpans) else self.locate_spans(positions)
        if self.of_samples:
            return self._sample_rows(rows_at, self.widths(positions))
        rows_at = self._read_from(rows_at)
        width = self._width_of(positions)
        if width is not None:
            return self._rows_of(rows_at, width)
        rows: list[Any] = []
        widths = self.widths(positions)
        for first, stop in pairwise([0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(widths)]):
            rows += self._rows_of(rows_at[first:stop], int(widths[first]))
        return rows

    def _rows_of(self, rows_at: LocatedSpans, width: int) -> list[Any]:
        """Return rows of tokens of one width. The documents are those of `bases`."""
        columns, pieces = self._columns(rows_at, width), continued(self.bases.datasets, rows_at)
        columns["cu_seqlens"] = rows_at.spans.cu_seqlens(width)
        rows = []
        for row, tokens in enumerate(columns["tokens"].tolist()):
            fields = {name: values[row] for name, values in columns.items()}
            fields["tokens"] = tokens
            if self._shorter and tokens < width:
                fields = {
                    name: value[:-1] if name == "cu_seqlens" else value if name == "tokens" else value[:tokens]
                    for name, value in fields.items()
                }
            rows.append(Row(fields, pieces.get(row, {})))
        return rows

    def _sample_rows(self, rows_at: LocatedSpans, widths: IntArray) -> list[SampleRow]:
        """Return rows of samples, with one bulk read per source in stored order."""
        spans, located = rows_at.spans, rows_at.located
        samples: list[Any] = [None] * len(located.source)
        keys = [""] * len(samples)
        order = np.lexsort((spans.start, located.index, located.source))
        for group in np.split(order, np.flatnonzero(np.diff(located.source[order])) + 1) if len(order) else ():
            number = int(located.source[group[0]])
            whole = self.stream.samples.get(number)
            if whole is not None:
                read, names = whole.read_keyed(located.index[group])
            else:
                dataset = self.sources[number]
                read = documents_of(dataset, LocatedSpans(_some(spans, group), located[group]))
                names = [dataset.locate(index).key for index in located.index[group].tolist()]
            for place, sample, key in zip(group.tolist(), read, names, strict=True):
                samples[place], keys[place] = sample, key
        places = spans.places(self.packing.multiple)
        lengths, sources = spans.length.astype(np.int32), [self.names[number] for number in located.source.tolist()]
        bounds = spans.row_offsets.tolist()
        ids = self._groups_of(spans) if self.stream.grouped else None
        return [
            SampleRow(
                samples[a:b],
                lengths[a:b],
                np.concatenate(([0], np.cumsum(places[a:b]))).astype(np.int32),
                width,
                keys[a:b],
                sources[a:b],
                self.packing.multiple,
                self.packing.mismatch,
                *((None, None) if ids is None else (each[a:b].astype(np.int32) for each in ids)),
            )
            for (a, b), width in zip(pairwise(bounds), widths.tolist(), strict=True)
        ]

    def unreadable(self, row: int) -> int | None:
        """Return the place in a row of the first document that cannot be read alone; None if all can."""
        spans, located = self.locate_spans([row])
        widths = self.widths([row])
        for place in range(len(spans.length)):
            own = slice(place, place + 1)
            alone = LocatedSpans(_some(spans, np.array([place])), located[own])
            try:
                if self.of_samples:
                    self._sample_rows(alone, widths)
                else:
                    self._columns(self._read_from(alone), int(widths[0]))
            except Exception:  # a dataset may raise anything
                return place
        return None

    @property
    def _shorter(self) -> bool:
        """Return whether the last row of a width can be shorter than the others."""
        return self.packing.method == "concat" and self.packing.last == "keep"

    def _columns(self, rows_at: LocatedSpans, width: int) -> dict[str, Any]:
        """Return the fields of whole rows of one width as arrays. The documents are those of `bases`."""
        spans, shape = rows_at.spans, (len(rows_at.spans), width)
        tokens = empty(shape, np.int64)
        layout = lay_out(spans.row_offsets, spans.length, tokens, self.packing.pad, empty(shape, np.int32))
        masks = np.zeros(shape, np.bool_) if self._masked else None
        fill_spans(
            self.bases.datasets, rows_at, layout.to, tokens.reshape(-1), None if masks is None else masks.reshape(-1)
        )
        lengths = spans.row_lengths
        columns = {"input_ids": tokens, "positions": layout.positions, "cu_seqlens": layout.ends, "tokens": lengths}
        columns |= self._by_token(rows_at, width)
        return columns if masks is None else {**columns, "loss_mask": masks}

    def _by_token(self, rows_at: LocatedSpans, width: int) -> dict[str, Any]:
        """Return what documents have, for each of their tokens: [rows, width]. The documents are those of `bases`.

        That is the number of their group in the row and of the member of the group, int32, -1 for padding, but not for
        windows, which cut groups; and `Packing.values`, float32, 0 for padding.
        """
        spans = rows_at.spans
        found: dict[str, tuple[npt.NDArray[Any], int]] = {}
        if self.stream.grouped and self.packing.method == "best_fit":
            found |= {n: (ids.astype(np.int32), -1) for n, ids in zip(GROUP_IDS, self._groups_of(spans), strict=True)}
        for name, values in self._values.items():
            numbers = np.empty(len(spans.length), np.float32)
            for home in np.unique(rows_at.located.source).tolist():
                mine = np.flatnonzero(rows_at.located.source == home)
                numbers[mine] = values[home][rows_at.located.index[mine]]
            found[name] = numbers, 0
        if not found:
            return {}
        rows, before = np.repeat(np.arange(len(spans)), np.diff(spans.row_offsets)), bounds_of(spans.length)
        slots = ranges(rows * width + before[:-1] - before[spans.row_offsets[rows]], spans.length)
        out = {}
        for name, (numbers, padding) in found.items():
            by_token = out[name] = np.full((len(spans), width), padding, numbers.dtype)
            by_token.reshape(-1)[slots] = np.repeat(numbers, spans.length)
        return out

    @cached_property
    def _values(self) -> dict[str, list[npt.NDArray[Any]]]:
        """The columns of `Packing.values`, of each dataset of `bases`.

        Raises:
            ConfigError: a source lacks one, or rows are of samples.
            DataError: a value is missing or NaN.
        """
        if self.packing.values and self.of_samples:
            raise ConfigError(
                "'values' are for rows of tokens: rows of samples have all fields of their samples",
                file=self._where,
                kind="bad-recipe",
                fix="Remove 'values'.",
            )
        out: dict[str, list[npt.NDArray[Any]]] = {}
        for name in self.packing.values:
            for home, dataset in enumerate(self.bases.datasets):
                values = dataset.values(name)
                if values is None:
                    source = self.names[int(np.argmax(self.bases.home == home))]
                    raise ConfigError(
                        f"the source {source!r} has no column {name!r} for 'values' of rows (its numeric fields:"
                        f" {', '.join(dataset.cost_fields) or 'none'})",
                        file=self._where,
                        kind="no-column",
                        fix=dataset.costs_advice(name),
                    )
                out.setdefault(name, []).append(values)
        return out

    def _groups_of(self, spans: Spans) -> tuple[IntArray, IntArray]:
        """Return for each span the number of its group in the row, and the member of it, int64[spans] both."""
        place, member = self.documents.node.places(spans.position)
        group = bounds_of(place == 0)
        rows = np.repeat(np.arange(len(spans)), np.diff(spans.row_offsets))
        return group[1:] - 1 - group[spans.row_offsets[rows]], member

    @cached_property
    def _masked(self) -> bool:
        """Return whether a source has loss masks."""
        return any(getattr(dataset, "masks", None) is not None for dataset in self.sources)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the plan of documents, of their lengths, and of the packing."""
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        parts = {**self.stream.fingerprints, "packing": self.packing.order(), "padding": str(self.packing.pad)}
        if self.packing.method == "best_fit" or self.packing.last != "drop":
            # The end of the stream affects the packing of the last buffer, or the last window.
            parts["documents"] = "endless" if self.documents.length is None else f"{self.documents.length:,}"
        return parts if self._skip is None else {**parts, "skip": self._skip.text}

    def _after(self, total: int) -> int:
        """Return the row after the first `total`, counted without the skip list."""
        return total if self._skip is None else self._skip.after(total)

    def report(self, samples: int | None = None) -> PackedReport:
        """Return the fill of the first `samples` rows or of the whole plan, with the report of their documents."""
        total = self._budget(samples)
        if total is None:
            inner = self.documents.report(None)
            return PackedReport(
                self.length,
                None,
                inner.sources,
                inner.stages,
                None,
                self.width,
                None,
                None,
                whole=self.whole,
                proxy=inner.proxy,
                unit=inner.unit,
            )
        rows = self._after(total)
        inner = self.documents.report(self.map.reach(rows))
        widths = self._widths_of(rows)
        tokens, left_out = sum(each.tokens for each in widths), sum(each.left_out for each in widths)
        fits = self._fit(rows, "tokens"), self._fit(rows, LOSS_TOKENS)
        sources = held(inner.sources, self._held(rows), tokens, *fits)
        media = self._media(rows) if self.of_samples else None
        found = PackedReport(
            self.length,
            total,
            sources,
            inner.stages,
            inner.total,
            self.width,
            tokens,
            left_out,
            None if media is None else media / max(total, 1),
            self.whole,
            self.map.used_up(rows),
            tuple(widths) if isinstance(self.map, Phases) else (),
            unit=inner.unit,
        )
        if self.proxy is None:
            return found
        return self.proxy.compared(found, self.node, sum(source.drawn or 0 for source in sources))

    def _media(self, rows: int) -> float:
        """Return the images, videos and sounds in the first rows, an expected value."""
        begun = self.map.begun(rows) if isinstance(self.map, Phases) else [(Phase(0, None, self.map), 0, rows)]
        total = 0.0
        for (phase, _, own), kept in zip(begun, self._kept, strict=False):
            counts = self._drawn_in(phase.held(own))
            found = [pair for pair in zip(kept, whole_samples(self.stream, kept), strict=True) if pair[1].media]
            total += sum(w.media * w.kept / w.samples * round(counts[number]) for number, w in found)
        return total

    def _widths_of(self, rows: int) -> list[RowsOfWidth]:
        """Return the rows of each width among the first `rows` rows, which are counted without the skip list."""
        if not isinstance(self.map, Phases):
            tokens, left_out = self.map.counts(rows)
            skipped = 0 if self._skip is None else self._skip.skipped(rows)
            tokens -= self._skipped_tokens(0, rows)
            return [RowsOfWidth(0, rows - skipped, self.width, self.documents.length, tokens, left_out)]
        out, before = [], 0
        for phase, first, count in self.map.begun(rows):
            tokens, left_out = self.map.counts_of(phase, count)
            skipped = 0 if self._skip is None else self._skip.skipped(first + count) - self._skip.skipped(first)
            tokens -= self._skipped_tokens(first, first + count)
            documents = phase.map.reach(count)
            out.append(RowsOfWidth(before, count - skipped, phase.map.width, documents, tokens, left_out))
            before += count - skipped
        return out

    def drawn(self, samples: int) -> list[int]:
        """Return how many documents of each source the first `samples` rows hold.

        Of the last buffer, whose rows are shuffled, as large a share is counted as there are rows of it.
        """
        return [round(count) for count in self._held(self._after(samples))]

    def _fit(self, rows: int, by: str) -> list[Fraction]:
        """Return for each source the share of its tokens that `long` and the limits of rows do not drop.

        With rows of several widths, it is the mean over the documents that the first rows hold.

        Args:
            rows: counted without the skip list.
            by: ``tokens``, or ``loss_tokens``: those that contribute to the loss.
        """
        if self.packing.method == "concat" or (by == LOSS_TOKENS and self.loss is None):
            return [Fraction(1)] * len(self.sources)
        if by not in self._fits:
            ranges = ranges_of(self.documents.node)
            self._fits[by] = [
                [
                    fit(self.stream, how, number, *ranges.get(number, (0, 0)), kept.get(number), by)
                    for number in range(len(self.sources))
                ]
                for (_, how), kept in zip(self._phases, self._kept, strict=True)
            ]
        if not isinstance(self.map, Phases):
            return self._fits[by][0]
        counts, kept = [Fraction(0)] * len(self.sources), [Fraction(0)] * len(self.sources)
        for (phase, _, own), fits in zip(self.map.begun(rows), self._fits[by], strict=False):
            for number, (count, share) in enumerate(zip(self._drawn_in(phase.held(own)), fits, strict=True)):
                counts[number] += count
                kept[number] += count * share
        return [part / whole if whole else Fraction(1) for part, whole in zip(kept, counts, strict=True)]

    def _held(self, rows: int) -> list[Fraction]:
        """Return `drawn` with fractions of documents."""
        return self._drawn_in(self.map.held(rows))

    def _drawn_in(self, ranges: Sequence[tuple[int, int, Fraction]]) -> list[Fraction]:
        """Return the documents of each source in ranges of the stream, of each of which a share counts."""
        counts = [Fraction(0)] * len(self.sources)
        for low, high, share in ranges:
            pairs = zip(self.documents.drawn(low), self.documents.drawn(high), strict=True)
            counts = [have + (behind - before) * share for have, (before, behind) in zip(counts, pairs, strict=True)]
        return counts

    def _skipped_tokens(self, first: int, stop: int) -> int:
        """Return the tokens in the skipped rows of a range."""
        if self._skip is None:
            return 0
        total, count = 0, self._skip.skipped(stop)
        for start in range(self._skip.skipped(first), count, 4096):
            spans = self.map.spans(self._skip.nth(np.arange(start, min(start + 4096, count))))
            total += int(spans.length.sum())
        return total

    def __str__(self) -> str:
        size = "endless" if self.length is None else f"{self.length:,} rows"
        inner = tree_of(self.node, self.names)
        widths = ", then ".join(f"{phase.width:,}" for phase in self._maps)
        head = f"packed plan, {size} of {widths} tokens, seed {self.seed}"
        head += "" if self.proxy is None else f", {self.proxy}"
        how = self.packing.order() + ("" if self._skip is None else f", skip {self._skip.text}")
        return render((head, [(how, [inner])]))

    def __repr__(self) -> str:
        return f"<PackedPlan: {self.packing.order()}, {len(self.sources)} sources, {self.fingerprint}>"

    @property
    def _maps(self) -> list[best_fit.BestFit | windows.Windows]:
        """Return the map of each width."""
        return [phase.map for phase in self.map.phases] if isinstance(self.map, Phases) else [self.map]

    def _range(self, number: int) -> tuple[int, int | None]:
        """Return the documents of a width: the first, and the end."""
        stops = [start for start, _ in self._phases[1:]]
        return self._phases[number][0], stops[number] if number < len(stops) else self.stream.length

    def _kept_of(self, number: int) -> dict[int, Kept]:
        """Return which samples the rows of a width can hold, of the sources that are drawn for them."""
        (start, stop), how = self._range(number), self._phases[number][1]
        drawn = None
        if (self.stream.samples or self.stream.grouped) and len(self._phases) > 1:
            until = LONGEST if stop is None else stop
            pairs = zip(self.documents.drawn(start), self.documents.drawn(until), strict=True)
            drawn = {source for source, (before, behind) in enumerate(pairs) if behind > before}
        return kept_samples(self.stream, how, self._where, drawn)

    def _map(self, folder: Path, number: int) -> best_fit.BestFit | windows.Windows:
        """Return the map of the rows of a width."""
        how, (start, stop) = self._phases[number][1], self._range(number)
        folder = folder / self._key(number)
        documents = self.stream if len(self._phases) == 1 else self.stream.part(start, stop)
        if how.method == "concat":
            return windows.Windows(documents, folder, how.seq_len, how.overlap, how.last)
        return best_fit.BestFit(
            documents,
            folder,
            how.capacity,
            how.long,
            how.buffer,
            derive(self.seed, "pack", start) if start else derive(self.seed, "pack"),
            width=how.seq_len,
            multiple=how.multiple,
            limits=how.limits,
        )

    def _key(self, number: int) -> str:
        """Return the name of the sidecar of a width: a hash of everything that determines its contents."""
        how, (start, stop) = self._phases[number][1], self._range(number)
        sums = f"sums {CONCAT_VERSION}" + (" on read" if self.stream.counted_on_read else "")
        order = sums if how.method == "concat" else how.order()
        length = None if stop is None else stop - start
        contents = [self.stream.fingerprints, length, order, *([start] if start else [])]
        text = json.dumps(contents, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _at_landmark(
    make: Callable[..., PackedPlan], arguments: tuple[Any, ...], landmark: Mapping[str, Any]
) -> PackedPlan:
    plan = make(*arguments)
    plan.use_landmark(landmark)
    return plan


class Row(dict[str, Any]):
    """A row of a `PackedPlan`: its fields, and access to the earlier tokens of documents that continue in it."""

    def __init__(self, fields: dict[str, Any], pieces: dict[int, tuple[Dataset, int, int]]) -> None:
        super().__init__(fields)
        self._pieces = pieces

    def before(self, place: int, most: int) -> npt.NDArray[Any]:
        """Return the last `most` tokens of the document at this place of the row that precede the row."""
        if place not in self._pieces:
            return np.zeros(0, np.int64)
        dataset, index, start = self._pieces[place]
        low = max(start - most, 0)
        (tokens,) = read_tokens(dataset, np.array([index]), np.array([low]), np.array([start - low]))
        return tokens


def documents_of(dataset: Dataset, spans_at: LocatedSpans) -> list[dict[str, Any]]:
    """Return spans of documents of a token dataset as samples: ``input_ids``, int64[tokens], and a stored loss mask.

    Raises:
        ConfigError: the dataset has no tokens to read.
        DataError: it returned another number of tokens than its index says.
    """
    bounds = bounds_of(spans_at.spans.length)
    tokens = empty((int(bounds[-1]),), np.int64)
    masks = None if getattr(dataset, "masks", None) is None else np.zeros(len(tokens), np.bool_)
    one = replace(spans_at.located, source=np.zeros_like(spans_at.located.source))
    bases = Bases([dataset])
    fill_spans(bases.datasets, LocatedSpans(spans_at.spans, bases.read_from(one)), bounds[:-1], tokens, masks)
    rows = [{"input_ids": tokens[a:b]} for a, b in pairwise(bounds.tolist())]
    if masks is not None:
        for row, (a, b) in zip(rows, pairwise(bounds.tolist()), strict=True):
            row["loss_mask"] = masks[a:b]
    return rows


def _some(spans: Spans, chosen: IntArray) -> Spans:
    """Return some spans as those of one row."""
    return Spans(np.array([0, len(chosen)]), spans.position[chosen], spans.start[chosen], spans.length[chosen])


def fill_spans(
    sources: Sequence[Dataset],
    rows_at: LocatedSpans,
    to: IntArray,
    tokens: IntArray,
    masks: npt.NDArray[np.bool_] | None,
) -> None:
    """Copy tokens and masks of all spans to the flattened rows, with one bulk read per source in stored order."""
    spans, located = rows_at.spans, rows_at.located
    order = np.lexsort((spans.start, located.index, located.source))
    groups = np.split(order, np.flatnonzero(np.diff(located.source[order])) + 1)
    for group in groups if len(order) else ():
        dataset = sources[int(located.source[group[0]])]
        asked = located.index[group], spans.start[group], spans.length[group]
        if isinstance(dataset, TokenDataset):
            dataset.fill(*asked, to[group], tokens, masks)
            continue
        for span, found in zip(group.tolist(), read_tokens(dataset, *asked), strict=True):
            if len(found) != spans.length[span]:
                raise _wrong_length(dataset, located, spans, span, len(found))
            tokens[to[span] : to[span] + len(found)] = found
            if masks is not None:
                masks[to[span] : to[span] + len(found)] = True


def continued(sources: Sequence[Dataset], rows_at: LocatedSpans) -> dict[int, dict[int, tuple[Dataset, int, int]]]:
    """Return for each row the spans that do not begin their document: place -> dataset, sample, first token."""
    out: dict[int, dict[int, tuple[Dataset, int, int]]] = {}
    spans = rows_at.spans
    numbers = np.flatnonzero(spans.start)
    if not len(numbers):
        return out
    located = rows_at.located[numbers]
    rows = np.searchsorted(spans.row_offsets, numbers, side="right") - 1
    begins = bounds_of(spans.length)
    at = begins[numbers] - begins[spans.row_offsets[rows]]
    columns = (rows, at, located.source, located.index, spans.start[numbers])
    for row, place, source, index, start in zip(*(column.tolist() for column in columns), strict=True):
        out.setdefault(row, {})[place] = sources[source], index, start
    return out


def read_tokens(
    dataset: Dataset, indices: IntArray, starts: IntArray, lengths: IntArray
) -> Sequence[npt.NDArray[np.integer[Any]]]:
    """Return tokens ``[start, start + length)`` of each document of a token dataset, int64[n] all three.

    Raises:
        ConfigError: the dataset has no tokens to read.
    """
    if not isinstance(dataset, TokenReader):
        raise ConfigError(
            "this dataset has lengths in tokens, but no tokens",
            file=dataset.url,
            kind="no-tokens",
            fix="Tokenize it, and use the token files in the recipe.",
        )
    return dataset.read_tokens(indices, starts, lengths)


def _wrong_length(dataset: Dataset, located: Located, spans: Spans, span: int, found: int) -> DataError:
    start, length = int(spans.start[span]), int(spans.length[span])
    return DataError(
        f"tokens {start} to {start + length} were requested, {found} were read",
        file=dataset.url,
        record=str(int(located.index[span])),
        kind="bad-costs",
        fix="The index does not match the tokens: rebuild it.",
    )


def shifted_rows(
    sources: Sequence[Dataset], rows_at: LocatedSpans, width: int, pad: int, want: Shifted
) -> Columns | None:
    """Return inputs and targets of rows, with the fields of `PackedPlan.read` for the inputs.

    Args:
        sources: the datasets of the plan.
        rows_at: the spans of the rows.
        width: tokens in a row.
        pad: the padding token.
        want: how targets are made.

    Returns:
        None if a dataset has no mapped tokens, or a span is not in its document: the caller reports which one.

    Raises:
        DataError: a file has become shorter since it was opened.
    """
    spans, located = rows_at.spans, rows_at.located
    if width < 2:
        return None
    files = _files(sources, rows_at)
    if files is None:
        return None
    shape = (len(spans), width - 1)
    inputs, targets, positions = empty(shape, np.int64), empty(shape, np.int64), empty(shape, np.int32)
    layout = lay_out_shifted(spans.row_offsets, spans.length, pad, want.ignore, inputs, targets, positions)
    columns = (located.index, spans.start, spans.length, layout.rows, layout.columns)
    for file in files:
        document, start, length, row, column = (
            columns if file.rows is None else [values[file.rows] for values in columns]
        )
        document = document if file.documents is None else file.documents
        asked, places = (document, start, length), (row, column)
        if (
            shift_spans(file.tokens, file.loss, file.bounds, asked, places, want.ignore, want.borders, inputs, targets)
            >= 0
        ):
            return None
    about = {"positions": positions, "cu_seqlens": layout.ends, "tokens": layout.real}
    return {INPUTS: inputs, TARGETS: targets, **about}


def _files(sources: Sequence[Dataset], rows_at: LocatedSpans) -> list[FlatSpans] | None:
    """Return the files of the spans, with the spans of each; None if one of them cannot be read so."""
    source, index = rows_at.located.source, rows_at.located.index
    numbers = [0] if len(sources) == 1 else np.flatnonzero(np.bincount(source)).tolist()
    found: list[FlatSpans] = []
    for number in numbers:
        dataset = sources[number]
        if not isinstance(dataset, TokenDataset):
            return None
        rows = None if len(numbers) == 1 else np.flatnonzero(source == number)
        files = dataset.flat_spans(index if rows is None else index[rows])
        if files is None:
            return None
        for file in files:
            within = rows if file.rows is None else file.rows if rows is None else rows[file.rows]
            found.append(file._replace(rows=within))
    return found
