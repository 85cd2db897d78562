"""Measure MosaicML Streaming, with pictures decoded by Pillow: ``make TARS FOLDER``, then ``jpeg FOLDER WORKERS``.

Raw samples: ``make-raw TARS FOLDER``, then ``one FOLDER``.
"""

from __future__ import annotations

import io
import sys

import numpy as np

from benchmarks.lib.rates import endless, rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import BATCH, SECONDS, jpegs, raw_samples, singles, use_pictures


def package():
    """Import and return its package.

    The import needs torchvision for classes that are not used here, and a torchvision that fits torch may be missing. A
    stand-in replaces it.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        from importlib.machinery import ModuleSpec
        from unittest import mock

        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            sys.modules[f"torchvision{name}"] = mock.MagicMock(__spec__=ModuleSpec(f"torchvision{name}", None))
        sys.modules["torchvision.datasets"].VisionDataset = object
    import streaming

    return streaming


def jpeg(folder, workers):
    """Measure samples shuffled by its default algorithm."""
    from PIL import Image
    from torch.utils.data import DataLoader

    class Pictures(package().StreamingDataset):
        def __getitem__(self, at):
            return np.asarray(Image.open(io.BytesIO(super().__getitem__(at)["jpg"])).convert("RGB"))

    dataset = Pictures(local=folder, shuffle=True, batch_size=BATCH)
    return rate(map(use_pictures, endless(DataLoader(dataset, BATCH, num_workers=int(workers)))), SECONDS)


def make(tars, folder):
    """Write MDS shards."""
    with package().MDSWriter(out=folder, columns={"jpg": "bytes"}) as out:
        for _, data in jpegs(tars):
            out.write({"jpg": data})
    return {}


def make_raw(tars, folder):
    """Write MDS shards of raw samples."""
    parts = next(raw_samples(tars))
    with package().MDSWriter(out=folder, columns=dict.fromkeys(parts, "bytes"), size_limit=1 << 23) as out:
        for sample in raw_samples(tars):
            out.write(sample)
    return {}


def one(folder):
    """Measure single samples at random."""
    dataset = package().StreamingDataset(local=folder, shuffle=False, batch_size=1)
    return rate(singles(lambda number: dataset[number].values(), len(dataset)), SECONDS)


if __name__ == "__main__":
    answer(globals())
