"""One measurement of reading token files, in a process of its own; prints JSON.

reading_side.py feedmill-open FILE               fm.open of a .pbin
reading_side.py feedmill-windows FILE SEQ_LEN    random windows in batches of 64, in one array
reading_side.py feedmill-positions FOLDER SEQ_LEN    the same of .ds files, with each token's place in its document
reading_side.py feedmill-index FILE INDEX        the raw index of a JSONL file, one worker
reading_side.py modalities-index FILE INDEX      IndexGenerator
reading_side.py modalities-windows FILE SEQ_LEN  PackedMemMapDatasetContinuous, window by window
reading_side.py datatrove-positions FOLDER SEQ_LEN   DatatroveFolderDataset with positions from the index
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SECONDS = 64, 3.0


def _numbers(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, count, (4096, BATCH))


def _batches(read: Any, numbers: np.ndarray, width: int) -> dict[str, float]:
    """Tokens per second of whole batches."""
    for row in numbers[:8]:
        read(row)
    begun, done = time.perf_counter(), 0
    for row in numbers[8:]:
        read(row)
        done += BATCH * width
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun) / 1e6}


def _singles(dataset: Any, numbers: np.ndarray, width: int) -> dict[str, float]:
    """Tokens per second, one window after another."""
    begun, done = time.perf_counter(), 0
    for number in numbers.ravel().tolist():
        dataset[number]
        done += width
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun) / 1e6}


def feedmill_open(path: str) -> dict[str, float]:
    """Milliseconds and MB of opening, once imports are done; the documents are counted."""
    import feedmill as fm

    fm.open(path[: -len(".pbin")] + "_small.pbin")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    dataset = fm.open(path)
    taken = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"ms": 1e3 * taken, "mb": (after - before) / 1e3, "documents": len(dataset)}


def feedmill_windows(path: str, seq_len: int) -> dict[str, float]:
    """Random windows of a `.pbin`."""
    import feedmill as fm

    windows: Any = fm.open(path, seq_len=seq_len)
    return _batches(windows.gather, _numbers(len(windows)), windows.width)


def feedmill_positions(folder: str, seq_len: int) -> dict[str, float]:
    """Random windows of `.ds` files with positions."""
    import feedmill as fm
    from feedmill.formats.tokens.gather import positions_from

    windows: Any = fm.open(folder, seq_len=seq_len)

    def read(row: np.ndarray) -> Any:
        tokens = windows.gather(row)
        return tokens, positions_from(windows.resets(row, tokens), tokens.shape)

    return _batches(read, _numbers(len(windows)), windows.width)


def feedmill_index(path: str, index: str) -> dict[str, float]:
    """Seconds in the function itself, with one worker, once its compiled code is loaded."""
    from feedmill.tokens.index import index as write_index

    small = Path(index).with_suffix(".small.jsonl")
    small.write_text('{"text": "x"}\n')
    write_index(str(small), f"{index}.small", overwrite=True, workers=1, progress=False)
    begun = time.perf_counter()
    write_index(path, index, overwrite=True, workers=1, progress=False)
    return {"s": time.perf_counter() - begun}


def modalities_index(path: str, index: str) -> dict[str, float]:
    """Seconds in the generator itself."""
    from modalities.dataloader.create_index import IndexGenerator

    Path(index).unlink(missing_ok=True)
    begun = time.perf_counter()
    IndexGenerator(Path(path)).create_index(Path(index))
    return {"s": time.perf_counter() - begun}


def modalities_windows(path: str, seq_len: int) -> dict[str, float]:
    """Random windows, one at a time: it has no other way."""
    from modalities.dataloader.dataset_factory import DatasetFactory

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), seq_len, "input_ids", True)
    return _singles(dataset, _numbers(len(dataset)), seq_len + 1)


def datatrove_positions(folder: str, seq_len: int) -> dict[str, float]:
    """Random windows with positions from the index."""
    from datatrove.utils.dataset import DatatroveFolderDataset

    dataset = DatatroveFolderDataset(
        folder, seq_len, filename_pattern="*.ds", recursive=False, token_size=2, shuffle=True, return_positions=True
    )
    return _singles(dataset, _numbers(len(dataset)), seq_len + 1)


def main() -> None:
    name, *words = sys.argv[1:]
    arguments = [int(word) if word.isdigit() else word for word in words]
    print(json.dumps(globals()[name.replace("-", "_")](*arguments)))


if __name__ == "__main__":
    main()
