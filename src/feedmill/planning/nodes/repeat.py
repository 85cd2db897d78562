"""Repetition of a node over epochs, each in a new order if the node is shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST, Epochs, IntArray, Node, Wrapper, split, split_each


class Repeat(Wrapper):
    """Node that is the stream of its child, endless or up to a length.

    If this node is repeated, the child's stream continues and does not start over.

    Args:
        child: the node to repeat. An endless child can only be cut, with `length`.
        times: epochs, as a number or its decimal text; None for no end. A fraction of an epoch is its first
            ``floor(fraction * length)`` samples.
        length: number of positions, instead of epochs.
        max_repeats: maximum number of epochs of the child that the whole plan may use; checked by `bounds`.
        name: display name of the child, for messages about `max_repeats`.
    """

    tag = "repeat"
    args = ("times", "length")

    def __init__(
        self,
        child: Node,
        times: int | float | str | Fraction | None = None,
        *,
        length: int | None = None,
        max_repeats: int | None = None,
        name: str = "",
    ) -> None:
        super().__init__(child)
        if times is not None or max_repeats is not None:
            child.finite("counting epochs")
        if min(length or 1, max_repeats or 1) < 1 or 0 in (length, max_repeats):
            raise ConfigError("a repetition needs at least one epoch and one sample", kind="bad-recipe")
        self._inner = child.length
        self.times: Fraction | None = None
        self.length = length
        if times is not None:
            self.times, self.length = epochs_of(times, child.finite("counting epochs"))
        if self.length is not None and self.length > LONGEST:
            raise too_long(self.length)
        self.max_repeats, self.name = max_repeats, name
        self.group = child.group  # of the child's stream, which is this one's

    def arguments(self) -> dict[str, Any]:
        return {"times": str(self.times), "length": None} if self.times else {"times": None, "length": self.length}

    @property
    def stream(self) -> Node:
        return self.child.stream

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:
        return [[]] if root else super().paths(root=root, repeated=repeated)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        stream = positions if self.length is None else positions + epochs * self.length
        if self._inner is None:
            return stream, 0
        epoch, inner = split(stream, self._inner)
        return inner, epoch

    @property
    def constants(self) -> tuple[int, ...] | None:
        return None if self._inner is None else (self.length or 0, self._inner)

    @classmethod
    def inward_each(cls, constants: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        length, inner = constants
        epoch, rest = split_each(positions + epochs * length, inner)
        return rest, epoch

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        stream = positions if self._inner is None else epochs * self._inner + positions
        if self.length is None:
            return stream, epochs * 0
        return stream % self.length, stream // self.length

    @property
    def first_group(self) -> int | None:
        inside = None not in (self.length, self._inner) and (self.length or 0) <= (self._inner or 0)
        return self.child.first_group if inside else self.group

    def whole(self, total: int) -> int:
        return self.child.whole(total)

    def seams(self, start: int, stop: int) -> IntArray:
        return self.child.seams(start, stop)

    def describe(self) -> str:
        return self.identity() + (f", at most {self.max_repeats} times in all" if self.max_repeats else "")

    def identity(self) -> str:
        if self.times is not None:
            return f"{epochs_text(self.times)} epoch{'s' if self.times > 1 else ''}"
        return f"first {self.length:,}" if self.length else "repeated"


def epochs_of(times: Any, size: int) -> tuple[Fraction, int]:
    """Return a number of epochs as an exact fraction, and the number of samples it stands for in a source of `size`.

    >>> epochs_of(2.5, 5)
    (Fraction(5, 2), 12)

    Raises:
        ConfigError: `times` is not a number, or stands for less than one sample.
    """
    from feedmill.planning.mixing.blend import exact_weight

    try:
        exact = exact_weight(times)
    except ConfigError:
        raise _bad_epochs(f"{str(times)[:60]!r} is not a number of epochs", size) from None
    samples = int(exact * size)
    if samples < 1:
        raise _bad_epochs(f"{epochs_text(exact)} epochs of {size:,} samples are less than one sample", size)
    return exact, samples


def epochs_text(times: Fraction) -> str:
    """Return a number of epochs as text: 3, 2.5 or 1/3."""
    return f"{float(times):g}" if Fraction(f"{float(times):g}") == times else str(times)


def _bad_epochs(what: str, size: int) -> ConfigError:
    return ConfigError(what, kind="bad-recipe", fix=f"Give a number such as 3 or 2.5, here at least 1/{size}.")


def too_long(total: int) -> ConfigError:
    """Return the error for a node whose length exceeds 64 bits."""
    return ConfigError(
        f"{total:,} positions exceed the maximum length of a plan (2^63 - 1)", kind="too-large", fix="Use fewer epochs."
    )
