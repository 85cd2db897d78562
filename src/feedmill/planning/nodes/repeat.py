"""Epochs: a child again and again, each time in the new order that its shuffles give it."""

from __future__ import annotations

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST, Epochs, IntArray, Node, Wrapper, split


class Repeat(Wrapper):
    """The stream of its child, endless or up to a length.

    Where this node itself is repeated, the stream carries on: nothing is started over.

    Args:
        child: what to repeat. A child without end can only be cut, by `length`.
        times: epochs; None for no end.
        length: positions instead of epochs.
        max_repeats: most epochs of the child that the whole plan may use, whatever stands above; `bounds` proves it.
        name: what people call the child, for messages about `max_repeats`.
    """

    def __init__(
        self,
        child: Node,
        times: int | None = None,
        *,
        length: int | None = None,
        max_repeats: int | None = None,
        name: str = "",
    ) -> None:
        super().__init__(child)
        if times is not None or max_repeats is not None:
            child.finite("counting epochs")
        if min(times or 1, length or 1, max_repeats or 1) < 1 or 0 in (times, length, max_repeats):
            raise ConfigError("a repetition needs at least one epoch and one sample", kind="bad-repeat")
        self._inner = child.length
        self.length = length if times is None else times * child.finite("counting epochs")
        if self.length is not None and self.length > LONGEST:
            raise too_long(self.length)
        self.times, self.max_repeats, self.name = times, max_repeats, name

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        stream = positions if self.length is None else positions + epochs * self.length
        if self._inner is None:
            return stream, 0
        epoch, inner = split(stream, self._inner)
        return inner, epoch

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        stream = positions if self._inner is None else epochs * self._inner + positions
        if self.length is None:
            return stream, epochs * 0
        return stream % self.length, stream // self.length

    def describe(self) -> str:
        return self.identity() + (f", at most {self.max_repeats} times in all" if self.max_repeats else "")

    def identity(self) -> str:
        if self.times is not None:
            return f"{self.times} epoch{'s' if self.times > 1 else ''}"
        return f"first {self.length:,}" if self.length else "repeated"


def too_long(total: int) -> ConfigError:
    """The error for a node beyond 64 bits."""
    return ConfigError(
        f"{total:,} positions are more than a plan can number (2^63 - 1)", kind="too-long", fix="Ask for fewer epochs."
    )
