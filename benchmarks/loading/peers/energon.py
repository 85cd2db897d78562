"""Measure Energon in training mode with a shuffle buffer of 100 samples: ``raw|jpeg FOLDER WORKERS``."""

from __future__ import annotations

import numpy as np

from benchmarks.lib.rates import rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import BATCH, SECONDS, use_dicts, use_pictures


def _loaded(folder, workers, encoder, use):
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=int(workers)),
        batch_size=BATCH,
        task_encoder=encoder,
        dataset_config="crude.yaml",
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    return rate(map(use, get_loader(dataset)), SECONDS)


def raw(folder, workers):
    """Measure crude samples, undecoded."""
    from megatron.energon import Cooker, DefaultTaskEncoder, stateless

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(stateless(lambda sample: sample)),)

        @stateless
        def batch(self, samples):
            return samples

    return _loaded(folder, workers, Raw(), use_dicts)


def jpeg(folder, workers):
    """Measure crude samples whose pictures Energon decodes to uint8 arrays, stacked."""
    from megatron.energon import Cooker, DefaultTaskEncoder, SampleDecoder, stateless

    class Pictures(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="rgb8")
        cookers = (Cooker(stateless(lambda sample: sample)),)

        @stateless
        def batch(self, samples):
            return np.stack([np.asarray(sample["jpg"]) for sample in samples])

    return _loaded(folder, workers, Pictures(), use_pictures)


if __name__ == "__main__":
    answer(globals())
