"""Deprecated option names of release 0.1. Each still works, with one warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand

logger = logging.getLogger("feedmill")

_PROCESSES = {"--processes": "--workers", "-p": "--workers"}
OLD: dict[str, dict[str, str]] = {
    "tag": {**_PROCESSES, "--to": "--out"},
    "dedupe": _PROCESSES,
    "neardedupe": _PROCESSES,
    "filter": _PROCESSES,
    "mix": _PROCESSES,
    "stat": _PROCESSES,
    "convert": {"--max-bad": "--error-budget"},
    "prepare": {"--skip-bad-shards": "--on-error=skip"},
}
"""Verb -> deprecated option -> current option."""


class VerbCommand(TyperCommand):
    """Command that also accepts the deprecated options of its verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `ConfigError` if an option is given under both names."""
        return super().parse_args(ctx, list(translated(self.name or "", args)))


def translated(verb: str, words: list[str]) -> Iterator[str]:
    """Yield the words of a command line, with deprecated options replaced by current ones.

    >>> list(translated("stat", ["web", "--processes", "2"]))
    ['web', '--workers', '2']
    """
    from feedmill.jobs.policy import both_given

    old = OLD.get(verb, {})
    end = words.index("--") if "--" in words else len(words)
    given = {word.partition("=")[0] for word in words[:end]}
    warned = set()
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in old and name[:2] in old and name[2:].isdigit():  # -p4
            name, equals, value = name[:2], "=", name[2:]
        if number >= end or name not in old:
            yield word
            continue
        new = old[name]
        if new.partition("=")[0] in given:
            raise both_given(name, new.partition("=")[0])
        if name not in warned:
            logger.warning("%s is now called %s; the old name will be removed", name, new.replace("=", " "))
            warned.add(name)
        yield new + equals + value
