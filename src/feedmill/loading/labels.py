"""Labels: the source, epoch and position of each sample in a batch.

Use them to compute the loss of each source, or to look up a sample again.

    loader = Loader(plan, batch_size=32, labels=True)
    for batch in loader:
        loss = ...                                  # of each sample, or of each token of packed rows
        print(loader.labels.mean(loss))             # {"web": 2.31, "code": 1.07}

Labels are computed from the plan, where the batch is made, and not from the contents of the batch. So no transform,
collate function or packing hook can lose them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.loading.plan import PlanLike
from feedmill.planning.dealing.grid import Step

FIELD = "__labels__"
_DEFAULTS: dict[str, Callable[[int], Any]] = {
    "row": np.arange,
    "mask": lambda size: np.ones(size, np.bool_),
    "substituted": lambda size: np.zeros(size, np.bool_),
}
"""Columns with the same values in most batches: functions of the number of entries."""
_COLUMNS = ("row", "position", "source", "index", "epoch", "mask", "substituted", "tokens")


class Labels:
    """Origin of the samples of one batch: columns with one entry per sample.

    An entry is a sample of the batch. For packed rows, it is one of the documents in a row, in the order of
    ``cu_seqlens``; for packs made by a task encoder, one of the samples of a pack. Entries are in the order of rows.
    The columns are numpy arrays, or tensors on the CPU with ``output="torch"``.

    Attributes:
        names: name of each source, the same tuple for every batch; empty if the plan has no names.
        rows: rows of the batch: samples, packed rows, or packs.
        row: row of the batch that the entry is in, int64[n].
        position: position in the loader's plan, int64[n]. If the plan packs rows, the position of the row.
        source: number of the source, int32[n]; ``names[source]`` is its name.
        index: number of the sample in its source, int64[n].
        epoch: number of times that the sample occurred before, int64[n].
        mask: False for samples that only pad the last batch (``remainder="pad"``), bool[n].
        substituted: whether a substitute replaces the sample at the position, bool[n]. The position is then the planned
            one, and source, index and epoch are those of the substitute, which is from the same source.
        tokens: tokens of the document in its row, int64[n]; None if the plan does not pack.
        multiple: slots that a document takes are a multiple of it, see `feedmill.tokens.Packing`.
        width: tokens of a packed row; 0 if the plan does not pack.
    """

    multiple = 1
    width = 0

    row: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    index: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    substituted: npt.NDArray[np.bool_]
    tokens: npt.NDArray[np.int64] | None

    def __init__(self, rows: int, columns: dict[str, Any], names: tuple[str, ...] = ()) -> None:
        self.rows, self.names = rows, names
        self._columns, self._tensors = columns, False

    def __getattr__(self, name: str) -> Any:
        """Return a column. Columns are computed on first access, because most loops use few of them."""
        if name not in _COLUMNS:
            raise AttributeError(f"labels have no attribute {name!r}")
        values = self.array(name)
        if self._tensors and values is not None:
            import torch

            if not (values.flags.writeable and values.flags.c_contiguous):  # tensors must be both
                values = values.copy()
            values = torch.from_numpy(values)
        setattr(self, name, values)
        return values

    def array(self, name: str) -> Any:
        """Return a column as a numpy array, even if the attribute is a tensor."""
        values = self._columns.get(name)
        if values is None and name in _DEFAULTS:
            values = self._columns[name] = _DEFAULTS[name](len(self))
        return values

    def __len__(self) -> int:
        return len(self._columns["position"])

    def __repr__(self) -> str:
        sources = len(np.unique(self.array("source")))
        return f"<Labels: {len(self)} samples of {sources} sources in {self.rows} rows>"

    def mean(self, values: Any, mask: Any = None, *, by: str | None = None) -> dict[str, float]:
        """Return the mean of a loss or another value for each source of the batch, by the name of the source.

        Sources without a value are absent. If the plan has no names, the number as text is the name.

        Args:
            values: as for `sums`.
            mask: as for `sums`.
            by: a column of cells, whose values are then the names; or ``dataset``, for the names without the cell.
                Other sources keep their names.

        Raises:
            ConfigError: as `sums`; or no source is a cell with such a column.
        """
        totals, counts = self.sums(values, mask)
        if by is not None:
            return self._means_by(by, totals, counts)
        present = np.flatnonzero(counts)
        means = (totals[present] / counts[present]).tolist()
        names = [self.names[number] if self.names else str(number) for number in present.tolist()]
        return dict(zip(names, means, strict=True))

    def _means_by(self, by: str, totals: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> dict[str, float]:
        """Return means over all cells with the same value of a column."""
        found: dict[str, list[float]] = {}
        for name, total, count in zip(values_of(self.names, by), totals.tolist(), counts.tolist(), strict=True):
            sums = found.setdefault(name, [0.0, 0])
            sums[0], sums[1] = sums[0] + total, sums[1] + count
        return {name: total / count for name, (total, count) in found.items() if count}

    def sums(self, values: Any, mask: Any = None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return sum and number of values for each source, to be added up over ranks and steps.

        Samples that only pad a batch, and the padding of packed rows, are skipped.

        Args:
            values: array or tensor, on any device, [rows] (one per row) or [rows, tokens] (one per token of each row).
                There may be fewer tokens than in the rows, because inputs and targets are one shorter. If each row
                holds one sample, more dimensions are allowed. Packed rows that became one, as
                `feedmill.tokens.collate_rows` makes them, are [1, rows * width] or [rows * width], or one token less.
            mask: bool, of the same shape: which values count, for example ``targets != -100``. Default: all.

        Returns:
            The sums, float64[sources], and the numbers of values, int64[sources].

        Raises:
            ConfigError: shapes that do not match, or one value for a row that holds several samples.
        """
        losses = _floats(values)
        counted = None if mask is None else _numpy(mask).astype(bool)
        joined = self._is_joined(losses.shape)
        if (
            losses.ndim == 0
            or (losses.shape[0] != self.rows and not joined)
            or (counted is not None and counted.shape != losses.shape)
        ):
            raise ConfigError(
                f"values of shape {list(losses.shape)}"
                + ("" if counted is None else f" with a mask of shape {list(counted.shape)}")
                + f" do not fit labels of {self.rows} rows: expected [{self.rows}] or [{self.rows}, tokens]",
                kind="bad-batch",
                fix='Compute the loss with reduction="none", and pass the values of the whole batch.',
            )
        if joined:
            sources = self.of_tokens(self.width).reshape(-1)[: losses.size].reshape(losses.shape)
        elif losses.ndim == 2 and self.array("tokens") is not None:
            sources = self.of_tokens(losses.shape[1])
        else:
            sources = np.broadcast_to(self._of_rows().reshape(-1, *[1] * (losses.ndim - 1)), losses.shape)
        counts = sources >= 0 if counted is None else (sources >= 0) & counted
        numbers, size = sources[counts], len(self.names)
        return np.bincount(numbers, losses[counts], size).astype(np.float64), np.bincount(numbers, minlength=size)

    def _is_joined(self, shape: tuple[int, ...]) -> bool:
        """Return whether values are those of all tokens of packed rows that became one, or all but the last."""
        tokens = self.rows * self.width
        if self.rows < 2 and len(shape) == 2:
            return False
        return len(shape) in (1, 2) and tokens > 1 and shape[-1] in (tokens, tokens - 1) and shape[:-1] in ((), (1,))

    def of_tokens(self, width: int) -> npt.NDArray[np.int32]:
        """Return the source of each token, int32[rows, width]: -1 for padding of packed rows and for padding rows.

        Args:
            width: tokens per row; tokens beyond it are ignored.

        Raises:
            ConfigError: packs of a task encoder, because the tokens of their samples are unknown.
        """
        row, tokens = self.array("row"), self.array("tokens")
        if tokens is None:
            return np.repeat(self._of_rows(), width).reshape(self.rows, width)
        begins = self._columns.get("start")
        if begins is None:
            places = -(-tokens // self.multiple) * self.multiple
            ends = np.cumsum(places)
            firsts = np.searchsorted(row, np.arange(self.rows))
            begins = ends - places - (ends - places)[firsts][row]
        kept = np.clip(width - begins, 0, tokens)
        out = np.full(self.rows * width, -1, np.int32)
        from feedmill.kernels.bounds import ranges

        out[ranges(row * width + begins, kept)] = np.repeat(self._sources, kept)
        return out.reshape(self.rows, width)

    def of_rows(self, numbers: Sequence[int]) -> Labels:
        """Return the labels of some rows, which become rows 0, 1, ... in that order."""
        chosen = np.asarray(numbers, np.int64)
        begins = np.searchsorted(self.array("row"), np.arange(self.rows + 1))
        counts = begins[chosen + 1] - begins[chosen]
        from feedmill.kernels.bounds import ranges

        at = ranges(begins[chosen], counts)
        columns = {name: None if values is None else values[at] for name, values in self._columns.items()}
        columns["row"] = np.repeat(np.arange(len(chosen)), counts)
        labels = Labels(len(chosen), columns, self.names)
        labels.multiple, labels.width = self.multiple, self.width
        return labels

    def placed(self, starts: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Set where the documents are, and their tokens, if a collate function has moved them.

        Args:
            starts: first token of each document, counted in its row, int64[n].
            tokens: tokens of each, int64[n].
        """
        self._columns |= {"start": starts, "tokens": tokens}

    def finish(self, names: tuple[str, ...], tensors: bool, copied: bool) -> None:
        """Prepare the labels for the training loop: set names and tensors, and copy out of shared memory."""
        self.names, self._tensors = names, tensors
        if copied:
            self._columns = {name: None if values is None else values.copy() for name, values in self._columns.items()}

    @property
    def _sources(self) -> npt.NDArray[np.int32]:
        """Return the source of each entry, int32[n]: -1 for padding."""
        return np.where(self.array("mask"), self.array("source"), np.int32(-1))

    def _of_rows(self) -> npt.NDArray[np.int32]:
        """Return the source of each row, int32[rows]. Raises ConfigError if a row holds several samples."""
        if np.array_equal(self.array("row"), np.arange(self.rows)):
            return self._sources
        if self.array("tokens") is not None:
            what = "a row holds several documents, so one value per row has no single source"
            fix = "Give one value per token: [rows, tokens]."
        else:
            what = "a pack holds several samples, and only the task encoder knows which tokens belong to which sample"
            fix = "Use labels.row and labels.source with the lengths of the samples in pack_selected_samples."
        raise ConfigError(what, kind="bad-batch", fix=fix)


def values_of(names: Sequence[str], by: str) -> list[str]:
    """Return the value of each cell in a column, by the names of sources; other sources keep their names.

    Args:
        names: names of the sources.
        by: the column; or ``dataset``, for the names without the cell.

    Raises:
        ConfigError: no source is a cell with such a column.
    """
    found, cells = [], False
    for name in names:
        dataset, bracket, rest = name.partition("[")
        values = dict(pair.partition("=")[::2] for pair in rest.removesuffix("]").split(",")) if bracket else {}
        values["dataset"] = dataset
        cells |= bool(bracket) and by in values
        found.append(values.get(by, name) if bracket else name)
    if not cells:
        raise ConfigError(
            f"no source of this plan is a cell with the column {by!r}",
            kind="no-such-source",
            fix=f"Its sources: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}.",
        )
    return found


def of_packs(packs: Sequence[Labels]) -> Labels:
    """Return the labels of a batch whose rows are packs of samples: row i holds the samples of ``packs[i]``."""
    columns = {name: np.concatenate([pack.array(name) for pack in packs]) for name in _COLUMNS[1:-1]}
    row = np.repeat(np.arange(len(packs)), [len(pack) for pack in packs])
    return Labels(len(packs), {**columns, "row": row, "tokens": None})


class Labeler:
    """Factory of labels, called wherever batches are made: in any thread or process.

    Args:
        plan: maps positions to samples.
    """

    def __init__(self, plan: PlanLike) -> None:
        self._plan = plan

    def located(self, step: Step) -> Any:
        """Return the lookup that labels and `plan.read` share; None if reading does its own lookup."""
        return self._plan.locate_to_read(step.positions) if step.located is None else step.located

    def __call__(self, step: Step, located: Any, substitutes: Mapping[int, int]) -> Labels:
        """Return the labels of a step's batch, without names.

        Args:
            located: the result of `located` for the step.
            substitutes: planned position -> position of the substitute.
        """
        positions = step.positions
        columns: dict[str, Any] = {"position": positions}
        if step.length is not None and step.stop > step.length:
            columns["mask"] = step.mask
        if substitutes:
            actual = np.array([substitutes.get(at, at) for at in positions.tolist()], np.int64)
            columns["substituted"] = positions != actual
            located = self._plan.locate_to_read(actual)
        if located is None:
            located = self._plan.locate(actual if substitutes else positions)
        from feedmill.planning.packing.spans import LocatedSpans

        if isinstance(located, LocatedSpans):
            row = np.repeat(np.arange(len(positions)), np.diff(located.spans.row_offsets))
            columns = {name: values[row] for name, values in columns.items()}
            columns |= {"row": row, "tokens": located.spans.length}
            located = located.located
        columns |= {"source": located.source, "index": located.index, "epoch": located.epoch}
        labels = Labels(len(positions), columns)
        packing = getattr(self._plan, "packing", None)
        if packing is not None:
            widths = getattr(self._plan, "widths", None)
            labels.multiple, labels.width = packing.multiple, getattr(self._plan, "width", 0)
            if widths is not None and len(positions):
                labels.width = int(widths(positions[:1])[0])  # a batch has one width
        return labels


class SampleRows:
    """Lookup of the samples that a task encoder selects from a window, by object identity: hooks return no numbers.

    Args:
        samples: samples of the window; they must live as long as this object.
    """

    def __init__(self, samples: Sequence[Any]) -> None:
        self._rows: dict[int, deque[int]] = {}
        for row, sample in enumerate(samples):
            self._rows.setdefault(id(sample), deque()).append(row)

    def of(self, pack: Sequence[Any]) -> list[int]:
        """Return the indices of a pack's samples. An object that occurs several times gets each index once, in order.

        Raises:
            ConfigError: an object is not one of the samples.
        """
        rows = []
        for sample in pack:
            waiting = self._rows.get(id(sample))
            if waiting is None:
                raise ConfigError(
                    "select_samples_to_pack returned an object that it did not receive, so its label is unknown",
                    kind="bad-hook",
                    fix="Return lists of the same objects, not of copies, or omit 'labels'.",
                )
            rows.append(waiting.popleft() if len(waiting) > 1 else waiting[0])
        return rows


class Labeled:
    """Labels of the last batch that a loader yielded.

    Args:
        plan: the plan, with the names of the sources.
        tensors: whether columns are tensors.
        copied: whether to copy the columns out of memory shared with workers, so that labels that the training loop
            keeps do not keep a whole batch alive.
    """

    def __init__(self, plan: PlanLike, *, tensors: bool, copied: bool) -> None:
        self._names = tuple(plan.names)
        self._tensors, self._copied = tensors, copied
        self._last: Labels | None = None

    @property
    def last(self) -> Labels:
        """Return the labels. Raises ConfigError before the first batch."""
        if self._last is None:
            raise ConfigError(
                "this loader has yielded no batch yet, so there are no labels",
                kind="unsupported",
                fix="Read the labels after the first batch.",
            )
        return self._last

    def finish(self, labels: Labels, batch: Any) -> None:
        """Prepare labels for the training loop, and add them to the batch if it is a dict.

        Raises:
            ConfigError: the batch already has a field of that name.
        """
        labels.finish(self._names, self._tensors, self._copied)
        if isinstance(batch, dict):
            if not isinstance(batch.get(FIELD, labels), Labels):
                raise ConfigError(
                    f"the batch already has a field {FIELD!r}, which labels=True would overwrite",
                    kind="bad-batch",
                    fix="Rename that field, or omit 'labels'.",
                )
            batch[FIELD] = labels

    def keep(self, labels: Labels | None) -> None:
        """Store the labels of the batch that is yielded next."""
        self._last = labels


def _numpy(values: Any) -> npt.NDArray[Any]:
    """Return an array or a tensor on any device as an array. Does not import torch."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _floats(values: Any) -> npt.NDArray[np.float64]:
    """Return the values as a float64 array, also from types that NumPy does not have (bfloat16)."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, np.float64)
