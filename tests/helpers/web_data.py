"""Datasets that pages show."""

from __future__ import annotations

import io
import json
from pathlib import Path

import feedmill as fm
from helpers.tars import write_tar
from helpers.tokenizer_data import EOS, tokenizer_file

TEXTS = [f"document {n}: " + "one two three four five. " * (1 + n % 7) for n in range(90)]


def picture(number: int, size: int = 40) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (size + number % 5, size), (number % 256, 80, 160)).save(out, "PNG")
    return out.getvalue()


def make_pictures(root: Path, count: int = 130) -> Path:
    """Images with captions in four shards, with an index and splits."""
    for shard in range(4):
        files = []
        for n in range(shard * count // 4, (shard + 1) * count // 4):
            files += [
                (f"page-{n:04d}.png", picture(n)),
                (f"page-{n:04d}.json", json.dumps({"caption": TEXTS[n % 90], "n": n}).encode()),
            ]
        write_tar(root / f"pages-{shard}.tar", files)
    fm.prepare(str(root), split_ratio="2,1,1", progress=False)
    return root


def make_tokens(root: Path) -> Path:
    """Two files of tokens, and a recipe that packs them."""
    root.mkdir()
    for name, texts in (("prose", TEXTS[:50]), ("code", TEXTS[50:])):
        lines = root / f"{name}.jsonl"
        lines.write_text(
            "".join(json.dumps({"id": f"{name}-{n}", "text": text}) + "\n" for n, text in enumerate(texts))
        )
        fm.tokenize([lines], root / name, tokenizer=tokenizer_file("tok1k"), eos=EOS, progress=False)
    recipe = "seed: 3\nepochs: 4\npack: {seq_len: 128}\nconcat:\n  - {path: prose.pbin}\n  - {path: code.pbin}\n"
    (root / "packed.yaml").write_text(recipe)
    return root


def make_documents(root: Path, count: int = 120) -> Path:
    """Documents of two sources in two files, with copies, near-copies, addresses, and attributes beside them."""
    import gzip

    (root / "documents").mkdir(parents=True)
    (root / "attributes/own").mkdir(parents=True)
    words = [f"word{n * 7919 % 997}" for n in range(4000)]
    texts = [" ".join(words[13 * n : 13 * n + 8 + n % 50]) for n in range(count)]
    for n in range(0, count, 10):
        texts[n] += f" write to user{n}@example.org" + " or me@example.org" * (n % 20 == 0)
    for copy, first in ((40, 5), (70, 5), (71, 6)):
        texts[copy] = texts[first]
    for near, first in ((45, 49), (90, 49), (91, 99)):
        texts[near] = texts[first] + " and a new end"
    half = count // 2
    for name, numbers in (("a", range(half)), ("b", range(half, count))):
        rows, spans = [], []
        for n in numbers:
            row = {"id": f"{name}{n}", "text": texts[n], "source": "wiki" if n % 3 else "news"}
            rows.append(row | {"metadata": {"score": n * 37 % 101 / 100}, "stars": n % 6})
            own = {'it\'s "a" [b].c': [[0, len(texts[n]), n % 9 / 8]]} | (
                {"rare": [[0, len(texts[n]), n // 10]]} if n % 10 == 0 else {}
            )
            spans.append({"id": f"{name}{n}", "attributes": own})
        for path, lines in ((f"documents/{name}.jsonl.gz", rows), (f"attributes/own/{name}.jsonl.gz", spans)):
            (root / path).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    documents = str(root / "documents")
    fm.tag(documents, ["char_length_v1", "pii_regex_v2"], name="q", progress=False)
    fm.dedupe(documents, name="dup", progress=False)
    fm.dedupe([documents], near=True, name="dup_near", progress=False)
    return root
