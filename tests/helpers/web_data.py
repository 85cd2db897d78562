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
