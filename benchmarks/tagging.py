"""Tagging beside Dolma: whole commands, the same arguments on both sides.

    PYTHONPATH=src FEEDMILL_DOLMA_PYTHON=../dolma-venv/bin/python python benchmarks/tagging.py CORPUS [--repeat 3]
        [--only gopher,six] [--processes 1 2]

CORPUS is a folder with ``documents/*.jsonl.gz`` and ``corpus.json`` (its ``text_bytes`` and ``docs``). Both sides write
the attributes of one experiment; Feedmill hashes inputs and outputs for its records as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from measure import alternate, feedmill, run

LENGTHS = ("char_length_with_paragraphs_v1", "whitespace_tokenizer_with_paragraphs_v1")
GROUPS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "length": (("char_length_v1",), None),
    "paragraphs": (LENGTHS, 10.0),
    "c4": (("c4_v2",), 8.0),
    "gopher": (("gopher_v2",), 20.0),
    "pii": (("pii_regex_with_counts_fast_v2",), None),
    "six": ((*LENGTHS, "c4_v2", "gopher_v1", "gopher_v2", "pii_regex_with_counts_fast_v2"), 20.0),
    "uniseg": (("uniseg_length_paragraphs_v1",), None),
    "repetitions": (("paragraph_repetitions_v1",), None),
}
"""The taggers, and how many times Dolma's speed is wanted."""

SLOW = ("uniseg", "repetitions")
"""Dolma takes a quarter of an hour for these; measured where they are named."""


def main() -> None:
    """Print one line for each group and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--only", default=",".join(name for name in GROUPS if name not in SLOW))
    options = parser.parse_args()
    facts = json.loads((options.corpus / "corpus.json").read_text())
    python = os.environ.get("FEEDMILL_DOLMA_PYTHON")
    for processes in options.processes:
        for name in options.only.split(","):
            taggers, wanted = GROUPS[name]
            words = ["tag", "--documents", f"{options.corpus}/documents/*", "--experiment", "bench"]
            words += ["--taggers", *taggers, "--processes", str(processes)]

            def side(command: list[str], corpus: Path = options.corpus) -> dict[str, float]:
                shutil.rmtree(corpus / "attributes/bench", ignore_errors=True)
                environment = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
                return run(command, environment)

            ours = feedmill("dolma", *words)
            theirs = [str(Path(python).with_name("dolma")), *words] if python else None
            side(ours)  # not counted: the compiled code comes into its cache
            found = alternate(
                options.repeat,
                lambda side=side, ours=ours: side(ours),
                (lambda side=side, theirs=theirs: side(theirs)) if theirs else None,
            )
            show(name, processes, *found, size=facts["text_bytes"], wanted=wanted)
    shutil.rmtree(options.corpus / "attributes/bench", ignore_errors=True)


def show(
    name: str, processes: int, ours: dict[str, Any], theirs: dict[str, Any], *, size: int, wanted: float | None
) -> None:
    """One line: medians of both sides and their ratio, of time passed and of processor time."""
    second, peer = statistics.median(ours["s"]), statistics.median(theirs.get("s", [0]))
    cpu, peers_cpu = statistics.median(ours["cpu_s"]), statistics.median(theirs.get("cpu_s", [0]))
    promise = f", wanted {wanted:g}" if wanted else ""
    print(
        f"{name:12} {processes} processes: {second:7.2f} s ({size / 1e6 / second:5.1f} MB/s, cpu {cpu:6.2f} s),"
        f" Dolma {peer:7.2f} s (cpu {peers_cpu:7.2f} s):"
        f" {peer / second:5.1f} times, by cpu {peers_cpu / cpu:5.1f} times{promise}",
        flush=True,
    )


if __name__ == "__main__":
    main()
