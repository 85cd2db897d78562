"""Split token files or JSONL files into parts: chunks, parts by ratio, or an exact plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.jobs.options import verb
from feedmill.planning.permutation import derive, permute
from feedmill.storage import paths_of
from feedmill.tokens.corpus import Documents, Numbers, open_corpus
from feedmill.tokens.options import Split
from feedmill.tokens.outputs import need_parts, part_path
from feedmill.tokens.rewrite import Part, TokensReport, form_for, start
from feedmill.tokens.verbs.shuffle import chunk_range

_MOST_EMPTY = 10_000
"""Number of chunks that is always accepted. If there are fewer documents, some chunks are empty."""
"""Part -> its documents: numbers, or pairs ``[first, stop]``; ``stop`` is excluded."""


@verb(Split)
def split(options: Split) -> TokensReport:
    """Exactly one of `chunks`, `ratio` and `plan` is given. The first chunks may have one document more.

    Raises:
        EmptyResult: no part has a document.
        ConfigError: not exactly one of chunks, ratio and plan is given, a part is invalid, or an output exists.
    """
    inputs = paths_of(options.inputs)
    chunks, ratio, plan = options.chunks, options.ratio, options.plan
    output = os.fspath(options.output)
    if sum(way is not None for way in (chunks, ratio, plan)) != 1:
        raise ConfigError(
            "expected exactly one of: a number of chunks, a ratio, a plan",
            kind="bad-option",
            fix="Pass one of them, e.g. --ratio train=8,val=1,test=1.",
        )
    need_parts(output, "dividing")
    corpus = open_corpus(inputs, token_size=options.token_size, mixed=options.mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=options.drop_loss)
    documents = Documents(corpus)
    count = len(documents)
    if chunks is not None and chunks > max(count, _MOST_EMPTY):
        raise ConfigError(
            f"{count:,} documents cannot be divided into {chunks:,} chunks", kind="bad-option", fix="Use fewer chunks."
        )
    planned: dict[str | int, Numbers] = {name: _planned(name, entries, count) for name, entries in (plan or {}).items()}
    identity = {"verb": "split", "chunks": chunks, "ratio": ratio}
    seeded = ratio is not None
    running: dict[str, Any] = {name: getattr(options, name) for name in ("overwrite", "workers", "progress")}
    with start(output, corpus, form, identity, seed=options.seed, seeded=seeded, plan=plan, **running) as run:
        rows: dict[str | int, Numbers]
        if chunks is not None:
            rows = dict(enumerate(chunk_range(count, chunks, number) for number in range(max(chunks, 1))))
        elif ratio is not None:
            rows = dict(zip(ratio, parts_by_ratio(count, list(ratio.values()), run.seed), strict=True))
        else:
            rows = planned
        _check_names(rows)
        parts = [Part(part_path(output, name), numbers) for name, numbers in rows.items()]
        numbered = output if chunks is not None else ""
        run.write(documents, parts, numbered=numbered, allow_empty=options.allow_empty)
        left = _in_no_part(rows.values(), count)
        if left:
            run.left_out["documents in no part"] = left
        empty = [str(name) for name, numbers in rows.items() if not len(numbers)]
        if empty:
            shown = ", ".join(empty[:5]) + (f" and {len(empty) - 5:,} more" if len(empty) > 5 else "")
            run.notes.append(f"parts without a document: {shown}")
        return run.finish()


def _planned(name: str, entries: Sequence[int | Sequence[int]], count: int) -> Int64s:
    """Return the documents of one part of a plan, in its order. Raises `ConfigError`."""
    pieces: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for entry in entries:
        low, high = (entry, entry + 1) if isinstance(entry, int) else _pair(name, entry)
        if not 0 <= low <= high <= count:
            raise ConfigError(
                f"the part {name!r} contains documents {low} to {high - 1}, but there are only {count}",
                kind="bad-option",
                fix="Documents are numbered from 0.",
            )
        pieces.append(np.arange(low, high))
    return np.concatenate(pieces)


def _pair(name: str, entry: Sequence[int]) -> tuple[int, int]:
    if not isinstance(entry, Sequence) or len(entry) != 2 or not all(isinstance(number, int) for number in entry):
        raise ConfigError(
            f"the part {name!r} has the invalid entry {entry!r}",
            kind="bad-option",
            fix="Use a number, or a pair [first, stop], where stop is excluded.",
        )
    return entry[0], entry[1]


def _check_names(rows: Mapping[str | int, Numbers]) -> None:
    for name in rows:
        if isinstance(name, str) and (not name or "/" in name or name.startswith(".")):
            raise ConfigError(
                f"invalid part name {name!r}",
                kind="bad-option",
                fix="Use a name without '/' that does not begin with a dot.",
            )


def _in_no_part(rows: Iterable[Numbers], count: int) -> int:
    seen = np.zeros(count, np.bool_)
    for numbers in rows:
        seen[np.asarray(numbers, np.int64)] = True
    return count - int(seen.sum())


_BLOCK = 1 << 20


def parts_by_ratio(n: int, ratio: Sequence[float], seed: int) -> list[Int64s]:
    """Divide n documents at random into parts of exact sizes; each part keeps the stored order.

    Args:
        ratio: weights of 0 or more. Sizes are rounded by largest remainder.
        seed: seed of the assignment of documents to parts.

    Returns:
        The documents of each part in ascending order, int64.

    Raises:
        ConfigError: there are no weights, or they are negative or all zero.
    """
    if not ratio or min(ratio) < 0 or not 0 < sum(ratio) < float("inf"):
        raise ConfigError(
            f"invalid ratio {', '.join(map(str, ratio))}",
            kind="bad-option",
            fix="Pass numbers of 0 or more that are not all 0, e.g. 8,1,1.",
        )
    exact = np.asarray(ratio, np.float64) / sum(ratio) * n
    sizes = np.floor(exact).astype(np.int64)
    missing = n - int(sizes.sum())
    sizes[np.argsort(-(exact - sizes), kind="stable")[:missing]] += 1
    ends = np.cumsum(sizes)
    key = derive(seed, "split documents")
    part = np.empty(n, np.int16)
    for low in range(0, n, _BLOCK):
        high = min(low + _BLOCK, n)
        part[low:high] = np.searchsorted(ends, permute(np.arange(low, high), n, key), side="right")
    return [np.flatnonzero(part == number) for number in range(len(ratio))]
