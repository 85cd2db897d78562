"""Dividing token files, or JSONL files, into several: chunks, parts by ratio, or an exact plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.tokens.corpus import open_corpus
from feedmill.tokens.orders import Numbers, chunk_range, parts_by_ratio
from feedmill.tokens.rewrite import Report, start
from feedmill.tokens.targets import Part, form_for, need_parts, part_path
from feedmill.tokens.units import Documents

_MOST_EMPTY = 10_000
"""Chunks that may be asked for, whatever the number of documents; some of them have none then."""
SplitPlan = Mapping[str, Sequence[int | Sequence[int]]]
"""For each part its documents: numbers, or pairs ``[first, behind the last]``."""


def split(
    inputs: Sequence[str],
    output: str,
    *,
    chunks: int | None = None,
    ratio: Mapping[str, float] | None = None,
    plan: SplitPlan | None = None,
    seed: int | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    allow_empty: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Report:
    """Divide documents into parts, a file each. Killed at any moment, the same call again finishes the work.

    Args:
        inputs: files, or folders of files of one format; paths or URLs.
        output: with ``{part}`` where the part's name or number belongs.
        chunks: this many parts of neighbouring documents, of equal size (the first ones may have one more).
        ratio: weights by name. Which documents go where is drawn with `seed`; sizes are exact, the stored order stays.
        plan: exactly these documents; those in no part are counted as left out, one may be in several.
        seed: of `ratio`; drawn, and reported, by default.
        token_size, mixed_tokenizers, drop_loss, allow_empty, overwrite: as in `feedmill.tokens.merge.merge`.

    Raises:
        EmptyResult: no part has a document.
        ConfigError: not exactly one way to divide, a part that can't be, or an output that exists.
    """
    if sum(way is not None for way in (chunks, ratio, plan)) != 1:
        raise ConfigError(
            "there are three ways to divide: a number of chunks, a ratio, or a plan",
            kind="bad-split",
            fix="Give one of them, e.g. --ratio train=8,val=1,test=1.",
        )
    need_parts(output, "dividing")
    corpus = open_corpus(inputs, token_size=token_size, mixed=mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=drop_loss)
    documents = Documents(corpus)
    count = len(documents)
    if chunks is not None and chunks > max(count, _MOST_EMPTY):
        raise ConfigError(
            f"{count:,} documents cannot be divided into {chunks:,} chunks", kind="bad-split", fix="Give fewer chunks."
        )
    planned: dict[str | int, Numbers] = {name: _planned(name, entries, count) for name, entries in (plan or {}).items()}
    options = {"verb": "split", "chunks": chunks, "ratio": ratio}
    seeded = ratio is not None
    with start(
        output, corpus, form, options, seed=seed, seeded=seeded, overwrite=overwrite, progress=progress, plan=plan
    ) as run:
        rows: dict[str | int, Numbers]
        if chunks is not None:
            rows = dict(enumerate(chunk_range(count, chunks, number) for number in range(max(chunks, 1))))
        elif ratio is not None:
            rows = dict(zip(ratio, parts_by_ratio(count, list(ratio.values()), run.seed), strict=True))
        else:
            rows = planned
        _check_names(rows)
        parts = [Part(part_path(output, name), numbers) for name, numbers in rows.items()]
        run.write(documents, parts, numbered=output if chunks is not None else "", allow_empty=allow_empty)
        report = run.finish()
        left = _in_no_part(rows.values(), count)
        if left:
            report.left_out["documents in no part"] = left
        empty = [str(name) for name, numbers in rows.items() if not len(numbers)]
        if empty:
            shown = ", ".join(empty[:5]) + (f" and {len(empty) - 5:,} more" if len(empty) > 5 else "")
            report.notes.append(f"parts without a document: {shown}")
        return report


def _planned(name: str, entries: Sequence[int | Sequence[int]], count: int) -> Int64s:
    """Return the documents of one part of a plan, in its order. Raises `ConfigError`."""
    pieces: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for entry in entries:
        low, high = (entry, entry + 1) if isinstance(entry, int) else _pair(name, entry)
        if not 0 <= low <= high <= count:
            raise ConfigError(
                f"the part {name!r} names documents {low} to {high - 1}, and there are {count}",
                kind="bad-split",
                fix="Documents are numbered from 0.",
            )
        pieces.append(np.arange(low, high))
    return np.concatenate(pieces)


def _pair(name: str, entry: Sequence[int]) -> tuple[int, int]:
    if not isinstance(entry, Sequence) or len(entry) != 2 or not all(isinstance(number, int) for number in entry):
        raise ConfigError(
            f"the part {name!r} has the entry {entry!r}",
            kind="bad-split",
            fix="An entry is a number, or a pair [first, behind the last].",
        )
    return entry[0], entry[1]


def _check_names(rows: Mapping[str | int, Numbers]) -> None:
    for name in rows:
        if isinstance(name, str) and (not name or "/" in name or name.startswith(".")):
            raise ConfigError(f"{name!r} is no name of a part", kind="bad-split", fix="Use a plain word.")


def _in_no_part(rows: Iterable[Numbers], count: int) -> int:
    seen = np.zeros(count, np.bool_)
    for numbers in rows:
        seen[np.asarray(numbers, np.int64)] = True
    return count - int(seen.sum())
