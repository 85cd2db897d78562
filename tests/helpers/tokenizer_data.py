"""Tokenizers and documents for the tests of tokenizing."""

from __future__ import annotations

import functools
import json
import lzma
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from feedmill.formats.tokens.pbin import open_pbin
from feedmill.storage import open_store
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
MODALITIES, NANOSETS = GOLDEN / "modalities", GOLDEN / "nanosets"
EOS = "<|endoftext|>"


@functools.cache
def tokenizer_file(name: str) -> Path:
    """``tok1k``, ``tok1k_bos``, ``tok66k`` or ``tok256``: its tokenizer.json."""
    for folder in (MODALITIES, NANOSETS):
        if (folder / name / "tokenizer.json").exists():
            return folder / name / "tokenizer.json"
    target = Path(tempfile.mkdtemp(prefix="feedmill-tests-")) / "tokenizer.json"
    target.write_bytes(lzma.decompress((NANOSETS / name / "tokenizer.json.xz").read_bytes()))
    functools.partial(shutil.rmtree, target.parent)
    return target


@functools.cache
def loaded(name: str = "tok1k", backend: str = "auto") -> Tokenizer:
    return load_tokenizer(tokenizer_file(name), backend)  # type: ignore[arg-type]


def write_lines(path: Path, documents: Iterable[object], key: str = "text") -> Path:
    """A JSONL file; strings become objects with the text under `key`, bytes lines as they are."""
    lines = [
        d if isinstance(d, bytes) else json.dumps({key: d} if isinstance(d, str) else d, ensure_ascii=False).encode()
        for d in documents
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def pbin_documents(path: Path) -> list[list[int]]:
    """The ids of each document of a ``.pbin``."""
    dataset = open_pbin(open_store(path.parent), path.name, str(path))
    return [sample["input_ids"].tolist() for sample in dataset.read_raw(range(len(dataset)))] if len(dataset) else []
