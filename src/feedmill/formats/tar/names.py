"""Expand lists of shards: brace patterns, globs, and several paths. No shell, no commands.

``data/shard-{000..099}.tar``, ``s3://bucket/{a,b}/*.tar`` and lists of such patterns expand to files, in the order of
the braces and, within a glob, sorted by path. ``*`` and ``?`` match within a folder, ``**`` across folders.

Rejected: ``pipe:`` and names joined with ``::``. WebDataset passes such names to a shell, or chains openers. A name
that comes with the data must not run a program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from feedmill.errors import PATTERN_ERRORS, ConfigError, NotFound
from feedmill.formats.braces import expand
from feedmill.storage import open_store, refuse_secrets, split_url

_MAGIC = re.compile(r"[*?\[]")
_VARIABLE = re.compile(r"(\$\{[^}]*\}?|(?<![^/])\$[A-Za-z_]\w*)")
_COMMAND = re.compile(r"::|(?:^|/)pipe:")


def refuse_commands(url: str) -> None:
    """Raise `ConfigError` for a name that WebDataset would run or chain."""
    if _COMMAND.search(url):
        what = "a shell command" if "pipe:" in url else "a chain of openers"
        raise ConfigError(
            f"{url[:120]!r} is {what}, and names must not run programs",
            kind="unsafe-name",
            fix="Give the path or URL of the data, such as s3://bucket/shard-{000..099}.tar. Feedmill reads object"
            " stores directly.",
        )
    variable = _VARIABLE.search(url)
    if variable is not None and ("${" in url or not os.path.exists(url)):
        raise ConfigError(
            f"{url[:120]!r} contains {variable[1]}: environment variables in names are not expanded",
            kind="unsafe-name",
            fix="Write the whole path or URL.",
        )


def is_pattern(url: str) -> bool:
    """Return whether a path or URL is a pattern for several files. An existing path is not."""
    if not _MAGIC.search(url) and "{" not in url:
        return False
    return "://" in url or not os.path.exists(url)


def expand_patterns(urls: Sequence[str]) -> list[str]:
    """Return all files of paths, URLs and patterns, in order.

    Raises:
        ConfigError: a name is a command.
        NotFound: no file matches a pattern.
    """
    out: list[str] = []
    for url in urls:
        refuse_commands(url)
        for name in expand(url) if is_pattern(url) else [url]:
            out += _matches(name) if _MAGIC.search(name) and is_pattern(name) else [name]
    return out


def _matches(pattern: str) -> list[str]:
    refuse_secrets(pattern)  # the query of a URL looks like a wildcard
    root, separator, rest = pattern.rpartition("://")
    at = _MAGIC.search(rest)
    assert at is not None
    folder = rest[: rest.rfind("/", 0, at.start()) + 1]
    try:
        wanted = re.compile(_translated(rest[len(folder) :]))
    except PATTERN_ERRORS as error:  # a range that runs backwards
        raise ConfigError(f"invalid pattern ({error})", file=pattern, kind="bad-pattern") from None
    base = f"{root}{separator}{folder}".rstrip("/") or ("/" if folder else ".")
    found = [entry.path for entry in open_store(base).files() if wanted.fullmatch(entry.path)]
    if not found:
        raise NotFound("no file matches this pattern", file=pattern, kind="not-found", fix="Check the pattern.")
    return [f"{root}{separator}{folder}{path}" for path in found]


def _translated(pattern: str) -> str:
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
            continue
        char = pattern[at]
        closing = pattern.find("]", at + 2) if char == "[" else -1
        if closing > 0:
            inside = pattern[at + 1 : closing].replace("\\", "\\\\")
            out, at = out + f"[{'^' + inside[1:] if inside[0] == '!' else inside}]", closing + 1
            continue
        out += {"*": ".*" if pattern.startswith("**", at) else "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        at += 1
    return out


def refuse_twice(files: Sequence[str]) -> None:
    """Raise `ConfigError` if a file is listed twice."""
    seen: set[str] = set()
    for file in files:
        if file in seen:
            raise ConfigError(
                "the file is listed twice", file=file, kind="listed-twice", fix="Use 'epochs' in a recipe instead."
            )
        seen.add(file)


def common_top(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the deepest common folder of these files, and their paths in it.

    Raises:
        ConfigError: there is none, for example for files of two buckets.
    """
    places = [split_url(url) for url in urls]
    parts = [(folder if "://" in folder else os.path.abspath(folder)).split("/") for folder, _ in places]
    depth = next((i for i, same in enumerate(zip(*parts, strict=False)) if len(set(same)) > 1), min(map(len, parts)))
    if depth < (3 if any("://" in folder for folder, _ in places) else 1):
        raise ConfigError("files of different stores cannot be opened together", fix="Blend them with a recipe.")
    top = "/".join(parts[0][:depth]) or "/"
    return top, ["/".join([*part[depth:], name]) for part, (_, name) in zip(parts, places, strict=True)]
