"""Compare ``dolma tokens`` and ``dolma stat`` with Dolma: whole commands with the same options. README.md has details.

FEEDMILL_DOLMA_CORPUS       a folder with ``documents/*.jsonl.gz`` and ``corpus.json``; by default 32 MB are generated
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
    """Return the folder of the corpus."""
    folder = Path(os.environ[CORPUS]) if os.environ.get(CORPUS) else corpus.documents(2, 16)
    corpus.warm(folder)
    return folder


def attributes() -> str:
    """Create an attribute set over the corpus once, with paragraphs and 22 numbers per document; return its pattern."""
    folder = documents()
    if not (folder / "attributes" / SET).exists():
        chosen = [word for name in TAGGERS for word in ("-t", name)]
        run(feedmill("tag", f"{folder}/documents", "--name", SET, *chosen))
    return f"{folder}/attributes/{SET}/*.gz"


def both(words: list[str], repeat: int, clean: Path) -> tuple[dict[str, list[float]], ...]:
    """Run the same arguments with Feedmill and with Dolma; delete `clean` before each run."""
    theirs = [peers.need("dolma"), "-m", "dolma.cli", *words]

    def ours() -> dict[str, float]:
        shutil.rmtree(clean, ignore_errors=True)
        return run(feedmill("compat", "dolma", *words))

    def peer() -> dict[str, float]:
        shutil.rmtree(clean, ignore_errors=True)
        return run(theirs, peers.environment())

    ours()  # not counted: fills the cache of compiled code
    return alternate(repeat, ours, peer)


def tokens(repeat: int) -> list[Row]:
    """Measure the command with GPT-2's vocabulary, with one process and with two."""
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
    """Measure the command over an attribute set with one process and with two, and the native verb."""
    pattern, folder, rows = attributes(), documents(), []
    out = folder / "bench_stat"
    for processes in (1, 2):
        words = ["documents", "stat", "--attributes", pattern, "--report", str(out), "--processes", str(processes)]
        mine, peers = both(words, min(repeat, 3), out)
        rows.append(Row("dolma-stat", f"dolma stat, {processes} processes", "s", mine["s"], peers["s"]))
    native = [
        run(feedmill("documents", "stat", f"{folder}/attributes/{SET}", "--workers", 1))["s"] for _ in range(repeat)
    ]
    rows.append(Row("dolma-stat", "feedmill documents stat of the attributes, 1 process", "s", native))
    texts = [run(feedmill("documents", "stat", f"{folder}/documents", "--workers", 1))["s"] for _ in range(repeat)]
    rows.append(Row("dolma-stat", "feedmill documents stat of the documents, 1 process", "s", texts))
    return rows


PARTS = {"dolma-tokens": tokens, "dolma-stat": stat}
