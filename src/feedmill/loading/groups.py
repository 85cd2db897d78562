"""Packs and groups that user code makes: window by window of the stream, so that each is a function of the plan alone.

The stream is cut into windows of `size` positions. What a window gives - packs that the task has selected from its
samples, or batches of samples that go together - depends on the window alone, and not on ranks or workers. Rank r of R
takes windows r, r + R, ... from the start of its run. A state says which windows are used, and up to where; another
number of ranks first takes what the states of all ranks leave open, then whole windows behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.encoder import TaskEncoder, with_rng
from feedmill.loading.failures import SkipSample
from feedmill.planning.grid import Grid, Step


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one rank has come.

    Attributes:
        size: positions in a window; `length`: of the plan, or None.
        rank, world_size: whose windows these are.
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

    def windows(self) -> Iterator[tuple[Cursor, int, int]]:
        """The windows to come: the cursor while each is the current one, its first position, and items used."""
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
        """The positions of a window."""
        stop = first + self.size if self.length is None else min(first + self.size, self.length)
        return Step(first, stop, stop, first // self.size, self.length)

    def used(self, first: int, items: int, whole: bool) -> Cursor:
        """This cursor after so many items of the current window; `whole` where that is all of it."""
        rest = self.pending[1:]
        return replace(self, pending=rest if whole else ((first, items), *rest))

    def to_json(self) -> dict[str, Any]:
        """Plain data; see `merged`."""
        return {
            "size": self.size,
            "rank": self.rank,
            "ranks": self.world_size,
            "start": self.start,
            "next": self.next,
            "pending": [list(entry) for entry in self.pending],
        }


def windows_for(encoder: TaskEncoder | None, grid: Grid, buffer: int | None) -> Cursor | None:
    """The windows that a loader's packs or groups are made of, from its start; None where it makes neither.

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
            f"packing with buffer={size} makes no sense", fix="Say from how many samples packs are to be selected."
        )
    return Cursor(size, grid.length, grid.rank, grid.world_size)


def resumed(states: Sequence[Mapping[str, Any]], fresh: Cursor) -> Cursor:
    """The cursor of `fresh`'s rank that goes on where the ranks' states (`Cursor.to_json`) were.

    One state serves its own rank of as many ranks; else the states of all ranks are needed.

    Raises:
        ConfigError: states that do not belong together, or one where all are needed, or another window size.
    """
    try:
        read = [
            Cursor(
                state["size"],
                fresh.length,
                state["rank"],
                state["ranks"],
                state["start"],
                tuple((int(first), int(used)) for first, used in state["pending"]),
                state["next"],
            )
            for state in states
        ]
    except (KeyError, TypeError, ValueError):
        raise ConfigError("the state of the packs is damaged", kind="bad-state") from None
    if any(cursor.size != fresh.size for cursor in read):
        raise ConfigError(
            f"the state has a buffer of {read[0].size:,} samples, this loader {fresh.size:,}",
            kind="bad-state",
            fix=f"Give buffer={read[0].size}: it decides which samples are packed together.",
        )
    mine = [cursor for cursor in read if (cursor.rank, cursor.world_size) == (fresh.rank, fresh.world_size)]
    if len(read) == 1 and mine:
        return mine[0]
    ranks = {cursor.rank for cursor in read}
    if (
        len({(c.world_size, c.start) for c in read}) > 1
        or ranks != set(range(read[0].world_size))
        or len(read) != len(ranks)
    ):
        raise ConfigError(
            f"samples wait in packs of each of {read[0].world_size} ranks, and {len(read)} states were given",
            kind="bad-state",
            fix="Save the state of every rank, and load the list of all of them.",
        )
    if len(mine) == 1:
        return mine[0]
    read.sort(key=lambda cursor: cursor.rank)
    begun = max(cursor.next for cursor in read)
    left = [entry for cursor in read for entry in cursor.pending]
    left += [
        (cursor.start + (number * cursor.world_size + cursor.rank) * cursor.size, 0)
        for cursor in read
        for number in range(cursor.next, begun)
    ]
    left = sorted(entry for entry in left if fresh.length is None or entry[0] < fresh.length)
    start = read[0].start + begun * read[0].world_size * fresh.size
    return replace(fresh, start=start, pending=tuple(left[fresh.rank :: fresh.world_size]))


class GroupMaker:
    """What a window gives: a list of packs, or of whole batches of samples that go together.

    Args:
        make: makes the list of a window's samples.
        batch_size: of groups whose criterion gives no size.
        drop: leave out groups that the end of a window cuts short; else they are smaller batches.
    """

    def __init__(self, make: BatchMaker, encoder: TaskEncoder, batch_size: int, *, drop: bool) -> None:
        self._make, self._encoder, self._batch_size, self._drop = make, encoder, batch_size, drop

    @property
    def has_user_code(self) -> bool:
        """Always."""
        return True

    def __call__(self, step: Step) -> Made:
        """The items of a window, as the `batch` of what was made."""
        made = self._make(step)
        samples: list[Any] = made.batch
        begun = time.perf_counter()
        made.batch = self._packs(samples, made) if self._encoder.packs else self._groups(samples, made)
        made.seconds["collate"] = made.seconds.get("collate", 0.0) + time.perf_counter() - begun
        return made

    def _packs(self, samples: list[Any], made: Made) -> list[Any]:
        packs: list[Any] = []
        own = self._encoder.overrides("postencode_sample")  # else there is nothing to do, and no generator to make
        finish = with_rng(self._encoder.postencode_sample) if own else None
        while samples:
            selected = [pack for pack in self._encoder.select_samples_to_pack(list(samples)) if len(pack)]
            chosen = {id(sample) for pack in selected for sample in pack}
            left = [sample for sample in samples if id(sample) not in chosen]
            if len(left) == len(samples):
                made.skipped += len(left)
                break
            samples = left
            for pack in selected:
                try:
                    if finish is not None:
                        rng = self._make.generator(made.step.first + len(packs), 1)
                        pack = [finish(sample, rng) for sample in pack]
                    packs.append(self._encoder.pack_selected_samples(pack))
                except SkipSample:
                    made.skipped += len(pack)
        return packs

    def _groups(self, samples: list[Any], made: Made) -> list[Any]:
        waiting: dict[Hashable, list[Any]] = {}
        full = []
        for sample in samples:
            try:
                key, size = self._encoder.batch_group_criterion(sample)
            except SkipSample:
                made.skipped += 1
                continue
            group = waiting.setdefault(key, [])
            group.append(sample)
            if len(group) >= (self._batch_size if size is None else size):
                full.append(waiting.pop(key))
        if self._drop:
            made.skipped += sum(map(len, waiting.values()))
        else:
            full += waiting.values()
        return [self._encoder.together(group) for group in full]


@dataclass(slots=True)
class Given:
    """A batch that a rank gives out, the cursor or position after it, and what was made for it.

    Attributes:
        transfer: seconds that its copy to a device took.
    """

    batch: Any
    after: Cursor | int
    made: list[Made] = field(default_factory=list)
    transfer: float = 0.0


def batches_of(
    windows: Iterator[tuple[Cursor, int, int]],
    made: Iterator[Made],
    together: Callable[[list[Any]], Any] | None,
    batch_size: int,
    *,
    keep_last: bool,
) -> Generator[Given, None, None]:
    """Batches of `batch_size` packs over the windows of a rank; without `together` each item is a batch already.

    Args:
        windows: see `Cursor.windows`; `made`: what each of them gave.
        keep_last: give the packs that are left at the end as a smaller batch.
    """
    size = 1 if together is None else batch_size
    items: list[Any] = []
    fresh: list[Made] = []
    after: Cursor | None = None
    for (here, first, used), found in zip(windows, made, strict=False):
        fresh.append(found)
        count = len(found.batch)
        after = here.used(first, count, True)
        for number in range(used, count):
            items.append(found.batch[number])
            if len(items) == size:
                after = here.used(first, number + 1, number + 1 == count)
                yield Given(items[0] if together is None else together(items), after, fresh)
                items, fresh = [], []
        after = here.used(first, count, True)
    if items and keep_last and together is not None and after is not None:
        yield Given(together(items), after, fresh)
