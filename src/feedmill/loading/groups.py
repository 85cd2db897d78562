"""Make packs and groups with the hooks of a task encoder, from windows of the stream of samples.

A `Loader` uses this module if its task encoder packs or groups. The stream is divided into windows of `size` positions.
The result of a window (packs selected from its samples, or batches of grouped samples) depends on the window alone, and
not on ranks or workers. Rank r of R takes windows r, r + R, ... from the start of its run. A state records which
windows are used, and the number of items used. A different number of ranks first takes the windows that the states of
all ranks leave unfinished, then whole windows after them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.loading.failures import SkipSample
from feedmill.loading.labels import Labels, SampleRows, of_packs
from feedmill.loading.layout import Cursor
from feedmill.planning.dealing.grid import Step

if TYPE_CHECKING:
    from feedmill.loading.batches import BatchMaker, MadeBatch
    from feedmill.loading.encoder import TaskEncoder


class GroupMaker:
    """Factory of the items of a window: packs, or whole batches of grouped samples.

    Args:
        make: makes the list of the samples of a window.
        encoder: the task encoder whose hooks pack or group.
        batch_size: batch size of groups whose criterion returns None.
        drop: drop groups that are incomplete at the end of a window; otherwise they become smaller batches.
    """

    def __init__(self, make: BatchMaker, encoder: TaskEncoder, batch_size: int, *, drop: bool) -> None:
        self._make, self._encoder, self._batch_size, self._drop = make, encoder, batch_size, drop

    @property
    def has_user_code(self) -> bool:
        """Return True: packs and groups are made by hooks."""
        return True

    @property
    def packs(self) -> bool:
        """Return whether the items of windows are packs; if not, they are whole batches."""
        return self._encoder.packs and not self._encoder.yields_batches

    def batch(self, items: list[Any], step: Step, number: int) -> Any:
        """Return a batch of packs, the last of which is item `number` of the window `step`."""
        self._make.begin_collating(step, 4, number)
        return self._encoder.together(items)

    def again(self, items: Sequence[tuple[int, int]], window: Callable[[int], Step]) -> Any:
        """Return a batch of packs that were made before.

        Args:
            items: first position of the window of each pack, and its number there.
            window: first position -> window.
        """
        made = {first: self(window(first)) for first, _ in dict(items).items()}
        first, number = items[-1]
        return self.batch([made[begin].batch[at] for begin, at in items], made[first].step, number)

    def __call__(self, step: Step) -> MadeBatch:
        """Return the items of a window, as the `batch` of the result."""
        made = self._make(step)
        samples = self._unfolded(made) if self._encoder.unfolds else made.batch
        begun = time.perf_counter()
        self._make.begin_collating(step, 3)
        try:
            if self._encoder.packs:
                packs = self._packs(samples, made)
                made.batch = packs if self.packs else self._batches(packs, made)
            else:
                made.batch = self._groups(samples, made)
        except Exception as error:
            error.add_note(f"in the window of positions {step.first} to {step.stop - 1}")
            raise
        made.labels = None  # replaced by `item_labels`
        made.seconds["collate"] = made.seconds.get("collate", 0.0) + time.perf_counter() - begun
        return made

    @staticmethod
    def _unfolded(made: MadeBatch) -> list[Any]:
        """Return the encoded samples of a window in one list, with their labels."""
        if made.labels is not None:
            made.labels = made.labels.of_rows([row for row, several in enumerate(made.batch) for _ in several])
        return [encoded for several in made.batch for encoded in several]

    def _packs(self, samples: list[Any], made: MadeBatch) -> list[Any]:
        packs: list[Any] = []
        lookup = None if made.labels is None else SampleRows(samples)
        overridden = self._encoder.overrides("postencode_sample")  # creating a generator is slow, so not without a hook
        from feedmill.loading.encoder import with_rng

        finish = with_rng(self._encoder.postencode_sample) if overridden else None
        unfolds, several = self._encoder.yields("postencode_sample"), self._encoder.yields("pack_selected_samples")
        from feedmill.loading.batches import now

        while samples:
            try:
                selected = [pack for pack in self._encoder.select_samples_to_pack(list(samples)) if len(pack)]
            except SkipSample:
                selected = []
            chosen = Counter(id(sample) for pack in selected for sample in pack)
            unselected = [sample for sample in samples if not _drawn(chosen, id(sample))]
            if len(unselected) == len(samples):
                if selected:
                    raise ConfigError(
                        "select_samples_to_pack returned none of the samples that it received",
                        kind="bad-hook",
                        fix="Return lists of the same objects, not of copies: samples are recognized by identity.",
                    )
                made.skipped += len(unselected)
                break
            samples = unselected
            for pack in selected:
                rows = () if lookup is None else lookup.of(pack)
                try:
                    if finish is not None:
                        rng = self._make.generator(made.step.first + len(packs), 1)
                        finished = [finish(sample, rng) for sample in pack]
                        pack = list(chain.from_iterable(finished)) if unfolds else finished
                    now.item = len(packs)
                    packed = self._encoder.pack_selected_samples(pack)
                    fresh = list(packed) if several else [packed]
                    packs += fresh
                    if made.labels is not None:
                        made.item_labels += [made.labels.of_rows(rows)] * len(fresh)
                except SkipSample:
                    made.skipped += len(pack)
        return packs

    def _groups(self, samples: list[Any], made: MadeBatch) -> list[Any]:
        waiting: dict[Hashable, list[int]] = {}
        full = []
        for row, sample in enumerate(samples):
            try:
                key, size = self._encoder.batch_group_criterion(sample)
            except SkipSample:
                made.skipped += 1
                continue
            group = waiting.setdefault(key, [])
            group.append(row)
            if len(group) >= (self._batch_size if size is None else size):
                full.append(waiting.pop(key))
        if self._drop:
            made.skipped += sum(map(len, waiting.values()))
        else:
            full += waiting.values()
        if made.labels is not None:
            made.item_labels = [made.labels.of_rows(group) for group in full]
        return self._together([[samples[row] for row in group] for group in full], made)

    def _batches(self, packs: list[Any], made: MadeBatch) -> list[Any]:
        """Return the batches of packs, if hooks of batches yield: they do not extend over the end of a window."""
        size = self._batch_size
        starts = [start for start in range(0, len(packs), size) if start + size <= len(packs) or not self._drop]
        made.item_labels = [of_packs(made.item_labels[start : start + size]) for start in starts if made.item_labels]
        return self._together([packs[start : start + size] for start in starts], made)

    def _together(self, groups: list[list[Any]], made: MadeBatch) -> list[Any]:
        """Return the batches of groups of samples or packs."""
        batches = [self._encoder.together(group) for group in groups]
        if not self._encoder.yields_batches:
            return batches
        made.item_labels = [labels for labels, several in zip(made.item_labels, batches, strict=False) for _ in several]
        return list(chain.from_iterable(batches))


def _drawn(chosen: Counter[int], sample: int) -> bool:
    """Return whether a sample was chosen, and count it; several samples may be the same object."""
    chosen[sample] -= 1
    return chosen[sample] >= 0


@dataclass(slots=True)
class Delivered:
    """A batch yielded by a rank, with the cursor or position after it, and the results that it was made from.

    Attributes:
        transfer: seconds taken by the copy to a device.
        labels: labels of the batch, if requested.
        rest: the next batches, in the form that the loop gets, and the position after each; see `MadeBatch`.
        size: number of samples of each of them.
    """

    batch: Any
    after: Cursor | int
    made: list[MadeBatch] = field(default_factory=list)
    transfer: float = 0.0
    labels: Labels | None = None
    rest: deque[tuple[Any, int]] = field(default_factory=deque)
    size: int = 0


def batches_of(
    windows: Iterator[tuple[Cursor, int, int]],
    made: Iterator[MadeBatch],
    together: Callable[[list[Any], Step, int], Any] | None,
    batch_size: int,
    *,
    keep_last: bool,
) -> Generator[Delivered, None, None]:
    """Yield batches of `batch_size` packs over the windows of a rank; without `together`, each item is a whole batch.

    Args:
        windows: windows as from `Cursor.windows`; `made`: the result of each of them.
        together: makes a batch of packs, as `GroupMaker.batch`; None if items are whole batches.
        batch_size: packs per batch.
        keep_last: whether to yield the packs that are left at the end as a smaller batch.
    """
    size = 1 if together is None else batch_size
    items: list[Any] = []
    labels: list[Labels] = []
    fresh: list[MadeBatch] = []
    after: Cursor | None = None
    for (cursor, first, used), window_items in zip(windows, made, strict=False):
        fresh.append(window_items)
        count = len(window_items.batch)
        after = cursor.used(first, count, True)
        for number in range(used, count):
            items.append(window_items.batch[number])
            labels += window_items.item_labels[number : number + 1]
            if len(items) == size:
                after = cursor.used(first, number + 1, number + 1 == count)
                batch = items[0] if together is None else together(items, window_items.step, number)
                yield Delivered(batch, after, fresh, labels=_together(labels, together is not None))
                items, labels, fresh = [], [], []
        after = cursor.used(first, count, True)
    if items and keep_last and together is not None and after is not None:
        batch = together(items, window_items.step, len(window_items.batch))
        yield Delivered(batch, after, fresh, labels=_together(labels, True))


def _together(labels: list[Labels], packs: bool) -> Labels | None:
    """Return the labels of a batch of packs, or of a single group; None without labels."""
    if not labels:
        return None
    return of_packs(labels) if packs else labels[0]
