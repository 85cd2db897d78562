"""``dolma tokens`` and ``dolma stat`` beside Dolma's own: whole commands, the same options. README.md says more.

FEEDMILL_DOLMA_CORPUS       a folder with ``documents/*.jsonl.gz`` and ``corpus.json``; by default 32 MB are made
FEEDMILL_BENCH_TOKENIZER    a folder with GPT-2's tokenizer.json
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, alternate, feedmill, run

CORPUS, TOKENIZER = "FEEDMILL_DOLMA_CORPUS", "FEEDMILL_BENCH_TOKENIZER"
TAGGERS = ("char_length_with_paragraphs_v1", "gopher_v2", "pii_regex_with_counts_fast_v2")
SET = "stat_bench"
EOS = 50256


def documents() -> Path:
    """The folder of the corpus."""
    folder = Path(os.environ[CORPUS]) if os.environ.get(CORPUS) else corpus.documents(2, 16)
    corpus.warm(folder)
    return folder


def attributes() -> str:
    """The pattern of an attribute set over the corpus, made once: paragraphs, and 22 numbers for each document."""
    folder = documents()
    if not (folder / "attributes" / SET).exists():
        chosen = [word for name in TAGGERS for word in ("-t", name)]
        run(feedmill("tag", f"{folder}/documents", "--name", SET, *chosen))
    return f"{folder}/attributes/{SET}/*.gz"


def both(words: list[str], repeat: int, clean: Path) -> tuple[dict[str, list[float]], ...]:
    """The same words given to both sides; `clean` is removed before each run."""
    theirs = [peers.need("dolma"), "-m", "dolma.cli", *words]

    def ours() -> dict[str, float]:
        shutil.rmtree(clean, ignore_errors=True)
        return run(feedmill("dolma", *words))

    def peer() -> dict[str, float]:
        shutil.rmtree(clean, ignore_errors=True)
        return run(theirs, peers.environment())

    ours()  # what is compiled is in its cache then
    return alternate(repeat, ours, peer)


def tokens(repeat: int) -> list[Row]:
    """The whole command with GPT-2's vocabulary, one process and two."""
    if not os.environ.get(TOKENIZER):
        raise Failed(f"set {TOKENIZER}")
    folder, rows = documents(), []
    size = json.loads((folder / "corpus.json").read_text())["text_bytes"]
    for processes in (1, 2):
        out = folder / "bench_tokens"
        words = ["tokens", "--documents", f"{folder}/documents/*", "--destination", str(out)]
        words += ["--tokenizer.name_or_path", f"{os.environ[TOKENIZER]}/tokenizer.json"]
        words += ["--tokenizer.eos_token_id", str(EOS), "--max_size", str(1 << 28), "--processes", str(processes)]
        mine, peers = both(words, min(repeat, 3), out)
        what = f"dolma tokens, {size / 1e6:.0f} MB of text, {processes} processes"
        rows.append(Row("dolma-tokens", what, "s", mine["s"], peers["s"]))
    return rows


def stat(repeat: int) -> list[Row]:
    """The whole command over an attribute set, one process and two; and the native verb beside it."""
    pattern, folder, rows = attributes(), documents(), []
    out = folder / "bench_stat"
    for processes in (1, 2):
        words = ["stat", "--attributes", pattern, "--report", str(out), "--processes", str(processes)]
        mine, peers = both(words, min(repeat, 3), out)
        rows.append(Row("dolma-stat", f"dolma stat, {processes} processes", "s", mine["s"], peers["s"]))
    native = [run(feedmill("stat", f"{folder}/attributes/{SET}", "--workers", 1))["s"] for _ in range(repeat)]
    rows.append(Row("dolma-stat", "feedmill stat of the attributes, 1 process", "s", native))
    texts = [run(feedmill("stat", f"{folder}/documents", "--workers", 1))["s"] for _ in range(repeat)]
    rows.append(Row("dolma-stat", "feedmill stat of the documents, 1 process", "s", texts))
    return rows


PARTS = {"dolma-tokens": tokens, "dolma-stat": stat}
