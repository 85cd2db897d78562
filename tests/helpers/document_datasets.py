"""Datasets of documents for tests, and their attributes read back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from feedmill.formats.documents import read_rows, write_rows
from feedmill.storage import open_store

SENTENCE = "The quick brown fox jumps over the lazy dog. "

DEEP = 200_000
"""Levels of nesting that no Python reads: 3.11 stops at 1,000, 3.13 at 10,000."""


def document(k: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": f"d{k}", "text": SENTENCE * (k % 5) + "\n" if text is None else text, "source": "test", **more}


def write_documents(path: Path, documents: Iterable[dict[str, Any]]) -> Path:
    """Write a file of documents, compressed as its name says."""
    with write_rows(open_store(path.parent), path.name) as append:
        append(json.dumps(document, ensure_ascii=False).encode() for document in documents)
    return path


def write_tree(root: Path, files: int = 4, rows: int = 50) -> Path:
    """A dataset: ``root/documents/part-N.jsonl.gz``, files of different sizes."""
    for k in range(files):
        write_documents(
            root / "documents" / f"part-{k}.jsonl.gz", (document(1000 * k + i) for i in range(rows * (k + 1)))
        )
    return root


def read_json(path: Path) -> list[Any]:
    """The rows of a file, plain or compressed."""
    return [json.loads(row) for rows in read_rows(open_store(path.parent), path.name) for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    """What lies below a folder, uncompressed; without what is hidden."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            data = path.read_bytes()
            found[str(relative)] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def attributes(texts: Sequence[str], *taggers: str, exact: bool = False, **metadata: Any) -> list[dict[str, Any]]:
    """What taggers say about texts: a dictionary of each one's attributes, without the name of the set."""
    from feedmill.curation.documents import Decoder
    from feedmill.curation.registry import Choice
    from feedmill.curation.tag import attribute_rows

    choices = [Choice.parse(name) for name in taggers]
    made = {choice.name: choice.create() for choice in choices}
    rows = [json.dumps({"id": str(k), "text": text, "metadata": metadata}).encode() for k, text in enumerate(texts)]
    batch = Decoder("x", metadata=any(tagger.metadata for tagger in made.values()), exact=exact).batch(rows)
    found = [json.loads(row)["attributes"] for row in attribute_rows(batch, "e", made)]
    return [{name.removeprefix("e__"): spans for name, spans in each.items()} for each in found]
