"""One side of the benchmark of verbs over token files: one measurement in one process, printed as a line of JSON.

python benchmarks/verbs_side.py feedmill|modalities|datatrove shuffle|chunk|merge INPUT OUTPUT [--runs 3]

The output is removed before each run. The numbers are MB of tokens read per second: `first` for the first call after
the imports, `mb_s` for the best of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], object]


def feedmill(what: str, source: Path, target: Path) -> Work:
    """The same work by Feedmill, in the peer's own order."""
    from feedmill.tokens.merge import merge
    from feedmill.tokens.shuffle import shuffle, shuffle_chunk

    files = [str(path) for path in sorted(source.glob("*.ds"))] if source.is_dir() else [str(source)]
    if what == "merger":
        options = {"order": "datatrove", "seed": 1, "progress": False}
        return lambda: merge(files, f"{target}/{{part:3}}_m.ds", **options)
    if what == "shuffle":
        return lambda: shuffle(files, f"{target}/x.pbin", seed=1, order="modalities", progress=False)
    if what == "chunk":
        return lambda: shuffle_chunk(files, f"{target}/x.pbin", chunk=0, chunks=1, global_seed=1, progress=False)
    return lambda: merge([*files, *files], f"{target}/x.pbin", progress=False)


def modalities(what: str, source: Path, target: Path) -> Work:
    """Modalities' functions behind its commands."""
    from modalities.api import (
        FileExistencePolicy,
        create_shuffled_dataset_chunk,
        merge_packed_data_files,
        shuffle_tokenized_data,
    )

    output, policy = target / "x.pbin", FileExistencePolicy.OVERRIDE
    if what == "shuffle":
        return lambda: shuffle_tokenized_data(source, output, 100, policy, 1)
    if what == "chunk":
        return lambda: create_shuffled_dataset_chunk([source], output, 0, 1, policy, 1)
    return lambda: merge_packed_data_files([source, source], output)


def datatrove(what: str, source: Path, target: Path) -> Work:
    """datatrove's merger."""
    from datatrove.pipeline.tokens import DocumentTokenizerMerger
    from loguru import logger

    logger.remove()
    assert what == "merger"
    return lambda: DocumentTokenizerMerger(str(source), str(target), "m", seed=1, progress=False).run()


SIDES = {"feedmill": feedmill, "modalities": modalities, "datatrove": datatrove}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("what", choices=("shuffle", "chunk", "merge", "merger"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the peers talk
    work = SIDES[options.side](options.what, options.source, options.target)
    folder = options.source.is_dir()
    size = sum(path.stat().st_size for path in options.source.glob("*.ds")) if folder else options.source.stat().st_size
    size *= 2 if options.what == "merge" else 1
    rates = []
    for _ in range(options.runs):
        shutil.rmtree(options.target, ignore_errors=True)
        options.target.mkdir(parents=True)
        begin = time.perf_counter()
        work()
        rates.append(size / 1e6 / (time.perf_counter() - begin))
    os.dup2(shown, 1)
    sys.stdout.write(json.dumps({"first": rates[0], "mb_s": max(rates[1:] or rates)}) + "\n")


if __name__ == "__main__":
    main()
