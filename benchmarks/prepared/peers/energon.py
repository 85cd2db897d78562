"""Run one measurement of Energon, and print it as a line of JSON.

It runs in an environment with Energon, which need not have Feedmill. Verbs and output are those of `feedmill.py`.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from megatron.energon import (  # noqa: E402
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)

WARM = 50


class Raw(DefaultTaskEncoder):
    """Crude samples unchanged and undecoded: a dict of bytes."""

    decoder = None
    cookers = (Cooker(stateless(lambda sample: sample)),)


def samples(options):
    """Return an iterator over single samples of a loader without worker processes."""
    common = {
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=options.workers),
        "batch_size": None,
        "task_encoder": DefaultTaskEncoder() if options.images else Raw(),
    }
    if not options.images:
        common["dataset_config"] = "crude.yaml"
    if options.shuffle == "none":
        dataset = get_val_dataset(options.path, split_part="train", **common)
    else:
        dataset = get_train_dataset(
            options.path, shuffle_buffer_size=options.buffer or None, max_samples_per_sequence=100, **common
        )
    return iter(get_loader(dataset))


def use(sample, images):
    """Read what a training step reads: the bytes of every part, or the picture and its caption."""
    if images:
        return sample.image.shape[-1] + len(sample.caption)
    return sum(len(value) for name, value in sample.items() if not name.startswith("__"))


def order(options):
    """Return samples per second after the first ones."""
    stream = samples(options)
    for _ in range(WARM):
        use(next(stream), options.images)
    begin = time.perf_counter()
    for _ in range(options.count):
        use(next(stream), options.images)
    return {"per_s": options.count / (time.perf_counter() - begin), "samples": options.count}


def windows(options):
    """Return samples per second of each window, and the growth of the resident memory since the first window."""
    stream = samples(options)
    rates, memory = [], []
    for _ in range(options.windows):
        begin = time.perf_counter()
        for _ in range(options.count):
            use(next(stream), None)
        rates.append(options.count / (time.perf_counter() - begin))
        with open("/proc/self/statm") as statm:
            memory.append(int(statm.read().split()[1]) * 4096 / 1e6)
    return {"per_s": rates, "memory_mb": memory}


def keys(options):
    """Return parts per second by random file names, and the time to open the dataset and read the first part."""
    from megatron.energon.cache.file_store import WebdatasetFileStore
    from megatron.energon.epathlib import EPath

    names = json.loads(Path(options.names).read_text())
    begin = time.perf_counter()
    store = WebdatasetFileStore(EPath(options.path))
    store[names[0]]
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    total = sum(len(store[name][0]) for name in names)
    return {"per_s": len(names) / (time.perf_counter() - begin), "open": opened, "bytes": total}


def first(options):
    """Return the seconds from the first line of this program to the first decoded sample, including imports."""
    options.images, options.shuffle = "torchrgb", "block"
    sample = next(samples(options))
    return {"first": time.perf_counter() - BEGIN, "shape": list(sample.image.shape), "caption": len(sample.caption)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("order", "windows", "keys", "first"))
    parser.add_argument("path")
    parser.add_argument("--shuffle", default="none", help="'none' is the validation mode, all else the training mode")
    parser.add_argument("--images", help="decode pictures; Energon's default is float32 tensors, channels first")
    parser.add_argument("--buffer", type=int, default=0, help="shuffle buffer in training mode; 0 is none")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--names")
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](options)))
    sys.stdout.flush()
    os._exit(0)  # do not wait for its watchdog threads


if __name__ == "__main__":
    main()
