"""Run one training script written for Energon with either package: captions, crude and encoded samples, files.

    python -m benchmarks.prepared.peers.training_script feedmill.compat.energon captions FOLDER --workers 2
    python -m benchmarks.prepared.peers.training_script megatron.energon captions FOLDER --workers 2

Only the imported package differs. It prints a line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from itertools import islice
from pathlib import Path

WARM = 8
"""Batches before the clock starts."""


def captions(energon, options):
    """Return samples per second of batches of decoded images (float32 tensors) and captions, for training."""
    where = energon.WorkerConfig(rank=0, world_size=1, num_workers=options.workers)
    dataset = energon.get_train_dataset(
        options.path,
        worker_config=where,
        batch_size=options.batch,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    batches = iter(energon.get_loader(dataset))
    shapes = [tuple(batch.image.shape) for batch in islice(batches, WARM)]
    begin = time.perf_counter()
    total = 0
    for batch in islice(batches, options.count // options.batch):
        total += len(batch.caption)
        shapes.append(tuple(batch.image.shape))
    return {"per_s": total / (time.perf_counter() - begin), "samples": total, "shape": shapes[-1]}


def crude(energon, options):
    """Return samples per second of parts as bytes, with a local task class; batch size 0 yields single samples."""

    class Task(energon.DefaultTaskEncoder):
        decoder = None
        cookers = (energon.Cooker(energon.stateless(lambda sample: sample)),)

        def batch(self, samples):
            return list(samples)

    return _of_task(energon, Task(), options)


def encoded(energon, options):
    """Return samples per second with a hook in Python, of a task that can be imported."""
    os.environ["BENCHMARK_ENERGON"] = energon.__name__
    tasks = importlib.import_module("benchmarks.prepared.peers.tasks")
    return _of_task(energon, tasks.Encoding(), options)


def _of_task(energon, task, options):
    where = energon.WorkerConfig(rank=0, world_size=1, num_workers=options.workers)
    dataset = energon.get_train_dataset(
        options.path,
        worker_config=where,
        batch_size=options.batch or None,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=task,
        dataset_config="crude.yaml",
    )
    batches = iter(energon.get_loader(dataset))
    for _ in islice(batches, WARM):
        pass
    begin = time.perf_counter()
    total = size = 0
    for batch in batches:
        samples = batch if options.batch else [batch]
        total += len(samples)
        size += sum(len(sample["jpg"]) for sample in samples)
        if total >= options.count:
            break
    return {"per_s": total / (time.perf_counter() - begin), "bytes": size}


def by_name(energon, options):
    """Return files per second that cookers read by name from an auxiliary dataset."""
    names = json.loads(Path(options.names).read_text())

    class Task(energon.DefaultTaskEncoder):
        decoder = None

        @staticmethod
        @energon.stateless
        def cook(sample, media):
            asked = sample["json"]["names"]
            return {"bytes": sum(len(media.get(name)) for name in asked), "files": len(asked)}

        def encode_sample(self, sample):
            return sample

    Task.cookers = [energon.Cooker(Task.cook)]
    rows = Path(options.names).with_suffix(".jsonl")
    where = energon.WorkerConfig(rank=0, world_size=1, num_workers=options.workers)
    mix = Path(options.names).with_suffix(".yaml")
    assert rows.exists() and mix.exists() and names
    dataset = energon.get_val_dataset(
        str(mix), split_part="train", worker_config=where, batch_size=None, task_encoder=Task()
    )
    files = size = 0
    stream = iter(energon.get_loader(dataset))
    next(stream)
    begin = time.perf_counter()
    for sample in stream:
        files += sample["files"]
        size += sample["bytes"]
    return {"per_s": files / (time.perf_counter() - begin), "files": files, "bytes": size}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=("megatron.energon", "feedmill.compat.energon"))
    parser.add_argument("what", choices=("captions", "crude", "encoded", "by_name"))
    parser.add_argument("path")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--count", type=int, default=6_400)
    parser.add_argument("--names")
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](importlib.import_module(options.package), options)))
    sys.stdout.flush()
    os._exit(0)  # do not wait for Energon's watchdog threads


if __name__ == "__main__":
    main()
