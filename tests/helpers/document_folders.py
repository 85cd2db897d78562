"""Small trees of documents for the tests of curation."""

import gzip
import json
from pathlib import Path

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "wizard", "brews", "more", "tea", "now"]


def texts(count, seed=0):
    """Texts of a few paragraphs each, with repeated paragraphs and documents, blanks, and more than ASCII."""
    out = []
    state = seed * 7919 + 1
    for number in range(count):
        paragraphs = []
        for _ in range(1 + number % 4):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            size = 1 + state % 12
            paragraphs.append(" ".join(WORDS[(state >> 3) * k % 14 % len(WORDS)] for k in range(1, size + 1)))
        out.append("\n".join(paragraphs) + ("\n" if number % 3 else ""))
        if number % 5 == 4:
            out[-1] = out[number // 2]
        if number % 11 == 7:
            out[-1] = ["", "  \n", "naïve – 漢字\nnaïve – 漢字"][number % 3]
    return out


def write_documents(root, *files, suffix=".jsonl.gz", **more):
    """Write ``documents/<n>`` with a document for each text; ids are ``<n>-<m>``."""
    for n, members in enumerate(files):
        rows = [
            json.dumps({"id": f"{n}-{m}", "text": text, "source": "test", **more}, ensure_ascii=False)
            for m, text in enumerate(members)
        ]
        write_lines(Path(root) / f"documents/part-{n}{suffix}", rows)


def write_lines(path, rows):
    """Write lines, compressed as the name says."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{row}\n" for row in rows).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def read(path):
    """The rows of a file."""
    data = Path(path).read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def attributes(root, name):
    """Of each file below an attribute set, its rows."""
    folder = Path(root) / "attributes" / name
    return [read(path) for path in sorted(folder.glob("*.gz"))]
