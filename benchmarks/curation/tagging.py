"""Compare tagging with Dolma: whole commands on 128 MB of text with the same arguments. README.md has details.

``FEEDMILL_DOLMA_CORPUS`` may name another corpus: a folder with ``documents/*.jsonl.gz`` and ``corpus.json`` (with
``text_bytes``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, feedmill, run

CORPUS = "FEEDMILL_DOLMA_CORPUS"
LENGTHS = ("char_length_with_paragraphs_v1", "whitespace_tokenizer_with_paragraphs_v1")
GROUPS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "lengths of paragraphs, two taggers": (LENGTHS, 10),
    "c4_v2": (("c4_v2",), 8),
    "gopher_v2": (("gopher_v2",), 20),
    "pii_regex_with_counts_fast_v2": (("pii_regex_with_counts_fast_v2",), None),
    "six taggers": ((*LENGTHS, "c4_v2", "gopher_v1", "gopher_v2", "pii_regex_with_counts_fast_v2"), 20),
}
"""The measured taggers, and the target ratio to Dolma's speed."""

SLOW = {"uniseg_length_paragraphs_v1": 4, "paragraph_repetitions_v1": 4}
"""Taggers for which Dolma takes seconds per megabyte, and the size of their data in megabytes."""


def side(ours: bool, folder: Path, taggers: tuple[str, ...], processes: int) -> dict[str, float]:
    """Run one whole command, and return its measurement."""
    shutil.rmtree(folder / "attributes/bench", ignore_errors=True)
    corpus.warm(folder)
    words = ["tag", "--documents", f"{folder}/documents/*", "--experiment", "bench", "--taggers", *taggers]
    words += ["--processes", str(processes)]
    if ours:
        return run(feedmill("compat", "dolma", *words))
    environment = {**peers.environment(), "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    return run([peers.program("dolma", "dolma"), *words], environment)


def _rows(
    name: str, taggers: tuple[str, ...], wanted: float | None, folder: Path, processes: int, repeat: int
) -> list[Row]:
    has_peer = peers.python("dolma") is not None
    side(True, folder, taggers, processes)  # not counted: fills the cache of compiled code
    ours, theirs = alternate(
        repeat,
        partial(side, True, folder, taggers, processes),
        partial(side, False, folder, taggers, processes) if has_peer else None,
    )
    size = json.loads((folder / "corpus.json").read_text())["text_bytes"] / 1e6
    rates = ([size / second for second in numbers.get("s", [])] for numbers in (ours, theirs))
    what = f"{name}, {processes} process" + ("es" if processes > 1 else "")
    rows = [Row("tag", f"{what}, MB/s", "/s", *rates, wanted)]
    rows.append(Row("tag", "  the same: processor time", "s", ours["cpu_s"], theirs.get("cpu_s", [])))
    shutil.rmtree(folder / "attributes/bench", ignore_errors=True)
    return rows


def tagging(repeat: int) -> list[Row]:
    """Measure each group with one process and with two; at most three runs, because Dolma takes minutes."""
    named = os.environ.get(CORPUS)
    folder = Path(named) if named else corpus.documents(8, 16)
    rows = []
    for processes in (1, 2):
        for name, (taggers, wanted) in GROUPS.items():
            rows += _rows(name, taggers, wanted, folder, processes, min(repeat, 3))
    return rows


def slow(repeat: int) -> list[Row]:
    """Measure the taggers that Dolma runs with expressions and tables in Python, on little data."""
    rows = []
    for name, megabytes in SLOW.items():
        rows += _rows(name, (name,), None, corpus.documents(1, megabytes), 1, min(repeat, 3))
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"tag": tagging, "tag-slow": slow}
