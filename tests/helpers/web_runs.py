"""A pipeline that has run, and telemetry of loaders, as pages show them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import feedmill as fm
from feedmill.loading.metrics import Metrics
from helpers.tokenizer_data import EOS, tokenizer_file
from helpers.web_data import TEXTS


def make_pipeline(root: Path) -> Path:
    """A pipeline of three steps that have run, and again with another option and one more document.

    The manifest of the first run is kept as ``before.run.json``.
    """
    documents = root / "crawl/documents"
    documents.mkdir(parents=True)
    lines = [json.dumps({"id": f"{n}", "text": text}) + "\n" for n, text in enumerate(TEXTS[:20])]
    (documents / "part.jsonl").write_text("".join(lines))
    path, before = root / "crawl.yaml", root / "before.run.json"
    write_pipeline(root, "lengths")
    fm.run(path, progress=False)
    shutil.copyfile(root / "crawl.run.json", before)
    write_pipeline(root, "lengths", append_eos=False)
    with open(documents / "part.jsonl", "a") as file:
        file.write(json.dumps({"id": "20", "text": TEXTS[20]}) + "\n")
    fm.run(path, progress=False)
    return path


def write_pipeline(root: Path, name: str, append_eos: bool = True) -> None:
    """Write the pipeline; its paths are absolute, so that it runs in any folder."""
    eos = {"eos": EOS} if append_eos else {}
    steps = [
        {
            "name": name,
            "verb": "tag",
            "inputs": [f"{root}/crawl/documents"],
            "outputs": [f"{root}/crawl/attributes/lengths"],
            "options": {"taggers": ["char_length_v1"], "name": "lengths"},
        },
        {
            "name": "tokens",
            "verb": "tokenize",
            "inputs": [f"{root}/crawl/documents/part.jsonl"],
            "outputs": [f"{root}/crawl/tokens"],
            "options": {"tokenizer": str(tokenizer_file("tok1k")), **eos},
        },
        {
            "verb": "merge",
            "inputs": [f"{root}/crawl/tokens.pbin", f"{root}/crawl/tokens.pbin"],
            "outputs": [f"{root}/crawl/twice.pbin"],
        },
    ]
    (root / "crawl.yaml").write_text(json.dumps({"steps": steps}))


def reports(rank: int, count: int = 40, every: float = 10.0, ago: float = 0.0) -> list[bytes]:
    """Lines of telemetry of a rank, the last one `ago` seconds before now; rank 2 waits for reading."""
    metrics, lines, now = Metrics(rank), [], time.time() - ago - every * (count - 1)
    for number in range(count):
        for batch in range(20):
            slow = 0.02 * (rank == 2) * (number > count // 2)
            waited = 0.004 + slow + 0.01 * (number == 10)
            stages = {
                "read": 0.003 + slow,
                "transform": 0.002 + 0.001 * (rank % 3),
                "collate": 0.001,
                "transfer": 0.0005,
            }
            metrics.given(waited, (number * 20 + batch) * 0.1, stages)
            metrics.made(stages, 32)
        metrics.position = 32 * 4 * metrics.batches
        lines.append(json.dumps({"time": now + number * every, **metrics.snapshot()}).encode() + b"\n")
    return lines


def make_telemetry(root: Path, ranks: int = 4, ago: float = 0.0) -> Path:
    """A file of telemetry for each rank; the path has ``{rank}``."""
    root.mkdir(exist_ok=True)
    for rank in range(ranks):
        (root / f"loading-{rank}.jsonl").write_bytes(b"".join(reports(rank, ago=ago)))
    return root / "loading-{rank}.jsonl"
