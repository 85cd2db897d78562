"""Run Megatron-LM's multimodal data provider on Feedmill: ``python tests/interop/megatron_multimodal.py FOLDER``.

FOLDER is ``examples/multimodal`` of a clone of Megatron-LM. Its files are unchanged: `megatron.energon` is another name
of `feedmill.compat.energon`, and the names that it needs of megatron.core and megatron.training are stand-ins (ranks,
arguments, a tokenizer of bytes). With packing, and with 0 and 2 workers, the script trains some steps, saves the state
through `torch.save`, resumes, and validates. It fails with an assertion if anything differs, and prints the figures.

It requires PyTorch, torchvision, Pillow and numpy.
"""

from __future__ import annotations

import io
import sys
import tempfile
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import feedmill

sys.path.insert(0, str(Path(__file__).parent))
from energon_tests import Aliases

SAMPLES, STEPS, EVALUATIONS = 60, 12, 5


class Bytes:
    """A tokenizer of bytes with the methods that the task encoder calls."""

    pad = 0

    def convert_tokens_to_ids(self, token: str) -> int:
        return 1

    def tokenize_conversation(self, turns: list[dict[str, str]], *_: Any) -> tuple[Any, Any]:
        ids = np.frombuffer(" ".join(turn["content"] for turn in turns).encode(), np.uint8).astype(np.int64)
        return ids, ids.copy()


def stand_in(name: str, **members: Any) -> None:
    """Create a module with members, and its packages."""
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    vars(module).update(members)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], last, module)


def install(arguments: Namespace) -> None:
    """Make the stand-ins and Energon's names importable."""
    sys.meta_path.insert(0, Aliases())
    import megatron  # type: ignore[import-not-found]  # noqa: F401 - created by Aliases

    ranks = {
        "get_data_parallel_rank": lambda: 0,
        "get_data_parallel_world_size": lambda: 1,
        "get_data_parallel_group": lambda: None,
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_pipeline_model_parallel_rank": lambda: 0,
        "get_pipeline_model_parallel_world_size": lambda: 1,
    }
    stand_in("megatron.core")
    stand_in("megatron.core.parallel_state", **ranks)
    stand_in("megatron.core.num_microbatches_calculator", get_num_microbatches=lambda: 1)
    stand_in("megatron.core.models.multimodal.context_parallel", get_padding=lambda *_, **__: 0)
    tokens = {"IGNORE_INDEX": -100, "IMAGE_TOKEN": "<image>", "VIDEO_TOKEN": "<video>"}
    stand_in("megatron.core.models.multimodal.llava_model", **tokens)
    stand_in("megatron.core.models.vision.clip_vit_model", get_num_image_embeddings=lambda *_: 4)
    stand_in("megatron.training", get_args=lambda: arguments, get_tokenizer=Bytes)
    stand_in(
        "megatron.training.checkpointing", get_checkpoint_name=lambda folder, *_, basename, **__: folder + basename
    )


def write_data(folder: Path) -> Path:
    """Write captions in two splits, and the metadataset of the example. Returns the metadataset."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(SAMPLES):
        image = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(image, "PNG")
        text = f"caption {number} " + "x" * int(rng.integers(1, 40))
        samples.append({"__key__": f"{number:06d}", "png": image.getvalue(), "txt": text})
    feedmill.write(str(folder / "captions"), samples, max_shard_samples=10, progress=False)
    feedmill.prepare(
        str(folder / "captions"),
        split_ratio="4,1,1",
        sample_type="CaptioningSample",
        field_map={"image": "png", "caption": "txt"},
        progress=False,
    )
    mixture = "datasets: [{weight: 1., path: captions, subflavors: {augmentation: false}}]"
    text = (
        f"__module__: megatron.energon\n__class__: Metadataset\nsplits:\n  train: {{{mixture}}}\n  val: {{{mixture}}}\n"
    )
    (folder / "mixture.yaml").write_text(text)
    return folder / "mixture.yaml"


def keys_of(batch: dict[str, Any]) -> list[str]:
    """Return the keys of the samples in the packs of a batch."""
    return [key for pack in batch["__key__"] for key in pack.split(",")]


def main() -> None:
    example = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        arguments = Namespace(
            data_path=[str(write_data(folder))],
            micro_batch_size=1,
            packing_buffer_size=8,
            packing_seq_length=400,
            dataloader_seq_length=400,
            decoder_seq_length=400,
            eval_iters=EVALUATIONS,
            prompt_path=str(example / "manual_prompts.json"),
            img_h=16,
            img_w=16,
            patch_dim=4,
            vision_model_type="clip",
            disable_vision_class_token=True,
            pixel_shuffle=False,
            use_tile_tags=False,
            use_tiling=False,
            use_thumbnail=False,
            use_area_weighted_aspect_ratio=False,
            max_num_tiles=1,
            tokenizer_prompt_format="any",
            freeze_LM=False,
            fp8=None,
            load=None,
            dataloader_save=f"{folder}/",
            iteration=STEPS,
            num_workers=0,
        )
        install(arguments)
        sys.path.insert(0, str(example))
        import dataloader_provider  # type: ignore[import-not-found]

        seen: list[Any] = []
        for arguments.num_workers in (0, 2):
            arguments.load = None
            training, validation, _ = dataloader_provider.train_valid_test_dataloaders_provider([1, 1, 1])
            before = [next(training) for _ in range(STEPS)]
            name = f"{folder}/train_dataloader_dprank000.pt"
            torch.save({"dataloader_state_dict": training.save_state()}, name)
            after = [next(training) for _ in range(STEPS)]
            arguments.load = "given"
            resumed, _, _ = dataloader_provider.train_valid_test_dataloaders_provider([1, 1, 1])
            again = [next(resumed) for _ in range(STEPS)]
            assert [batch["__key__"] for batch in again] == [batch["__key__"] for batch in after]
            assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(again, after, strict=True))
            assert any(len(keys_of(batch)) > 1 for batch in before), "no pack has several samples"
            valid = [[keys_of(next(validation[0])) for _ in range(EVALUATIONS)] for _ in range(2)]
            assert valid[0] == valid[1], "a second validation differs"
            seen.append(([batch["__key__"] for batch in before], valid))
            size = Path(name).stat().st_size
            print(f"{arguments.num_workers} workers: {STEPS} batches, a state of {size} bytes, resumed equally")
            print(f"    first packs {seen[-1][0][:3]}, validation {valid[0]}")
        assert seen[0] == seen[1], "0 and 2 workers differ"
        split = feedmill.open(f"{folder}/captions", split="val")
        every = {split.locate(number).key for number in range(len(split))}
        assert {key for keys in seen[0][1][0] for key in keys} <= every
        packed = {key for keys in seen[0][1][0] for key in keys}
        print(f"validation saw {len(packed)} of the {len(every)} samples of its split in {EVALUATIONS} batches")


if __name__ == "__main__":
    main()
