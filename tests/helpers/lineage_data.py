"""Raw documents that are deduplicated, filtered, tokenized to all formats and packed, to follow their lineage."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import yaml

import feedmill as fm
from helpers.tokenizer_data import tokenizer_file

TOKENIZER = str(tokenizer_file("tok1k"))
WORDS = ["water", "stone", "river", "light", "paper", "music", "seven", "green", "north", "small"]
FORMATS = ("pbin", "ds", "megatron", "dolma", "vla-text")
SEQUENCE, WIDTH = 63, 96


def make_raw(root: Path, count: int, files: int = 3) -> list[list[bytes]]:
    """Write ``documents/*``, plain and compressed, with exact duplicates and blank texts; return their lines."""
    draw = random.Random(5)
    lines: list[list[bytes]] = []
    texts: list[str] = []
    for number in range(files):
        rows = []
        for row in range(count // files):
            if texts and draw.random() < 0.1:
                text = draw.choice(texts[-500:])
            else:
                text = f"document {number} {row} " + " ".join(draw.choices(WORDS, k=draw.randrange(2, 24)))
                texts.append(text)
            rows.append(json.dumps({"id": f"d{number}-{row}", "text": text, "source": "raw"}).encode())
        lines.append(rows)
        data = b"".join(row + b"\n" for row in rows)
        path = root / f"documents/part-{number}.jsonl{'.gz' if number % 2 else ''}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if number % 2 else data)
        scores = b"".join(
            json.dumps({"id": json.loads(row)["id"], "attributes": {"good": [[0, 1, draw.random()]]}}).encode() + b"\n"
            for row in rows
        )
        below = root / f"attributes/quality/part-{number}.jsonl{'.gz' if number % 2 else ''}"
        below.parent.mkdir(parents=True, exist_ok=True)
        below.write_bytes(gzip.compress(scores, mtime=0) if number % 2 else scores)
    return lines


def build(root: Path, count: int, *, least: float = 0.4, max_size: int = 60_000) -> list[list[bytes]]:
    """Make raw documents and everything that is made from them; return the raw lines of each file."""
    lines = make_raw(root, count)
    fm.dedupe([str(root / "documents")], progress=False, workers=1)
    rules = {
        "name": "kept",
        "documents": [str(root / "documents/*")],
        "attributes": ["quality", "dup_documents"],
        "filter": {
            "include": [f"$.attributes[?(@.good[0][2] >= {least})]"],
            "exclude": ["$.attributes[?(@.dup_documents && @.dup_documents[0])]"],
        },
        "output": {"path": str(root / "kept"), "max_size_in_bytes": max_size},
    }
    (root / "filter.yaml").write_text(yaml.safe_dump({"streams": [rules]}))
    fm.filter(str(root / "filter.yaml"), workers=1, progress=False)
    tokens = {"tokenizer": TOKENIZER, "workers": 1, "progress": False, "unit_bytes": 40_000}
    fm.tokenize(str(root / "kept"), str(root / "tokens/web"), formats=FORMATS, seq_len=SEQUENCE, **tokens)
    fm.tokenize(str(root / "kept"), str(root / "numbered/web"), formats=("pbin",), max_file_size="30kB", **tokens)
    recipe = {"seed": 3, "epochs": 2, "concat": [{"path": "tokens/web.pbin"}], "pack": {"seq_len": WIDTH}}
    (root / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "shuffle": "global"}))
    return lines
