"""Run Megatron-LM's multimodal data provider: ``python tests/interop/megatron_multimodal.py FOLDER [--compare]``.

FOLDER is ``examples/multimodal`` of a clone of Megatron-LM. Its files are unchanged: `megatron.energon` is another name
of `feedmill.compat.energon`, and the names that it needs of megatron.core and megatron.training are stand-ins (ranks,
arguments, a tokenizer of bytes). With packing, and with 0 and 2 workers, the script trains until each sample was seen,
saves the state through `torch.save`, resumes, and validates. It fails with an assertion if anything differs, and prints
the figures. With ``--compare`` it does the same with the installed Energon, and compares the samples of both as sets:
tokens, labels, loss mask and image of each.

It requires PyTorch, torchvision, Pillow and numpy, and Energon for ``--compare``.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import feedmill

sys.path.insert(0, str(Path(__file__).parent))
from provider_pair import ENERGON, FEEDMILL, collect, compare, digest, run_one, stand_in, use

SAMPLES, STEPS, EVALUATIONS = 60, 12, 12
SPLITS = {"train": 40, "val": 10}
"""Samples of each source in the splits."""
SOURCES = ("captions", "llava")
IGNORED, EMBEDDINGS = -100, 4


class Bytes:
    """A tokenizer of bytes with the methods that the task encoder calls."""

    pad = 0

    def convert_tokens_to_ids(self, token: str) -> int:
        return 1

    def tokenize_conversation(self, turns: list[dict[str, str]], *_: Any) -> tuple[Any, Any]:
        parts = [np.frombuffer(turn["content"].encode(), np.uint8).astype(np.int64) for turn in turns]
        masked = [np.full_like(part, IGNORED) for part in parts[:-1]]  # only the answer is trained on
        return np.concatenate(parts), np.concatenate([*masked, parts[-1]])


def install(arguments: Namespace, product: str) -> None:
    """Make the stand-ins and Energon's names importable."""
    use(product)
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
    tokens = {"IGNORE_INDEX": IGNORED, "IMAGE_TOKEN": "<image>", "VIDEO_TOKEN": "<video>"}
    stand_in("megatron.core.models.multimodal.llava_model", **tokens)
    stand_in("megatron.core.models.vision.clip_vit_model", get_num_image_embeddings=lambda *_: EMBEDDINGS)
    stand_in("megatron.training", get_args=lambda: arguments, get_tokenizer=Bytes)
    stand_in(
        "megatron.training.checkpointing", get_checkpoint_name=lambda folder, *_, basename, **__: folder + basename
    )


def write_data(folder: Path, example: Path) -> None:
    """Write captions and questions in two splits, the metadataset of the example, and a file with one prompt."""
    rng = np.random.default_rng(0)
    for name, kind, text in (
        ("captions", "CaptioningSample", {"caption": "txt"}),
        ("llava", "VQASample", {"context": "q.txt", "answers": "txt"}),
    ):
        samples = []
        for number in range(SAMPLES):
            image = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(image, "PNG")
            answer = f"answer {number} " + "x" * int(rng.integers(1, 40))
            parts = {"png": image.getvalue(), "txt": answer, "q.txt": "what is it?"}
            samples.append({"__key__": f"{name}{number:06d}", **parts})
        feedmill.write(str(folder / name), samples, max_shard_samples=10, progress=False)
        feedmill.prepare(
            str(folder / name),
            split_ratio="4,1,1",
            sample_type=kind,
            field_map={"image": "png", **text},
            progress=False,
        )
    mixture = "".join(f"{{weight: 1., path: {name}, subflavors: {{augmentation: false}}}}, " for name in SOURCES)
    lines = [f"  {split}: {{datasets: [{mixture}]}}" for split in SPLITS]
    text = "\n".join(["__module__: megatron.energon", "__class__: Metadataset", "splits:", *lines, ""])
    (folder / "mixture.yaml").write_text(text)
    prompts = json.loads((example / "manual_prompts.json").read_text())
    raw = prompts["CaptioningPretraining"][
        "raw"
    ]  # the encoder draws one, so that only a single one gives equal samples
    prompts["CaptioningPretraining"]["raw"] = raw[:1]
    (folder / "prompts.json").write_text(json.dumps(prompts))


def masks_of(example: Path) -> Callable[..., Any]:
    """Return the function of the example's train.py that computes the loss mask, without the rest of that file."""
    name = "get_ltor_masks_and_position_ids"
    tree = ast.parse((example / "train.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    names: dict[str, Any] = {"torch": torch, "IGNORE_INDEX": IGNORED}
    exec(compile(tree, "train.py", "exec"), names)
    found: Callable[..., Any] = names[name]
    return found


def samples_of(batch: dict[str, Any], masks: Callable[..., Any]) -> dict[str, str]:
    """Return the digest of tokens, labels, loss mask and image of each sample in the packs of a batch, by key."""
    mask, _ = masks(batch["tokens"], batch["labels"], Bytes.pad)
    found, tile = {}, 0
    for row, pack in enumerate(batch["__key__"]):
        at, ends = 0, batch["cu_lengths"][row].tolist()
        for key, begin, end in zip(pack.split(","), ends, ends[1:], strict=False):
            length = end - begin - EMBEDDINGS + 1  # one image of one tile, whose token is replaced
            own = slice(at, at + length)
            text = batch["tokens"][row, own], batch["labels"][row, own], mask[row, own]
            found[key] = digest(*text, batch["imgs"][tile])
            at, tile = at + length, tile + 1
        assert not batch["tokens"][row, at:].any(), "tokens after the last sample"
    assert tile == len(batch["imgs"])
    return found


def train(product: str, example: Path, folder: Path) -> dict[str, Any]:
    """Train, resume and validate. Returns the digests of all samples of both splits, and the figures."""
    arguments = Namespace(
        data_path=[str(folder / "mixture.yaml")],
        micro_batch_size=1,
        packing_buffer_size=8,
        packing_seq_length=400,
        dataloader_seq_length=400,
        decoder_seq_length=400,
        eval_iters=EVALUATIONS,
        prompt_path=str(folder / "prompts.json"),
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
        dataloader_save=f"{folder}/{product}",
        iteration=STEPS,
        num_workers=0,
    )
    install(arguments, product)
    sys.path.insert(0, str(example))
    import dataloader_provider  # type: ignore[import-not-found]

    masks = masks_of(example)
    seen: dict[str, dict[str, str]] = {"train": {}, "val": {}}
    figures: dict[str, Any] = {}
    firsts = []
    for arguments.num_workers in (0, 2):
        arguments.load = None
        training, validation, _ = dataloader_provider.train_valid_test_dataloaders_provider([1, 1, 1])
        before = [next(training) for _ in range(STEPS)]
        name = f"{arguments.dataloader_save}train_dataloader_dprank000.pt"
        torch.save({"dataloader_state_dict": training.save_state()}, name)
        after = [next(training) for _ in range(STEPS)]
        arguments.load = "given"
        resumed, _, _ = dataloader_provider.train_valid_test_dataloaders_provider([1, 1, 1])
        again = [next(resumed) for _ in range(STEPS)]
        assert [batch["__key__"] for batch in again] == [batch["__key__"] for batch in after]
        assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(again, after, strict=True))
        assert any("," in key for batch in before for key in batch["__key__"]), "no pack has several samples"
        given, own = 0, dict[str, str]()
        batches = iter([*before, *after])
        while len(own) < SPLITS["train"] * len(SOURCES):
            samples = samples_of(next(batches, None) or next(training), masks)
            given += len(samples)
            assert given < 10 * SPLITS["train"] * len(SOURCES), "some samples never come"
            collect(own, samples)
        collect(seen["train"], own)
        valid = [[next(loader) for _ in range(EVALUATIONS)] for loader in validation for _ in range(2)]
        keys = [[batch["__key__"] for batch in batches] for batches in valid]
        assert product == ENERGON or keys[::2] == keys[1::2], "a second validation differs"
        for batches_of_one in valid:
            for batch in batches_of_one:
                collect(seen["val"], samples_of(batch, masks))
        firsts.append([batch["__key__"] for batch in before])
        figures[f"{arguments.num_workers} workers"] = {
            "bytes of the state": Path(name).stat().st_size,
            "samples until all were seen": given,
        }
    assert product == ENERGON or firsts[0] == firsts[1], "0 and 2 workers differ"
    return {"samples": seen, "figures": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="examples/multimodal of Megatron-LM")
    parser.add_argument("--compare", action="store_true", help="run the installed Energon too, and compare the samples")
    parser.add_argument("--product", choices=(FEEDMILL, ENERGON), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    example = given.folder.resolve()
    if given.product:
        print(json.dumps(train(given.product, example, given.data)))
        return
    with tempfile.TemporaryDirectory() as place:
        write_data(Path(place), example)
        found = {}
        for product in (FEEDMILL, ENERGON) if given.compare else (FEEDMILL,):
            found[product] = run_one(__file__, product, str(example), "--data", place)
            for workers, figures in found[product]["figures"].items():
                print(f"{product}, {workers}: resumed equally; {figures}")
    for split, count in SPLITS.items():
        ours = found[FEEDMILL]["samples"][split]
        assert len(ours) == count * len(SOURCES), (split, len(ours))
        if given.compare:
            compare(ours, found[ENERGON]["samples"][split], split, count * len(SOURCES))


if __name__ == "__main__":
    main()
