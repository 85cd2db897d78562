"""Run Megatron-Bridge's data modules for Energon: ``python tests/interop/megatron_bridge.py FOLDER [--compare]``.

FOLDER is ``src/megatron/bridge`` of a clone of Megatron-Bridge. These of its files run unchanged: the data modules for
images with text and for diffusion, the factory `ChatMLWebdataset` that a dataset.yaml names, the task encoders of WAN
(with packing) and Flux with pickled embeddings, and that for processors of Hugging Face with the collation of
Qwen2.5-VL. What only GPUs need is a stand-in: megatron.core, and the initialization of the packages. With 0 and 2
workers, the script trains until each sample was seen, saves the state through `torch.save`, resumes and validates. With
``--compare`` it does the same with the installed Energon, and compares the samples of both as sets.

It requires PyTorch, webdataset, Pillow, numpy and tqdm; transformers and qwen-vl-utils for Qwen2.5-VL, which is skipped
without them; and Energon for ``--compare``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

import feedmill

sys.path.insert(0, str(Path(__file__).parent))
from bridge_models import flux_images, flux_sample, qwen_encoder, qwen_talks
from provider_pair import ENERGON, FEEDMILL, collect, compare, digest, run_one, stand_in, use

SAMPLES, STEPS = 60, 8
IN_WORKERS = "import pathlib, megatron_bridge; megatron_bridge.install(pathlib.Path({bridge!r}), 'feedmill')"
"""Worker processes need the stand-ins too; this runs when they start."""
SPLITS = {"train": 40, "val": 10}
PACKAGES = (
    "data data.energon data.packing utils diffusion diffusion.data diffusion.data.common diffusion.data.wan "
    "diffusion.data.flux diffusion.models diffusion.models.wan data.collators data.datasets models models.qwen_vl "
    "models.qwen_vl.data training training.utils"
)
"""Packages whose modules are the real ones, but not what their `__init__` imports."""


def install(bridge: Path, product: str) -> None:
    """Make Bridge's modules, the stand-ins and Energon's names importable, once."""
    if "megatron.bridge" in sys.modules:
        return
    use(product)
    parallel = {"get_context_parallel_world_size": lambda: 1}
    stand_in("megatron.core")
    stand_in("megatron.core.parallel_state", **parallel)
    stand_in("megatron.core.process_groups_config", ProcessGroupCollection=object)
    stand_in("megatron.core.msc_utils", MultiStorageClientFeature=object)
    stand_in("megatron.core.tokenizers", MegatronTokenizer=object)
    for package in ("", *PACKAGES.split()):
        stand_in(f"megatron.bridge.{package}".rstrip("."))
        sys.modules[f"megatron.bridge.{package}".rstrip(".")].__path__ = [str(bridge / package.replace(".", "/"))]
    stand_in("megatron.bridge.utils.common_utils", get_local_rank_preinit=lambda: 0)
    stand_in("megatron.bridge.training.tokenizers.tokenizer", MegatronTokenizer=object)
    stand_in("megatron.bridge.training.utils.packed_seq_utils", get_thd_cp_partition_indices=None)


def write_data(folder: Path) -> None:
    """Write latents of videos and images with embeddings, and conversations with images and frames, in two splits."""
    rng = np.random.default_rng(0)
    latents, flux, talks = [], [], []
    for number in range(SAMPLES):
        latent = io.BytesIO()
        torch.save(torch.from_numpy(rng.random((4, 1 + number % 3, 4, 6), np.float32)), latent)
        embeddings = torch.from_numpy(rng.random((3 + number % 5, 8), np.float32))
        about = {"name": f"v{number:06d}", "fps": 24}
        parts = {"pth": latent.getvalue(), "pickle": pickle.dumps(embeddings), "json": json.dumps(about).encode()}
        latents.append({"__key__": about["name"], **parts})
        flux.append({**latents[-1], **flux_sample(number, rng)})
        asked = f"<image><image><video>what is in {number}?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": "x" * (number % 7 + 1)}]
        images = [_jpeg(rng) for _ in range(2)]
        parts = {"json": json.dumps(turns).encode(), "jpgs": pickle.dumps(images), "videos": pickle.dumps([images])}
        talks.append({"__key__": f"t{number:06d}", **parts})
    for name, samples in (("latents", latents), ("flux", flux), ("talks", talks)):
        feedmill.write(str(folder / name), samples, max_shard_samples=10, progress=False)
        kind = {} if name == "talks" else {"sample_type": "CrudeWebdataset"}
        feedmill.prepare(str(folder / name), split_ratio="4,1,1", progress=False, **kind)  # type: ignore[arg-type]
    (folder / "talks" / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.bridge.data.energon.task_encoder_utils\n__class__: ChatMLWebdataset\n"
        "field_map: {imgs: jpgs, videos: videos, conversation: json}\n"
    )


def _jpeg(rng: np.random.Generator) -> bytes:
    image = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (16, 24, 3), dtype=np.uint8)).save(image, "JPEG")
    return image.getvalue()


def videos_of(batch: dict[str, Any]) -> dict[str, str]:
    """Return the digest of latents, embeddings, loss mask and grid of each video in a pack, by name."""
    found, row, word = {}, 0, 0
    for number, about in enumerate(batch["video_metadata"]):
        rows, words = int(batch["seq_len_q_padded"][number]), int(batch["seq_len_kv_padded"][number])
        own, said = slice(row, row + rows), slice(word, word + words)
        mask = batch["loss_mask"][own].float()  # numpy has no bfloat16
        values = batch["video_latents"][own], mask, batch["context_embeddings"][said], batch["grid_sizes"][number]
        found[about["name"]] = digest(*values, sorted(about.items()))
        row, word = row + rows, word + words
    assert row == len(batch["video_latents"]) and word == len(batch["context_embeddings"])
    return found


def talks_of(batch: Any) -> dict[str, str]:
    """Return the digest of text, images and frames of each conversation of a batch, by key."""
    found = {}
    for number, key in enumerate(batch.__key__):
        images, videos = batch.imgs[number], batch.videos[number]
        frames = [frame for video in videos for frame in video]
        found[key] = digest(repr(batch.conversation[number]), len(videos), *images, *frames)
    return found


def shorten_epochs() -> None:
    """Let the diffusion module ask for epochs of 1,000 items instead of 10^9: Energon 7.4.1 makes a list of them."""
    from megatron.bridge.diffusion.data.common import (  # type: ignore[import-not-found]
        diffusion_energon_datamodule as module,
    )

    original = module.get_train_dataset
    module.get_train_dataset = lambda *args, **given: original(*args, **{**given, "virtual_epoch_length": 1000})


def modules(folder: Path, workers: int) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], dict[str, str]]]]:
    """Yield the name of each data module, a function that makes it, and one that reads its batches."""
    from megatron.bridge.data.energon.base_energon_datamodule import (  # type: ignore[import-not-found]
        EnergonMultiModalDataModule,
    )
    from megatron.bridge.diffusion.data.common.diffusion_energon_datamodule import (  # type: ignore[import-not-found]
        DiffusionDataModule,
    )
    from megatron.bridge.diffusion.data.wan.wan_taskencoder import WanTaskEncoder  # type: ignore[import-not-found]
    from megatron.energon import DefaultTaskEncoder  # type: ignore[import-not-found]

    class Lists(DefaultTaskEncoder):  # type: ignore[misc]
        """Keeps fields as lists, because a processor of Hugging Face would be needed to make tensors of them."""

        def batch(self, samples: list[Any]) -> Any:
            names = ("__key__", "conversation", "imgs", "videos")
            return SimpleNamespace(**{name: [getattr(one, name) for one in samples] for name in names})

    def latents() -> Any:
        encoder = WanTaskEncoder(seq_length=64, packing_buffer_size=8)
        return DiffusionDataModule(
            str(folder / "latents"), 64, 1, num_workers=workers, packing_buffer_size=8, task_encoder=encoder
        )

    def talks() -> Any:
        return EnergonMultiModalDataModule(
            str(folder / "talks"), None, micro_batch_size=4, num_workers=workers, task_encoder=Lists()
        )

    def flux() -> Any:
        from megatron.bridge.diffusion.data.flux.flux_taskencoder import FluxTaskEncoder  # type: ignore[import-not-found]

        encoder = FluxTaskEncoder(seq_length=64, packing_buffer_size=None)
        return DiffusionDataModule(str(folder / "flux"), 64, 4, num_workers=workers, task_encoder=encoder)

    def qwen() -> Any:
        return EnergonMultiModalDataModule(
            str(folder / "talks"), None, micro_batch_size=4, num_workers=workers, task_encoder=qwen_encoder()
        )

    yield "WAN, packed", latents, videos_of
    yield "Flux", flux, flux_images
    yield "ChatML", talks, talks_of
    if find_spec("transformers") and find_spec("qwen_vl_utils"):
        yield "Qwen2.5-VL", qwen, qwen_talks
    else:
        print("Qwen2.5-VL is skipped: it requires transformers and qwen-vl-utils", file=sys.stderr)


def same(batches: list[Any], others: list[Any], read: Callable[[Any], dict[str, str]]) -> bool:
    """Return whether two lists of batches have the same samples in the same order."""
    return [list(read(batch).items()) for batch in batches] == [list(read(batch).items()) for batch in others]


def train(product: str, bridge: Path, folder: Path) -> dict[str, Any]:
    """Train, resume and validate. Returns the digests of all samples of both splits, and the figures."""
    install(bridge, product)
    if product == ENERGON:
        shorten_epochs()
    seen: dict[str, dict[str, str]] = {}
    figures = {}
    for workers in (0, 2):
        for name, make, read in modules(folder, workers):
            training = make().train_dataloader()
            before = [next(training) for _ in range(STEPS)]
            file = folder / f"{product}.pt"
            torch.save(training.save_state(), file)
            after = [next(training) for _ in range(STEPS)]
            resumed = make().train_dataloader()
            resumed.restore_state(torch.load(file))
            assert same([next(resumed) for _ in range(STEPS)], after, read), f"{name} resumed differently"
            given = 0
            batches = iter([*before, *after])
            own: dict[str, str] = {}
            while len(own) < SPLITS["train"]:
                samples = read(next(batches, None) or next(training))
                given += len(samples)
                assert given < 10 * SPLITS["train"], "some samples never come"
                collect(own, samples)
            collect(seen.setdefault(f"{name}: train", {}), own)
            validation, valid = make().val_dataloader(), seen.setdefault(f"{name}: val", {})
            for _ in range(4 * SPLITS["val"]):
                collect(valid, read(next(validation)))
            figures[f"{name}, {workers} workers"] = {"bytes of the state": file.stat().st_size, "samples": given}
    return {"samples": seen, "figures": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="src/megatron/bridge of Megatron-Bridge")
    parser.add_argument("--compare", action="store_true", help="run the installed Energon too, and compare the samples")
    parser.add_argument("--product", choices=(FEEDMILL, ENERGON), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    bridge = given.folder.resolve()
    if given.product:
        print(json.dumps(train(given.product, bridge, given.data)))
        return
    paths = [*filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["FEEDMILL_ENERGON_TRUST"] = "1"  # the data have pickles, and name a factory
    with tempfile.TemporaryDirectory() as place:
        write_data(Path(place))
        found = {}
        for product in (FEEDMILL, ENERGON) if given.compare else (FEEDMILL,):
            site = Path(place, "site", product)
            site.mkdir(parents=True)
            if product == FEEDMILL:  # Energon forks its workers
                (site / "sitecustomize.py").write_text(IN_WORKERS.format(bridge=str(bridge)))
            os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(Path(__file__).parent), *paths])
            found[product] = run_one(__file__, product, str(bridge), "--data", place)
            for what, figures in found[product]["figures"].items():
                print(f"{product}, {what}: resumed equally; {figures}")
    for what, ours in found[FEEDMILL]["samples"].items():
        count = SPLITS[what.rpartition(" ")[2]]
        assert len(ours) == count, (what, len(ours))
        if given.compare:
            compare(ours, found[ENERGON]["samples"][what], what, count)


if __name__ == "__main__":
    main()
