"""Measure Energon over Multi-Storage Client in training mode, with a buffer of 1,000: ``samples URL WORKERS MOST``."""

from __future__ import annotations

import time

from benchmarks.lib.side import answer
from benchmarks.object_store.measured import BATCH, one_pass, use_samples


def samples(url, workers, most):
    """Measure crude samples, undecoded, in lists: only the first `most`, because it is slow and never ends."""
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        stateless,
    )

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(stateless(lambda sample: sample)),)

        @stateless
        def batch(self, samples):
            return samples

    began = time.perf_counter()
    dataset = get_train_dataset(
        url.replace("s3://", "msc://bench/"),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=int(workers)),
        batch_size=BATCH,
        task_encoder=Raw(),
        dataset_config="crude.yaml",
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
    )
    return one_pass(get_loader(dataset), use_samples, began, int(most))


if __name__ == "__main__":
    answer(globals())
