"""Run one measurement of Feedmill, and print it as JSON.

open FILE                   fm.open of a .pbin
windows FILE SEQ_LEN        random windows in batches of 64, in one array
positions FOLDER SEQ_LEN    the same of .ds files, with the position of each token in its document
train FILE SEQ_LEN KIND     inputs and targets of windows or packed rows in a torch loop
index FILE INDEX            the raw index of a JSONL file, one worker
rewrite shuffle|chunk|merge|merger INPUT OUTPUT RUNS
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.side import answer
from benchmarks.tokens.timing import BATCH, Work, batches, loop, numbers, rewritten


def open(path: str) -> dict[str, float]:
    """Return milliseconds and MB of opening after the imports, and the number of documents."""
    import feedmill as fm

    fm.open(path[: -len(".pbin")] + "_small.pbin")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    dataset = fm.open(path)
    taken = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"ms": 1e3 * taken, "mb": (after - before) / 1e3, "documents": len(dataset)}


def windows(path: str, seq_len: str) -> dict[str, float]:
    """Measure random windows of a `.pbin`."""
    import feedmill as fm

    windows: Any = fm.open(path, seq_len=int(seq_len))
    return batches(windows.gather, numbers(len(windows)), windows.width)


def positions(folder: str, seq_len: str) -> dict[str, float]:
    """Measure random windows of `.ds` files with positions."""
    import feedmill as fm
    from feedmill.formats.tokens.gather import positions_from

    windows: Any = fm.open(folder, seq_len=int(seq_len))

    def read(row: np.ndarray) -> Any:
        tokens = windows.gather(row)
        return tokens, positions_from(windows.resets(row, tokens), tokens.shape)

    return batches(read, numbers(len(windows)), windows.width)


def train(path: str, seq_len: str, kind: str) -> dict[str, float]:
    """Measure a loader of windows (``windows``, or ``located`` with positions) or ``packed`` rows into a torch loop."""
    import feedmill as fm

    width = int(seq_len) + 1
    windows = {"seq_len": int(seq_len), "positions": kind == "located"}
    source = {"path": path} if kind == "packed" else {"path": path, "windows": windows}
    recipe: dict[str, Any] = {"source": source, "shuffle": "global", "targets": {}}
    if kind == "packed":
        recipe |= {"pack": {"seq_len": width, "buffer": 100_000}}
    loader = fm.Loader(fm.Recipe.parse(recipe).plan(), BATCH, rank=0, world_size=1, output="torch")
    found = loop(((batch["inputs"], batch["targets"]) for batch in loader), BATCH * int(seq_len))
    loader.close()
    return found


def index(path: str, index: str) -> dict[str, float]:
    """Return the seconds of the function with one worker, after its compiled code is loaded."""
    from feedmill.tokens.verbs.index import index as write_index

    small = Path(index).with_suffix(".small.jsonl")
    small.write_text('{"text": "x"}\n')
    write_index(str(small), f"{index}.small", overwrite=True, workers=1, progress=False)
    begun = time.perf_counter()
    write_index(path, index, overwrite=True, workers=1, progress=False)
    return {"s": time.perf_counter() - begun}


def rewrite(what: str, source: str, target: str, runs: str) -> dict[str, float]:
    """Measure rewriting, see `rewritten`."""
    return rewritten(_rewriting, what, source, target, runs)


def _rewriting(what: str, source: Path, target: Path) -> Work:
    """Return the call that does the same work in Feedmill, in the peer's order."""
    from feedmill.tokens.verbs.merge import merge
    from feedmill.tokens.verbs.shuffle import shuffle, shuffle_chunk

    files = [str(path) for path in sorted(source.glob("*.ds"))] if source.is_dir() else [str(source)]
    if what == "merger":
        options = {"order": "datatrove", "seed": 1, "progress": False}
        return lambda: merge(files, f"{target}/{{part:3}}_m.ds", **options)
    if what == "shuffle":
        return lambda: shuffle(files, f"{target}/x.pbin", seed=1, order="modalities", progress=False)
    if what == "chunk":
        return lambda: shuffle_chunk(files, f"{target}/x.pbin", chunk=0, chunks=1, global_seed=1, progress=False)
    return lambda: merge([*files, *files], f"{target}/x.pbin", progress=False)


if __name__ == "__main__":
    answer(globals())
