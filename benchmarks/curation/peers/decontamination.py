"""Flag documents that have an n-gram of a question, with datatrove's decontamination.

BENCHMARK DOCUMENTS COUNT RESULT

The index is that of its indexer, without the tasks that it would download. N-grams of questions are found, too, which
is an option there. Its other settings are the defaults: 12 words.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter, NGramsDecontIndexer


def main(benchmark: str, documents: str, count: str, result: str) -> None:
    """Write whether each of the first documents is flagged, as a JSON list."""
    config, folder = NGramsDecontConfig(find_query_ngrams=True), Path(result + ".index")
    folder.mkdir(parents=True, exist_ok=True)
    NGramsDecontIndexer._requires_dependencies = []  # it needs lighteval for the tasks
    indexer = NGramsDecontIndexer(str(folder), config=config)
    hashes: set[int] = set()
    with open(benchmark) as rows:
        for row in map(json.loads, rows):
            hashes.update(indexer.compute_hashes(row["answer"], row["question"]))
    np.array(sorted(hashes), config.hash_config.np_descr).tofile(folder / "bench.index.hashes")
    check, flagged = NGramsDecontFilter(str(folder), config), list[bool]()
    with open(documents) as rows:
        for _, row in zip(range(int(count)), map(json.loads, rows), strict=False):
            flagged.append(check.filter(Document(text=row["text"], id=row["id"])) is not True)
    Path(result).write_text(json.dumps(flagged))


if __name__ == "__main__":
    main(*sys.argv[1:])
