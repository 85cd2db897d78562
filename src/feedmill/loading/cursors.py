"""Cursors of runs with groups or packs of samples: windows of the plan, and which of their results were yielded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Grid, Step

if TYPE_CHECKING:
    from feedmill.loading.encoder import TaskEncoder


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of one rank in the stream of windows.

    Attributes:
        size: positions in a window; `length`: of the plan, or None.
        rank, world_size: whose windows these are.
        batch: for groups, the batch size if the criterion returns None; None for packs, which do not depend on it.
        start: position from which windows are dealt to the ranks.
        pending: (first position, items used) of the windows to finish before those; the first is the current one.
        next: number of windows from `start` on that this rank has begun.
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
        """Yield the remaining windows: the cursor while each is current, its first position, and the items used."""
        cursor = self
        while True:
            if not cursor.pending:
                first = cursor.start + (cursor.next * cursor.world_size + cursor.rank) * cursor.size
                if cursor.length is not None and first >= cursor.length:
                    return
                cursor = replace(cursor, pending=((first, 0),), next=cursor.next + 1)
            first, used = cursor.pending[0]
            yield cursor, first, used
            cursor = replace(cursor, pending=cursor.pending[1:])

    def step(self, first: int) -> Step:
        """Return the positions of a window."""
        stop = first + self.size if self.length is None else min(first + self.size, self.length)
        return Step(first, stop, stop, first // self.size, self.length)

    def used(self, first: int, items: int, whole: bool) -> Cursor:
        """Return the cursor after a number of items of the current window; `whole` if those are all of its items."""
        rest = self.pending[1:]
        return replace(self, pending=rest if whole else ((first, items), *rest))

    @property
    def done(self) -> bool:
        """Return whether a finite plan is exhausted."""
        first = self.start + (self.next * self.world_size + self.rank) * self.size
        return not self.pending and self.length is not None and first >= self.length

    @property
    def began_truncated(self) -> bool:
        """Return whether this rank has begun a window that the end of the plan truncates."""
        if self.length is None:
            return False
        number, remaining = divmod(self.length - self.start, self.size)
        own = self.next * self.world_size + self.rank > number and number % self.world_size == self.rank
        return remaining > 0 and (number < 0 or own)

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
    """Return the windows of a loader's packs or groups, from its start; None if it makes neither.

    Raises:
        ConfigError: hooks, a buffer or a remainder that cannot be combined.
    """
    if encoder is not None:
        encoder.check()
    if encoder is None or not (encoder.packs or encoder.groups):
        if buffer is not None:
            raise ConfigError(
                f"buffer={buffer} has no use: no task encoder packs or groups",
                fix="Omit it, or override the hooks of packing or grouping.",
            )
        return None
    if grid.remainder == "pad":
        raise ConfigError("packs and groups cannot be padded", fix="Use remainder='uneven' or 'drop'.")
    size = 32 * grid.batch_size if buffer is None and encoder.groups else buffer
    if size is None or size < 1:
        raise ConfigError(
            f"packing has buffer={size}: expected at least 1",
            fix="Give the number of samples from which packs are selected.",
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
    first = read[0]
    worlds = {(cursor.world_size, cursor.start, cursor.length) for cursor in read}
    ranks = [cursor.rank for cursor in read]
    complete = ranks == list(range(len(read))) and worlds == {(len(read), first.start, first.length)}
    mine = [cursor for cursor in read if (cursor.rank, cursor.world_size) == (fresh.rank, fresh.world_size)]
    if not complete and not (len(read) == 1 and mine):
        raise ConfigError(
            f"states are missing: expected one of each of {first.world_size} ranks, because each has packs in progress,"
            f" and found {len(read)}",
            kind="bad-state",
            fix="Save the state of every rank, and load the list of all of them.",
        )
    if first.length != fresh.length and first.length is not None:
        if complete and all(cursor.done for cursor in read):
            return replace(fresh, start=first.length, pending=(), next=0)
        untouched = any(
            not used and begin + cursor.size > first.length for cursor in read for begin, used in cursor.pending
        )
        if not untouched and any(cursor.began_truncated for cursor in read):
            raise ConfigError(
                f"the plan had {first.length:,} samples, and a rank has begun the window that was truncated at its end",
                kind="bad-state",
                fix="Let all ranks reach the end of the old plan, and then load the list of their states.",
            )
    if mine:
        return replace(mine[0], length=fresh.length, batch=fresh.batch)
    begun = max(cursor.next for cursor in read)
    remaining = [entry for cursor in read for entry in cursor.pending]
    remaining += [
        (cursor.start + (number * cursor.world_size + cursor.rank) * cursor.size, 0)
        for cursor in read
        for number in range(cursor.next, begun)
    ]
    remaining = sorted(entry for entry in remaining if fresh.length is None or entry[0] < fresh.length)
    start = first.start + begun * first.world_size * fresh.size
    return replace(fresh, start=start, pending=tuple(remaining[fresh.rank :: fresh.world_size]), next=0)


def _read(state: Mapping[str, Any]) -> Cursor:
    """Return the cursor of a result of `Cursor.to_json`. Raises ConfigError if it is corrupt."""
    try:
        pending = tuple((first, used) for first, used in state["pending"])
        numbers = [state[name] for name in ("size", "rank", "ranks", "start", "next")]
        length, batch = known = [state[name] for name in ("length", "batch")]
        given = [*numbers, *chain.from_iterable(pending), *(number for number in known if number is not None)]
        size, rank, ranks, start, begun = numbers
        if all(type(number) is int and number >= 0 for number in given) and size and rank < ranks:
            return Cursor(size, length, rank, ranks, start, pending, begun, batch)
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError(
        "the state of the packs is corrupt",
        kind="bad-state",
        fix="Load the state that this loader's state_dict() returned, or begin without one.",
    )


def _check_windows(saved: Cursor, fresh: Cursor) -> None:
    """Raise ConfigError if the windows of a saved state had other contents than those of this loader."""
    if saved.size != fresh.size:
        raise ConfigError(
            f"the state has a buffer of {saved.size:,} samples, this loader {fresh.size:,}",
            kind="bad-state",
            fix=f"Give buffer={saved.size}: it determines which samples are packed together.",
        )
    if saved.batch not in (None, fresh.batch) and any(used for _, used in saved.pending):
        raise ConfigError(
            f"the state has groups of {saved.batch} samples, this loader makes groups of {fresh.batch}",
            kind="bad-state",
            fix=f"Give batch_size={saved.batch}: it determines which samples are grouped together.",
        )
