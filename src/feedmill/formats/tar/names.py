"""Expand lists of shards: brace patterns, globs, and several paths. No shell, no commands.

``data/shard-{000..099}.tar``, ``s3://bucket/{a,b}/*.tar`` and lists of such patterns expand to files, in the order of
the braces and, within a glob, sorted by path. ``*`` and ``?`` match within a folder, ``**`` across folders. Names of
existing local folders are never patterns, and only a pattern with a dot matches hidden files, as in a shell.

Rejected: ``pipe:`` and names joined with ``::``. WebDataset passes such names to a shell, or chains openers. A name
that comes with the data must not run a program.

Brace patterns in shard lists: ``shards/s{000..014}.tar``, ``{train,val}.tar``, nested as in a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from feedmill.errors import PATTERN_ERRORS, ConfigError, NotFound
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
        cut = len(folders_of(url))
        for name in [url[:cut] + rest for rest in expand(url[cut:])] if is_pattern(url) else [url]:
            out += _matches(name) if _MAGIC.search(name) and is_pattern(name) else [name]
    return out


def folders_of(pattern: str) -> str:
    """Return the folders before the first wildcard or brace, with a slash. Existing local folders have none."""
    local, at = "://" not in pattern, 0
    while (end := pattern.find("/", at) + 1) > 0:
        part = pattern[at:end]
        if (_MAGIC.search(part) or "{" in part) and not (local and os.path.isdir(pattern[:end])):
            break
        at = end
    return pattern[:at]


def _matches(pattern: str) -> list[str]:
    refuse_secrets(pattern)  # the query of a URL looks like a wildcard
    folder = folders_of(pattern)
    below = pattern[len(folder) :]
    try:
        wanted = re.compile(_translated(below))
    except PATTERN_ERRORS as error:  # a range that runs backwards
        raise ConfigError(f"invalid pattern ({error})", file=pattern, kind="bad-pattern") from None
    dots = below.startswith(".") or "/." in below
    paths = [entry.path for entry in open_store(folder.rstrip("/") or ("/" if folder else ".")).files()]
    found = [path for path in paths if wanted.fullmatch(path) and (dots or "/." not in f"/{path}")]
    if not found:
        raise NotFound("no file matches this pattern", file=pattern, kind="not-found", fix="Check the pattern.")
    return [folder + path for path in found]


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


_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d+))?")
_NUMBER = re.compile(r"\d+")
MAX_EXPANSION = 1_000_000


def expand(pattern: str) -> list[str]:
    """Return all strings of a brace pattern, in order; numeric ranges keep their zero padding.

    A brace without a comma or a range, or without its counterpart, is taken literally.

    Raises:
        ConfigError: it expands to more than `MAX_EXPANSION` names, or has too many braces or digits.
    """
    if "{" not in pattern:
        return [pattern]
    try:
        return _expanded(pattern)
    except (RecursionError, ValueError):  # Python refuses numbers of thousands of digits
        raise ConfigError(f"the pattern {pattern[:80]!r}... has too many braces or digits") from None


def _expanded(pattern: str) -> list[str]:
    opening = pattern.find("{")
    if opening < 0:
        return [pattern]
    closing = _partner(pattern, opening)
    if closing < 0:
        return [pattern[: opening + 1] + rest for rest in _expanded(pattern[opening + 1 :])]
    head, body = pattern[:opening], pattern[opening + 1 : closing]
    choices = _choices(body)
    if choices is None:
        choices = ["{" + inner + "}" for inner in _expanded(body)]
    tails = _expanded(pattern[closing + 1 :])
    if len(choices) * len(tails) > MAX_EXPANSION:
        raise ConfigError(f"the pattern {pattern!r} expands to more than {MAX_EXPANSION:,} names")
    return [head + choice + tail for choice in choices for tail in tails]


def _partner(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return -1


def _choices(body: str) -> list[str] | None:
    match = _RANGE.fullmatch(body)
    if match:
        return _range(match)
    pieces, depth, begin = [], 0, 0
    for at, char in enumerate(body):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            pieces.append(body[begin:at])
            begin = at + 1
    if not pieces:
        return None
    return [choice for piece in [*pieces, body[begin:]] for choice in _expanded(piece)]


def _range(match: re.Match[str]) -> list[str]:
    first, last, step, letter, last_letter, letter_step = match.groups()
    stride = abs(int(step or letter_step or 1)) or 1
    if letter is not None:
        a, b = ord(letter), ord(last_letter)
        return [chr(c) for c in range(a, b + (1 if a <= b else -1), stride if a <= b else -stride)]
    a, b = int(first), int(last)
    if abs(b - a) // stride >= MAX_EXPANSION:
        raise ConfigError(f"the range {match.group()!r} expands to more than {MAX_EXPANSION:,} names")
    padded = any(len(t.lstrip("-")) > 1 and t.lstrip("-").startswith("0") for t in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{n:0{width}d}" for n in range(a, b + (1 if a <= b else -1), stride if a <= b else -stride)]


def collapse(names: Sequence[str]) -> list[str]:
    """Return the shortest list of patterns that expands to exactly these names in order: runs of two or more names that
    differ in one number, counting up by one at the same width, become ``{first..last}``.
    """
    out: list[str] = []
    at = 0
    while at < len(names):
        length, slot = 1, None
        while at + length < len(names):
            found = _next_in_slot(names[at + length - 1], names[at + length])
            if found is None or (slot is not None and found != slot):
                break
            slot, length = found, length + 1
        if slot is None:
            out.append(names[at])
        else:
            first, last = (list(_NUMBER.finditer(n))[slot] for n in (names[at], names[at + length - 1]))
            out.append(f"{names[at][: first.start()]}{{{first[0]}..{last[0]}}}{names[at][first.end() :]}")
        at += length
    return out


def _next_in_slot(a: str, b: str) -> int | None:
    """Return which number of `a`, counted from 0, is one higher in `b`; None unless that is their only difference."""
    if len(a) != len(b) or _NUMBER.split(a) != _NUMBER.split(b):
        return None
    differing = [
        (i, x, y) for i, (x, y) in enumerate(zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True)) if x != y
    ]
    if len(differing) == 1 and len(differing[0][1]) == len(differing[0][2]):
        slot, x, y = differing[0]
        if int(y) == int(x) + 1:
            return slot
    return None
