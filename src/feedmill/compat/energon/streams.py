"""Loaders that combine other loaders: they map, batch, blend, concatenate or repeat what these yield.

Energon's wrappers (`feedmill.compat.energon.views`) are datasets whose loaders are these. A stream has the methods
of `feedmill.loading.epochs.EpochLoader`: each iteration is one loop and resumes where the previous one ended, and its
state is plain data that contains the states of the inner loaders.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, Protocol

import numpy as np

from feedmill.compat.energon.errors import sources_of
from feedmill.errors import ConfigError, DataError
from feedmill.loading.epochs import Resumable
from feedmill.loading.failures import MISTAKES, SkipSample
from feedmill.planning.mixing.blend import schedule

VERSION = 1
_BLOCK = 4096
Handler = Callable[..., None]


class Stream(Resumable, Protocol):
    """A loader that can also begin again."""

    def rewind(self) -> None:
        """Begin the next loop at the first sample of the stream."""


class Combined(ABC):
    """A stream over inner streams.

    Args:
        inner: the inner streams.

    Attributes:
        saved: names of the attributes that the state contains.
    """

    saved: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *inner: Stream) -> None:
        self.inner = inner
        self.reset()

    def reset(self) -> None:
        """Set the attributes to those of a stream that has not begun."""
        self._begun = False

    def _begin(self) -> None:
        """Let the inner streams resume if the previous iteration was left early, also those that would begin again."""
        if self._begun:
            for stream in self.inner:
                stream.load_state_dict(stream.state_dict())
        self._begun = True

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the current loop."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items per loop, as far as it can be known before."""

    def rewind(self) -> None:
        """Begin the next loop at the start of all inner streams."""
        for stream in self.inner:
            stream.rewind()
        self.reset()

    def close(self) -> None:
        """End the running iterations of the inner streams."""
        for stream in self.inner:
            stream.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last item that was yielded, as plain data."""
        own = {name: getattr(self, name) for name in self.saved}
        inner = [stream.state_dict() for stream in self.inner]
        return {"feedmill_stream": VERSION, "kind": type(self).__name__, "own": own, "inner": inner}

    def load_state_dict(self, state: Any, **options: bool) -> None:
        """Resume from a state of `state_dict`, or from a list of those of all ranks.

        Raises:
            ConfigError: this is not a state of a stream like this one.
        """
        states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        if not states or not all(map(self._is_own_state, states)):
            raise ConfigError(
                f"this is not the state of a loader of the same datasets (expected a {type(self).__name__})",
                kind="bad-state",
                fix="Load the state that a loader of the same datasets returned.",
            )
        self.close()
        self.reset()
        for number, stream in enumerate(self.inner):
            inner = [saved["inner"][number] for saved in states]
            stream.load_state_dict(inner if isinstance(state, list | tuple) else inner[0], **options)
        for name in self.saved:
            setattr(self, name, states[0]["own"][name])

    def _is_own_state(self, state: Any) -> bool:
        if not isinstance(state, Mapping) or state.get("feedmill_stream") != VERSION:
            return False
        own, inner = state.get("own"), state.get("inner")
        if not isinstance(own, Mapping) or set(own) != set(self.saved) or not isinstance(inner, list):
            return False
        return state.get("kind") == type(self).__name__ and len(inner) == len(self.inner)


class Mapped(Combined):
    """The items of a stream after a function, which may also skip an item or yield several.

    Args:
        inner: the stream.
        function: maps one item. It may raise `SkipSample`. If it is a generator function, the items that it yields
            replace the item.
        handler: called with (error, item, sources) if the function fails. If it raises, the iteration ends; otherwise
            the item is dropped.
        tolerance: number of failures in a row that end the iteration; 0 for no limit.
    """

    saved = ("given",)

    def __init__(self, inner: Stream, function: Callable[[Any], Any], handler: Handler, tolerance: int = 100) -> None:
        super().__init__(inner)
        self.function, self.handler, self.tolerance = function, handler, tolerance
        self.yields = inspect.isgeneratorfunction(getattr(function, "__seeded_function__", function))

    def reset(self) -> None:
        super().reset()
        self.given = 0  # items yielded for the current inner item
        self._before: Any = None  # the inner state before that item

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._before is None else {**state, "inner": [self._before]}

    def __iter__(self) -> Iterator[Any]:
        if self._before is not None:  # the previous iteration was left between the items of one
            self.inner[0].load_state_dict(self._before)
        items, failed = iter(self.inner[0]), 0
        while True:
            before = self.inner[0].state_dict() if self.yields else None
            try:
                item = next(items)
            except StopIteration:
                return
            try:
                for number, made in enumerate(self.function(item) if self.yields else (self.function(item),)):
                    failed = 0
                    if number >= self.given:
                        if self.yields:
                            self._before, self.given = before, number + 1
                        yield made
            except GeneratorExit:
                raise
            except SkipSample:
                pass
            except Exception as error:
                failed += 1
                if isinstance(error, MISTAKES):
                    raise
                self.handler(error, item, sources_of(item))
                if self.tolerance and failed >= self.tolerance:
                    raise DataError(f"{failed} items in a row have failed, the last one with {error!r}") from error
            self._before, self.given = None, 0

    def __len__(self) -> int:
        return len(self.inner[0])


class Batched(Combined):
    """Lists of consecutive items of a stream.

    Args:
        inner: the stream.
        size: items per list; `drop_last`: whether to drop a shorter last one.
    """

    def __init__(self, inner: Stream, size: int, *, drop_last: bool = False) -> None:
        super().__init__(inner)
        self.size, self.drop_last = size, drop_last

    def __iter__(self) -> Iterator[Any]:
        items: list[Any] = []
        for item in self.inner[0]:
            items.append(item)
            if len(items) == self.size:
                yield items
                items = []
        if items and not self.drop_last:
            yield items

    def __len__(self) -> int:
        items = len(self.inner[0])
        return items // self.size if self.drop_last else ceil(items / self.size)


class Iterated(Combined):
    """What a function of an iterator yields. Items that it has taken and not yet yielded are lost in a resume.

    Args:
        inner: the stream.
        function: iterator -> iterator.
        length: length of the inner stream -> length of this one.
    """

    def __init__(
        self, inner: Stream, function: Callable[[Iterator[Any]], Iterator[Any]], length: Callable[[int], int]
    ) -> None:
        super().__init__(inner)
        self.function, self.length = function, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.function(iter(self.inner[0])))

    def __len__(self) -> int:
        return self.length(len(self.inner[0]))


class Concatenated(Combined):
    """The loops of several streams, one after another."""

    saved = ("current",)

    def reset(self) -> None:
        super().reset()
        self.current = 0

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        while self.current < len(self.inner):
            yield from self.inner[self.current]
            self.current += 1
        self.reset()

    def __len__(self) -> int:
        return sum(map(len, self.inner))


class Blended(Combined):
    """Items of several streams, drawn by weight in the order of `feedmill.planning.mixing.blend`.

    A stream that ends is not drawn from again in this loop; the loop ends when all of them have ended.

    Args:
        inner: the streams.
        weights: a positive weight for each.

    Raises:
        ConfigError: a weight is not positive.
    """

    saved = ("drawn", "ended")

    def __init__(self, inner: Sequence[Stream], weights: Sequence[Any]) -> None:
        super().__init__(*inner)
        self.weights = list(weights)
        schedule(self.weights)

    def reset(self) -> None:
        super().reset()
        self.drawn = 0  # since the last stream ended
        self.ended: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        items = {number: iter(stream) for number, stream in enumerate(self.inner) if number not in self.ended}
        while items:
            numbers = sorted(items)
            order = schedule([self.weights[number] for number in numbers])
            for position in self._positions(order):
                try:
                    item = next(items[numbers[position]])
                except StopIteration:
                    del items[numbers[position]]
                    self.ended, self.drawn = sorted({*self.ended, numbers[position]}), 0
                    break
                self.drawn += 1
                yield item
        self.reset()

    def _positions(self, order: Any) -> Iterator[int]:
        """Yield which of the remaining streams each draw is from."""
        first = self.drawn
        while True:
            yield from order.at(np.arange(first, first + _BLOCK, dtype=np.int64))[0].tolist()
            first += _BLOCK

    def __len__(self) -> int:
        return sum(map(len, self.inner))


class Repeated(Combined):
    """The loops of a stream, again and again.

    Args:
        inner: the stream.
        times: number of loops, which may be fractional; None for no end.
    """

    saved = ("loop", "given")

    def __init__(self, inner: Stream, times: float | None) -> None:
        super().__init__(inner)
        self.times = times

    def reset(self) -> None:
        super().reset()
        self.loop = self.given = 0

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        while self.times is None or self.loop < self.times:
            whole = self.times is None or self.loop + 1 <= self.times
            limit = None if whole else int(len(self.inner[0]) * (self.times or 0)) - self.loop * len(self.inner[0])
            if limit is None or self.given < limit:
                for item in self.inner[0]:
                    self.given += 1
                    yield item
                    if self.given == limit:
                        break
            if limit is not None:
                self.inner[0].rewind()
            if self.times is None and not self.given:
                raise ConfigError("an empty dataset cannot be repeated", kind="empty-source", fix="Check its split.")
            self.loop, self.given = self.loop + 1, 0
        self.reset()

    def __len__(self) -> int:
        items = len(self.inner[0])
        return items if self.times is None else int(items * self.times)
