"""Layout of shards: their names and limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError

_NUMBER = re.compile(r"%(0\d+)?d")
PATTERN = "shards/%06d.tar"
SAMPLES = 10_000
SIZE = 3 * 10**9


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and limits of shards.

    Attributes:
        pattern: path of a shard in the dataset, with one ``%06d`` (or ``%d``) for its number.
        samples: maximum number of samples per shard; None for no limit.
        size: maximum size of a shard in bytes, including headers; None for no limit. A larger sample gets a shard of
            its own.
        first: number of the first shard.

    Raises:
        ConfigError: the pattern or a limit is invalid.
    """

    pattern: str = PATTERN
    samples: int | None = SAMPLES
    size: int | None = SIZE
    first: int = 0

    def __post_init__(self) -> None:
        parts = self.pattern.split("/")
        hidden = any(part in ("", "..", ".") or part.startswith(".") for part in parts)
        if len(_NUMBER.findall(self.pattern)) != 1 or self.pattern.count("%") != 1 or "\0" in self.pattern:
            raise _bad_pattern(self.pattern, "it must have exactly one placeholder for the shard's number")
        if hidden or not self.pattern.endswith(".tar"):
            raise _bad_pattern(self.pattern, "it must be a relative path without hidden folders, and end in .tar")
        for name, limit in (("samples", self.samples), ("bytes", self.size)):
            if limit is not None and limit < 1:
                raise ConfigError(f"invalid shard limit: {limit} {name}", kind="bad-option", fix="Use 1 or more.")

    def shard(self, number: int) -> str:
        """Return the path of the shard with this number, counted from 0."""
        return self.pattern % (self.first + number)

    def number(self, path: str) -> int | None:
        """Return the number in a path that matches the pattern, as in the path; None for other paths."""
        before, after = re.split(r"%(?:0\d+)?d", self.pattern)
        digits = path[len(before) : len(path) - len(after)]
        if not digits.isdecimal() or not digits.isascii() or self.pattern % int(digits) != path:
            return None
        return int(digits)

    def as_dict(self) -> dict[str, Any]:
        """Return the layout as plain data, for a job's identity."""
        return {name: getattr(self, name) for name in self.__slots__}


def _bad_pattern(pattern: str, why: str) -> ConfigError:
    return ConfigError(
        f"invalid shard pattern {pattern!r}: {why}", kind="bad-pattern", fix=f"Use for example {PATTERN!r}."
    )
