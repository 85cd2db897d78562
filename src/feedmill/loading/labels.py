"""Which sample of which source stands in each row of a batch: for the loss of each source, and to find a sample again.

    loader = Loader(plan, batch_size=32, labels=True)
    for batch in loader:
        loss = ...                                  # of each sample, or of each token of packed rows
        print(loader.labels.mean(loss))             # {"web": 2.31, "code": 1.07}

Labels are made of what the plan says, where the batch is made, and not of the batch. So no transform, collate function
or packing hook can lose them.
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
from feedmill.planning.packing.spans import LocatedSpans, ranges

FIELD = "__labels__"
_MADE: dict[str, Callable[[int], Any]] = {
    "row": np.arange,
    "mask": lambda size: np.ones(size, np.bool_),
    "substituted": lambda size: np.zeros(size, np.bool_),
}
"""Columns that are the same for most batches, by the number of entries."""
_COLUMNS = ("row", "position", "source", "index", "epoch", "mask", "substituted", "tokens")


class Labels:
    """Where the samples of one batch come from: columns with an entry for each sample.

    An entry is a sample of the batch; of packed rows it is one of the documents in a row, in the order of
    ``cu_seqlens``; of packs that a task encoder makes, one of the samples of a pack. Entries are in the order of rows.
    The columns are numpy arrays, and with ``output="torch"`` tensors on the CPU.

    Attributes:
        names: name of each source, the same tuple for every batch; empty if the plan has no names.
        rows: rows of the batch: samples, packed rows, or packs.
        row: row of the batch that the entry is in, int64[n].
        position: position in the loader's plan, int64[n]. Where rows are packed by the plan, that of the row.
        source: number of the source, int32[n]; ``names[source]`` is its name.
        index: number of the sample in its source, int64[n].
        epoch: how often that sample came before, int64[n].
        mask: False for samples that only fill up the last batch (``remainder="pad"``), bool[n].
        substituted: whether a substitute stands in at the position, bool[n]. The position is then the planned one, and
            source, index and epoch are the substitute's; its source is the same.
        tokens: tokens of the document in its row, int64[n]; None if the plan does not pack.
    """

    row: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    index: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    substituted: npt.NDArray[np.bool_]
    tokens: npt.NDArray[np.int64] | None

    def __init__(self, rows: int, columns: dict[str, Any], names: tuple[str, ...] = (), tensors: bool = False) -> None:
        self.rows, self.names = rows, names
        self._columns, self._tensors = columns, tensors

    def __getattr__(self, name: str) -> Any:
        """Return a column: most loops look at few of them, so each is made when it is first asked for."""
        if name not in _COLUMNS:
            raise AttributeError(f"labels have no attribute {name!r}")
        values = self.array(name)
        if self._tensors and values is not None:
            import torch

            if not (values.flags.writeable and values.flags.c_contiguous):  # as tensors must be
                values = values.copy()
            values = torch.from_numpy(values)
        setattr(self, name, values)
        return values

    def array(self, name: str) -> Any:
        """Return a column as a numpy array, also where the attribute is a tensor."""
        found = self._columns.get(name)
        if found is None and name in _MADE:
            found = self._columns[name] = _MADE[name](len(self))
        return found

    def __len__(self) -> int:
        return len(self._columns["position"])

    def __repr__(self) -> str:
        sources = len(np.unique(self.array("source")))
        return f"<Labels: {len(self)} samples of {sources} sources in {self.rows} rows>"

    def mean(self, values: Any, mask: Any = None) -> dict[str, float]:
        """Mean of a loss (or of anything else) for each source of the batch, by the source's name.

        Sources without a value are absent. Where the plan has no names, the name is the number as text.

        Args:
            values: as for `sums`.
            mask: as for `sums`.

        Raises:
            ConfigError: as `sums`.
        """
        totals, counts = self.sums(values, mask)
        present = np.flatnonzero(counts)
        means = (totals[present] / counts[present]).tolist()
        names = [self.names[number] if self.names else str(number) for number in present.tolist()]
        return dict(zip(names, means, strict=True))

    def sums(self, values: Any, mask: Any = None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Sum and number of values for each source: float64[sources], int64[sources]. Add them up over ranks and steps.

        Samples that only fill up a batch, and padding of packed rows, are skipped.

        Args:
            values: array or tensor, on any device, [rows] (one per row) or [rows, tokens] (one per token of each row).
                The tokens may end before the rows do, as inputs and targets are one shorter than rows. Where a row
                holds one sample there may be more dimensions.
            mask: bool, of the same shape: which values count, for example ``targets != -100``. All by default.

        Raises:
            ConfigError: shapes that do not fit, or one value for a row that holds several samples.
        """
        found = _floats(values)
        counted = None if mask is None else _numpy(mask).astype(bool)
        if found.ndim == 0 or found.shape[0] != self.rows or (counted is not None and counted.shape != found.shape):
            raise ConfigError(
                f"values of shape {list(found.shape)}"
                + ("" if counted is None else f" with a mask of shape {list(counted.shape)}")
                + f" do not fit labels of {self.rows} rows: expected [{self.rows}] or [{self.rows}, tokens]",
                kind="bad-shape",
                fix='Compute the loss with reduction="none", and give the values of the whole batch.',
            )
        if found.ndim == 2 and self.array("tokens") is not None:
            sources = self.of_tokens(found.shape[1])
        else:
            sources = np.broadcast_to(self._of_rows().reshape(-1, *[1] * (found.ndim - 1)), found.shape)
        counts = sources >= 0 if counted is None else (sources >= 0) & counted
        numbers, size = sources[counts], len(self.names)
        return np.bincount(numbers, found[counts], size).astype(np.float64), np.bincount(numbers, minlength=size)

    def of_tokens(self, width: int) -> npt.NDArray[np.int32]:
        """Source of each token, int32[rows, width]: -1 for padding of packed rows, and in rows that only fill up.

        Args:
            width: tokens in a row; what documents have behind that is cut off.

        Raises:
            ConfigError: packs of a task encoder, whose samples' tokens are not known.
        """
        row, tokens = self.array("row"), self.array("tokens")
        if tokens is None:
            return np.repeat(self._of_rows(), width).reshape(self.rows, width)
        ends = np.cumsum(tokens)
        firsts = np.searchsorted(row, np.arange(self.rows))
        begins = ends - tokens - (ends - tokens)[firsts][row]
        kept = np.clip(width - begins, 0, tokens)
        out = np.full(self.rows * width, -1, np.int32)
        out[ranges(row * width + begins, kept)] = np.repeat(self._sources, kept)
        return out.reshape(self.rows, width)

    def of_rows(self, numbers: Sequence[int]) -> Labels:
        """Return the labels of some rows, which become rows 0, 1, ... in that order."""
        chosen = np.asarray(numbers, np.int64)
        begins = np.searchsorted(self.array("row"), np.arange(self.rows + 1))
        counts = begins[chosen + 1] - begins[chosen]
        at = ranges(begins[chosen], counts)
        columns = {name: None if values is None else values[at] for name, values in self._columns.items()}
        columns["row"] = np.repeat(np.arange(len(chosen)), counts)
        return Labels(len(chosen), columns, self.names)

    def finish(self, names: tuple[str, ...], tensors: bool, copied: bool) -> None:
        """Make them what the training loop gets: with names, as tensors, and out of memory that workers share."""
        self.names, self._tensors = names, tensors
        if copied:
            self._columns = {name: None if values is None else values.copy() for name, values in self._columns.items()}

    @property
    def _sources(self) -> npt.NDArray[np.int32]:
        """Source of each entry, -1 where it only fills up."""
        return np.where(self.array("mask"), self.array("source"), np.int32(-1))

    def _of_rows(self) -> npt.NDArray[np.int32]:
        """Source of each row, int32[rows]. Raises ConfigError if a row holds several samples."""
        if np.array_equal(self.array("row"), np.arange(self.rows)):
            return self._sources
        if self.array("tokens") is not None:
            what, fix = "a row holds several documents, so one value for it has no source", "Give [rows, tokens]."
        else:
            what = "a pack holds several samples, and only the task encoder knows which of its tokens are whose"
            fix = "Use labels.row and labels.source with the lengths that pack_selected_samples has seen."
        raise ConfigError(what, kind="bad-shape", fix=fix)


def of_packs(packs: Sequence[Labels]) -> Labels:
    """Return the labels of a batch whose rows are packs of samples: row i holds the samples of ``packs[i]``."""
    columns = {name: np.concatenate([pack.array(name) for pack in packs]) for name in _COLUMNS[1:-1]}
    row = np.repeat(np.arange(len(packs)), [len(pack) for pack in packs])
    return Labels(len(packs), {**columns, "row": row, "tokens": None})


class Labeler:
    """Makes the labels of batches where these are made, in any thread or process.

    Args:
        plan: says where positions lead.
    """

    def __init__(self, plan: PlanLike) -> None:
        self._plan = plan

    def located(self, step: Step) -> Any:
        """What labels and `plan.read` both need, so that it is looked up once; None if reading looks up itself."""
        return self._plan.locate_to_read(step.positions) if step.located is None else step.located

    def __call__(self, step: Step, located: Any, substitutes: Mapping[int, int]) -> Labels:
        """Return the labels of a step's batch, without names.

        Args:
            located: what `located` gave for it.
            substitutes: planned position -> position whose sample stands in.
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
        if isinstance(located, LocatedSpans):
            row = np.repeat(np.arange(len(positions)), np.diff(located.spans.row_offsets))
            columns = {name: values[row] for name, values in columns.items()}
            columns |= {"row": row, "tokens": located.spans.length}
            located = located.located
        columns |= {"source": located.source, "index": located.index, "epoch": located.epoch}
        return Labels(len(positions), columns)


class Places:
    """Which samples of a window a task encoder has chosen: known by the objects, as hooks give these and no numbers.

    Args:
        samples: of the window; they must live as long as this does.
    """

    def __init__(self, samples: Sequence[Any]) -> None:
        self._places: dict[int, deque[int]] = {}
        for place, sample in enumerate(samples):
            self._places.setdefault(id(sample), deque()).append(place)

    def of(self, pack: Sequence[Any]) -> list[int]:
        """Their places among the samples. Of one object that stands at several places, each is given once, in order.

        Raises:
            ConfigError: one of them is none of the samples.
        """
        places = []
        for sample in pack:
            waiting = self._places.get(id(sample))
            if waiting is None:
                raise ConfigError(
                    "select_samples_to_pack gave an object that it was not given, so its label is unknown",
                    kind="bad-hook",
                    fix="Give lists of the objects themselves, not of copies, or leave 'labels' out.",
                )
            places.append(waiting.popleft() if len(waiting) > 1 else waiting[0])
        return places


class Labeled:
    """The labels of the batch that a loader gave out last.

    Args:
        plan: its `names` are those of the sources.
        tensors: give the columns as tensors.
        copied: columns lie in memory that workers share, and are copied: labels that are kept must keep no batch.
    """

    def __init__(self, plan: PlanLike, *, tensors: bool, copied: bool) -> None:
        self._names = tuple(plan.names)
        self._tensors, self._copied = tensors, copied
        self._last: Labels | None = None

    @property
    def last(self) -> Labels:
        """The labels. Raises ConfigError before the first batch."""
        if self._last is None:
            raise ConfigError(
                "this loader has given out no batch yet, so there are no labels",
                kind="no-labels",
                fix="Ask for them after a batch.",
            )
        return self._last

    def finish(self, labels: Labels, batch: Any) -> None:
        """Make labels what the training loop gets, and put them into the batch, where that is a dict.

        Raises:
            ConfigError: the batch has another field of that name.
        """
        labels.finish(self._names, self._tensors, self._copied)
        if isinstance(batch, dict):
            if not isinstance(batch.get(FIELD, labels), Labels):
                raise ConfigError(
                    f"the batch has a field {FIELD!r} of its own, which labels=True would overwrite",
                    kind="bad-batch",
                    fix="Give that field another name, or leave 'labels' out.",
                )
            batch[FIELD] = labels

    def keep(self, labels: Labels | None) -> None:
        """They are those of the batch that is given out now."""
        self._last = labels


def _numpy(values: Any) -> npt.NDArray[Any]:
    """Return an array, or a tensor on any device; torch is not imported for it."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _floats(values: Any) -> npt.NDArray[np.float64]:
    """As `_numpy`, float64: also of types that NumPy does not have (bfloat16)."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, np.float64)
