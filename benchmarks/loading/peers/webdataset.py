"""A peer's side of the loader benchmarks: one measurement in one process, printed as a line of JSON.

Runs in an environment that has the peer, and need not have Feedmill; each peer is used as its documentation shows.

loading_peers.py modalities-tokens FILE WORKERS       LLMDataLoader over PackedMemMapDatasetContinuous
loading_peers.py datatrove-tokens FOLDER WORKERS      torch's DataLoader over DatatroveFolderDataset
loading_peers.py energon-raw|energon-jpeg FOLDER WORKERS       training mode, a shuffle buffer of 100 samples
loading_peers.py webdataset-raw|webdataset-jpeg FOLDER WORKERS shards and samples shuffled, a buffer of 1,000
loading_peers.py streaming-jpeg FOLDER WORKERS        StreamingDataset of the JPEGs' bytes, decoded by Pillow
loading_peers.py litdata-jpeg FOLDER WORKERS          the same with LitData
loading_peers.py make-streaming|make-litdata TARS FOLDER       write the data for the two before
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from rates import rate

BATCH, SEQ_LEN, SECONDS = 64, 2048, 4.0


def endless(loader):
    """One pass after another."""
    while True:
        yield from loader


def modalities_tokens(path, workers):
    """As its trainer loads, in random order; its collator makes inputs and targets."""
    from modalities.dataloader.dataloader import LLMDataLoader
    from modalities.dataloader.dataset_factory import DatasetFactory
    from modalities.models.gpt2.collator import GPT2LLMCollateFn
    from torch.utils.data import BatchSampler, RandomSampler

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), SEQ_LEN, "input_ids", True)
    loader = LLMDataLoader(
        dataloader_tag="train",
        dataset=dataset,
        batch_sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True),
        num_workers=int(workers),
        pin_memory=False,
        collate_fn=GPT2LLMCollateFn("input_ids", "target_ids"),
    )
    return rate((batch.samples["input_ids"].shape[0] * (SEQ_LEN + 1) / 1e6 for batch in endless(loader)), SECONDS)


def datatrove_tokens(folder, workers):
    """Its dataset shuffles; torch's loader takes it in order."""
    from datatrove.utils.dataset import DatatroveFolderDataset
    from torch.utils.data import DataLoader

    dataset = DatatroveFolderDataset(
        folder, SEQ_LEN, filename_pattern="*.ds", recursive=False, token_size=2, shuffle=True
    )
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=int(workers))
    return rate((batch["input_ids"].numel() / 1e6 for batch in endless(loader)), SECONDS)


def _energon(folder, workers, encoder, use):
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


def energon_raw(folder, workers):
    """Crude samples, undecoded."""
    from megatron.energon import Cooker, DefaultTaskEncoder, stateless

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(stateless(lambda sample: sample)),)

        @stateless
        def batch(self, samples):
            return samples

    return _energon(folder, workers, Raw(), _use_dicts)


def energon_jpeg(folder, workers):
    """Crude samples whose pictures it decodes to uint8 arrays, stacked."""
    from megatron.energon import Cooker, DefaultTaskEncoder, SampleDecoder, stateless

    class Pictures(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="rgb8")
        cookers = (Cooker(stateless(lambda sample: sample)),)

        @stateless
        def batch(self, samples):
            return np.stack([np.asarray(sample["jpg"]) for sample in samples])

    return _energon(folder, workers, Pictures(), _use_pictures)


def _webdataset(folder, workers, decode, collation, use):
    import webdataset as wds

    shards = sorted(map(str, Path(folder, "shards").glob("*.tar")))
    stream = wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node).shuffle(1000)
    if decode:
        stream = stream.decode(decode)
    loader = wds.WebLoader(stream.batched(BATCH, collation_fn=collation), batch_size=None, num_workers=int(workers))
    return rate(map(use, loader), SECONDS)


def webdataset_raw(folder, workers):
    """Bytes of every part."""
    return _webdataset(folder, workers, None, _as_they_are, _use_dicts)


def webdataset_jpeg(folder, workers):
    """Pictures as uint8 arrays, stacked."""
    return _webdataset(folder, workers, "rgb8", _stacked_jpg, _use_pictures)


def _streaming():
    """Its package. Importing it needs torchvision for classes that are not used here; a build of torchvision that fits
    torch is not always to be had."""
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


def streaming_jpeg(folder, workers):
    """Samples shuffled by its default algorithm."""
    from PIL import Image
    from torch.utils.data import DataLoader

    class Pictures(_streaming().StreamingDataset):
        def __getitem__(self, at):
            return np.asarray(Image.open(io.BytesIO(super().__getitem__(at)["jpg"])).convert("RGB"))

    dataset = Pictures(local=folder, shuffle=True, batch_size=BATCH)
    return rate(map(_use_pictures, endless(DataLoader(dataset, BATCH, num_workers=int(workers)))), SECONDS)


def litdata_jpeg(folder, workers):
    """Samples shuffled, in its own loader. Its own type for JPEGs needs a torchvision that fits torch."""
    from litdata import StreamingDataLoader, StreamingDataset
    from PIL import Image

    class Pictures(StreamingDataset):
        def __getitem__(self, at):
            return np.asarray(Image.open(io.BytesIO(super().__getitem__(at)["jpg"])).convert("RGB"))

    loader = StreamingDataLoader(Pictures(folder, shuffle=True), batch_size=BATCH, num_workers=int(workers))
    return rate(map(_use_pictures, endless(loader)), SECONDS)


def _as_they_are(samples):
    return samples


def _stacked_jpg(samples):
    return np.stack([sample["jpg"] for sample in samples])


def _use_dicts(batch):
    assert sum(len(value) for sample in batch for name, value in sample.items() if not name.startswith("__"))
    return len(batch)


def _use_pictures(batch):
    assert tuple(batch.shape[1:]) in ((375, 500, 3), (3, 375, 500))
    return len(batch)


def _jpegs(tars):
    for shard in sorted(Path(tars).glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    yield member.name, tar.extractfile(member).read()


def make_streaming(tars, folder):
    """MDS shards."""
    with _streaming().MDSWriter(out=folder, columns={"jpg": "bytes"}) as out:
        for _, data in _jpegs(tars):
            out.write({"jpg": data})
    return {}


def _picture(path):
    return {"jpg": Path(path).read_bytes()}


def make_litdata(tars, folder):
    """Chunks of 64 MB, written by its `optimize` from files."""
    from litdata import optimize

    with tempfile.TemporaryDirectory() as files:
        paths = []
        for name, data in _jpegs(tars):
            paths.append(os.path.join(files, name))
            Path(paths[-1]).write_bytes(data)
        optimize(fn=_picture, inputs=paths, output_dir=folder, chunk_bytes="64MB", num_workers=1)
    return {}


def main():
    name, *words = sys.argv[1:]
    print(json.dumps(globals()[name.replace("-", "_")](*words)))
    sys.stdout.flush()
    os._exit(0)  # worker processes and watchdog threads would be waited for


if __name__ == "__main__":
    main()
