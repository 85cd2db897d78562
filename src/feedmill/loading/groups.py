"""Packs and groups made by user code, window by window of the stream, so that each depends on the plan alone.

The stream is divided into windows of `size` positions. The result of a window (packs selected from its samples, or
batches of grouped samples) depends on the window alone, and not on ranks or workers. Rank r of R takes windows
r, r + R, ... from the start of its run. A state records which windows are used, and how far. A different number of
ranks first takes the windows that the states of all ranks leave unfinished, then whole windows after them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.encoder import TaskEncoder, with_rng
from feedmill.loading.failures import SkipSample
from feedmill.loading.labels import Labels, Places, of_packs
from feedmill.planning.dealing.grid import Grid, Step


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of one rank in the stream of windows.

    Attributes:
        size: positions in a window; `length`: of the plan, or None.
        rank, world_size: whose windows these are.
        batch: for groups, the batch size where the criterion gives none; None for packs, which do not depend on it.
        start: position from which windows are dealt to the ranks.
        pending: (first position, items used) of windows to be finished before those; the first one is the current one.
        next: how many of its windows from `start` on this rank has begun.
    """

    size: int
    length: int | None
    rank: int
    world_size: int
    start: int = 0
    pending: tuple[tuple[int, int], ...] = ()
    next: int = 0
    batch: int | None = None

    def windows(self) -> Iterator[tuple[Cursor, int, int]]:
        """Yield the windows to come: the cursor while each is the current one, its first position, and items used."""
        here = self
        while True:
            if not here.pending:
                first = here.start + (here.next * here.world_size + here.rank) * here.size
                if here.length is not None and first >= here.length:
                    return
                here = replace(here, pending=((first, 0),), next=here.next + 1)
            first, used = here.pending[0]
            yield here, first, used
            here = replace(here, pending=here.pending[1:])

    def step(self, first: int) -> Step:
        """Return the positions of a window."""
        stop = first + self.size if self.length is None else min(first + self.size, self.length)
        return Step(first, stop, stop, first // self.size, self.length)

    def used(self, first: int, items: int, whole: bool) -> Cursor:
        """Return this cursor after this many items of the current window; `whole` where that is all of it."""
        rest = self.pending[1:]
        return replace(self, pending=rest if whole else ((first, items), *rest))

    @property
    def done(self) -> bool:
        """Whether a finite plan is exhausted."""
        first = self.start + (self.next * self.world_size + self.rank) * self.size
        return not self.pending and self.length is not None and first >= self.length

    @property
    def began_cut(self) -> bool:
        """Whether it has begun a window that the end of the plan cuts short."""
        if self.length is None:
            return False
        number, cut = divmod(self.length - self.start, self.size)
        own = self.next * self.world_size + self.rank > number and number % self.world_size == self.rank
        return cut > 0 and (number < 0 or own)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; see `merged`."""
        return {
            "size": self.size,
            "length": self.length,
            "batch": self.batch,
            "rank": self.rank,
            "ranks": self.world_size,
            "start": self.start,
            "next": self.next,
            "pending": [list(entry) for entry in self.pending],
        }


def windows_for(encoder: TaskEncoder | None, grid: Grid, buffer: int | None) -> Cursor | None:
    """Return the windows that a loader's packs or groups are made of, from its start; None if it makes neither.

    Raises:
        ConfigError: hooks, a buffer or a remainder that do not go together.
    """
    if encoder is not None:
        encoder.check()
    if encoder is None or not (encoder.packs or encoder.groups):
        if buffer is not None:
            raise ConfigError("a buffer is for packing or grouping", fix="Leave it out, or override those hooks.")
        return None
    if grid.remainder == "pad":
        raise ConfigError("packs and groups cannot be filled up", fix="Use remainder='uneven' or 'drop'.")
    size = 32 * grid.batch_size if buffer is None and encoder.groups else buffer
    if size is None or size < 1:
        raise ConfigError(
            f"packing has buffer={size}, expected at least 1",
            fix="Say from how many samples to select packs.",
        )
    batch = grid.batch_size if encoder.groups else None
    return Cursor(size, grid.length, grid.rank, grid.world_size, batch=batch)


def resumed(states: Sequence[Mapping[str, Any]], fresh: Cursor) -> Cursor:
    """Return the cursor with which the rank of `fresh` resumes from saved states (`Cursor.to_json`).

    A single state suffices for the same rank and world size; otherwise the states of all ranks are required.

    Raises:
        ConfigError: states that do not belong together, or one state if all are required; a different window size; a
            different batch size or end of the plan, if a partly used window depends on it.
    """
    read = sorted(map(_read, states), key=lambda cursor: cursor.rank)
    for cursor in read:
        _check_windows(cursor, fresh)
    one = read[0]
    every = [c.rank for c in read] == list(range(len(read))) and {(c.world_size, c.start, c.length) for c in read} == {
        (len(read), one.start, one.length)
    }
    mine = [c for c in read if (c.rank, c.world_size) == (fresh.rank, fresh.world_size)]
    if not every and not (len(read) == 1 and mine):
        raise ConfigError(
            f"samples wait in packs of each of {one.world_size} ranks, and {len(read)} states were given",
            kind="bad-state",
            fix="Save the state of every rank, and load the list of all of them.",
        )
    if one.length != fresh.length and one.length is not None:
        if every and all(cursor.done for cursor in read):
            return replace(fresh, start=one.length, pending=(), next=0)
        waits = {first for c in read for first, used in c.pending if not used and first + c.size > one.length}
        if not waits and any(cursor.began_cut for cursor in read):
            raise ConfigError(
                f"the plan had {one.length:,} samples, and the window that was truncated at its end is used",
                kind="bad-state",
                fix="Let all ranks come to that end, and then load the list of their states.",
            )
    if mine:
        return replace(mine[0], length=fresh.length, batch=fresh.batch)
    begun = max(cursor.next for cursor in read)
    left = [entry for cursor in read for entry in cursor.pending]
    left += [
        (cursor.start + (number * cursor.world_size + cursor.rank) * cursor.size, 0)
        for cursor in read
        for number in range(cursor.next, begun)
    ]
    left = sorted(entry for entry in left if fresh.length is None or entry[0] < fresh.length)
    start = one.start + begun * one.world_size * fresh.size
    return replace(fresh, start=start, pending=tuple(left[fresh.rank :: fresh.world_size]), next=0)


def _read(state: Mapping[str, Any]) -> Cursor:
    """Return what `Cursor.to_json` gave. Raises ConfigError if it is corrupt."""
    try:
        pending = tuple((first, used) for first, used in state["pending"])
        numbers = [state[name] for name in ("size", "rank", "ranks", "start", "next")]
        length, batch = known = [state.get(name) for name in ("length", "batch")]  # older states have neither
        given = [*numbers, *chain.from_iterable(pending), *(number for number in known if number is not None)]
        size, rank, ranks, start, begun = numbers
        if all(type(number) is int and number >= 0 for number in given) and size and rank < ranks:
            return Cursor(size, length, rank, ranks, start, pending, begun, batch)
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError("the state of the packs is corrupt", kind="bad-state")


def _check_windows(saved: Cursor, fresh: Cursor) -> None:
    """Refuse a state of windows that gave something else. Raises ConfigError."""
    if saved.size != fresh.size:
        raise ConfigError(
            f"the state has a buffer of {saved.size:,} samples, this loader {fresh.size:,}",
            kind="bad-state",
            fix=f"Give buffer={saved.size}: it decides which samples are packed together.",
        )
    if saved.batch not in (None, fresh.batch) and any(used for _, used in saved.pending):
        raise ConfigError(
            f"the state has groups of {saved.batch} samples, this loader makes groups of {fresh.batch}",
            kind="bad-state",
            fix=f"Give batch_size={saved.batch}: it decides which samples are grouped together.",
        )


class GroupMaker:
    """Maker of the items of a window: a list of packs, or of whole batches of grouped samples.

    Args:
        make: makes the list of a window's samples.
        batch_size: batch size of groups whose criterion gives no size.
        drop: drop groups that are incomplete at the end of a window; otherwise they become smaller batches.
    """

    def __init__(self, make: BatchMaker, encoder: TaskEncoder, batch_size: int, *, drop: bool) -> None:
        self._make, self._encoder, self._batch_size, self._drop = make, encoder, batch_size, drop

    @property
    def has_user_code(self) -> bool:
        """Always."""
        return True

    @property
    def packs(self) -> bool:
        """Whether windows give packs, and not whole batches."""
        return self._encoder.packs

    def batch(self, items: list[Any], step: Step, number: int) -> Any:
        """Return a batch of packs, the last of which is item `number` of the window `step`."""
        self._make.put_together(step, 4, number)
        return self._encoder.together(items)

    def __call__(self, step: Step) -> Made:
        """Return the items of a window, as the `batch` of what was made."""
        made = self._make(step)
        samples: list[Any] = made.batch
        begun = time.perf_counter()
        self._make.put_together(step, 3)
        try:
            made.batch = self._packs(samples, made) if self._encoder.packs else self._groups(samples, made)
        except Exception as error:
            error.add_note(f"in the window of the positions {step.first} to {step.stop - 1}")
            raise
        made.labels = None  # those of its items are what is needed from here on
        made.seconds["collate"] = made.seconds.get("collate", 0.0) + time.perf_counter() - begun
        return made

    def _packs(self, samples: list[Any], made: Made) -> list[Any]:
        packs: list[Any] = []
        places = None if made.labels is None else Places(samples)
        own = self._encoder.overrides("postencode_sample")  # else there is nothing to do, and no generator to make
        finish = with_rng(self._encoder.postencode_sample) if own else None
        while samples:
            selected = [pack for pack in self._encoder.select_samples_to_pack(list(samples)) if len(pack)]
            chosen = Counter(id(sample) for pack in selected for sample in pack)
            left = [sample for sample in samples if not _drawn(chosen, id(sample))]
            if len(left) == len(samples):
                if selected:
                    raise ConfigError(
                        "select_samples_to_pack gave none of the samples that it was given",
                        kind="bad-hook",
                        fix="Give lists of those objects, not of copies: what was chosen is known by that.",
                    )
                made.skipped += len(left)
                break
            samples = left
            for pack in selected:
                chosen_at = () if places is None else places.of(pack)
                try:
                    if finish is not None:
                        rng = self._make.generator(made.step.first + len(packs), 1)
                        pack = [finish(sample, rng) for sample in pack]
                    packs.append(self._encoder.pack_selected_samples(pack))
                    if made.labels is not None:
                        made.item_labels.append(made.labels.of_rows(chosen_at))
                except SkipSample:
                    made.skipped += len(pack)
        return packs

    def _groups(self, samples: list[Any], made: Made) -> list[Any]:
        waiting: dict[Hashable, list[int]] = {}
        full = []
        for place, sample in enumerate(samples):
            try:
                key, size = self._encoder.batch_group_criterion(sample)
            except SkipSample:
                made.skipped += 1
                continue
            group = waiting.setdefault(key, [])
            group.append(place)
            if len(group) >= (self._batch_size if size is None else size):
                full.append(waiting.pop(key))
        if self._drop:
            made.skipped += sum(map(len, waiting.values()))
        else:
            full += waiting.values()
        if made.labels is not None:
            made.item_labels = [made.labels.of_rows(group) for group in full]
        return [self._encoder.together([samples[place] for place in group]) for group in full]


def _drawn(chosen: Counter[int], sample: int) -> bool:
    """Return whether a sample was chosen; two samples may be one object."""
    chosen[sample] -= 1
    return chosen[sample] >= 0


@dataclass(slots=True)
class Given:
    """A batch yielded by a rank, with the cursor or position after it, and the results that it was made from.

    Attributes:
        transfer: seconds taken by the copy to a device.
        labels: labels of the batch, if requested.
    """

    batch: Any
    after: Cursor | int
    made: list[Made] = field(default_factory=list)
    transfer: float = 0.0
    labels: Labels | None = None


def batches_of(
    windows: Iterator[tuple[Cursor, int, int]],
    made: Iterator[Made],
    together: Callable[[list[Any], Step, int], Any] | None,
    batch_size: int,
    *,
    keep_last: bool,
) -> Generator[Given, None, None]:
    """Yield batches of `batch_size` packs over the windows of a rank; without `together`, each item is a whole batch.

    Args:
        windows: see `Cursor.windows`; `made`: the result of each of them.
        keep_last: yield the packs that are left at the end as a smaller batch.
    """
    size = 1 if together is None else batch_size
    items: list[Any] = []
    labels: list[Labels] = []
    fresh: list[Made] = []
    after: Cursor | None = None
    for (here, first, used), found in zip(windows, made, strict=False):
        fresh.append(found)
        count = len(found.batch)
        after = here.used(first, count, True)
        for number in range(used, count):
            items.append(found.batch[number])
            labels += found.item_labels[number : number + 1]
            if len(items) == size:
                after = here.used(first, number + 1, number + 1 == count)
                batch = items[0] if together is None else together(items, found.step, number)
                yield Given(batch, after, fresh, labels=_together(labels, together is not None))
                items, labels, fresh = [], [], []
        after = here.used(first, count, True)
    if items and keep_last and together is not None and after is not None:
        batch = together(items, found.step, len(found.batch))
        yield Given(batch, after, fresh, labels=_together(labels, True))


def _together(labels: list[Labels], packs: bool) -> Labels | None:
    """Return the labels of a batch of these packs, or of this one group; None if none are asked for."""
    if not labels:
        return None
    return of_packs(labels) if packs else labels[0]
