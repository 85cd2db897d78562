"""Find near-duplicates with a MinHash library, as in its guide: shingles in Python, LSH, later documents are marked.

rensa|datasketch FOLDER COUNT THRESHOLD WIDTH RESULT
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PERMUTATIONS = 128
BATCH = 5000


def texts(folder: Path, count: int) -> Iterator[str]:
    """Return the texts of the first documents."""
    for file in sorted(folder.glob("*.gz")):
        with gzip.open(file, "rb") as rows:
            for row in rows:
                if count == 0:
                    return
                count -= 1
                yield json.loads(row)["text"]


def shingles(text: str, width: int) -> list[str]:
    """Return the runs of words, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[i : i + width]) for i in range(max(1, len(words) - width + 1))]


def by_rensa(source: Iterator[str], threshold: float, width: int) -> list[bool]:
    """Mark documents with RMinHash in batches, with one index."""
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, num_bands=16)
    marked: list[bool] = []
    batch: list[list[str]] = []

    def flush() -> None:
        made = RMinHash.from_token_sets(batch, num_perm=PERMUTATIONS, seed=1)
        first = len(marked)
        index.insert_many(made, first)
        for number, keys in enumerate(index.query_all(made), first):
            marked.append(any(key < number for key in keys))
        batch.clear()

    for text in source:
        batch.append(shingles(text, width))
        if len(batch) == BATCH:
            flush()
    if batch:
        flush()
    return marked


def by_datasketch(source: Iterator[str], threshold: float, width: int) -> list[bool]:
    """Mark documents with MinHash and MinHashLSH, with its default choice of bands."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
    marked = []
    for number, text in enumerate(source):
        made = MinHash(num_perm=PERMUTATIONS)
        made.update_batch([one.encode() for one in shingles(text, width)])
        marked.append(bool(index.query(made)))
        index.insert(number, made)
    return marked


def main() -> None:
    """Write which documents are marked."""
    name, folder, count, threshold, width, result = sys.argv[1:]
    source = texts(Path(folder), int(count))
    find = {"rensa": by_rensa, "datasketch": by_datasketch}[name]
    found = find(source, float(threshold), int(width))
    Path(result).write_text(json.dumps({"marked": [int(one) for one in found]}))


if __name__ == "__main__":
    main()
