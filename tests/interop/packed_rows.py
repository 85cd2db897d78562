"""Train on rows of text and images with TRL's trainer: ``PYTHONPATH=src:tests python tests/interop/packed_rows.py``.

A small Qwen3-VL with random weights, on a CPU. `SFTTrainer` takes two steps on rows of `fm.tokens.collate_rows`.
Then its loss of each row is compared with its loss of the samples one by one, as TRL's own collator for images makes
them, and a row of documents with TRL's collator for packed texts: every field of the batch, and the loss. TRL learns
the tokens of images, too; these have no label here.

With ``--bridge FOLDER``, which is ``src/megatron/bridge`` of a clone of Megatron-Bridge, the row in its layout is
compared with what its own function for packed rows makes of the same samples. Its models do not run on a CPU: attention
of Megatron-Core (0.16.1) refuses packed rows but for that of Transformer Engine, which needs CUDA.

Fails with an assertion if anything differs, and prints the figures. It requires trl, transformers, torch, datasets and
Pillow. Last run with TRL 1.16.0, transformers 5.24.0, torch 2.14.1 and Megatron-Bridge 067f987df.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import torch
import trl
from PIL import Image
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, DataCollatorForVisionLanguageModeling

import feedmill as fm
from helpers.vision_models import picture, qwen3_config, qwen3_model, qwen3_processor, row_of, sample, talk

DOCUMENTS = (40, 25, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bridge", type=Path)
    bridge = parser.parse_args().bridge
    torch.set_num_threads(1)
    processor, draw = qwen3_processor(), np.random.default_rng(1)
    collate = fm.tokens.collate_rows(processor, config=qwen3_config(), chat_mask="none")
    samples = []
    for number in range(8):
        pictures = {f"{n}.jpg": picture(*draw.integers(32, 130, 2).tolist(), seed=n) for n in range(number % 3)}
        text = talk([*[None] * len(pictures), "q" * number], "a" * (number % 7 + 1))
        samples.append(sample(f"s{number}", {**pictures, "json": text}))
    lengths = [len(made) for made in collate.encoder(samples)]
    rows = [row_of(samples[part], lengths[part], 512, 16) for part in (slice(4), slice(4, 8))]
    with tempfile.TemporaryDirectory() as place:
        settings = trl.SFTConfig(
            output_dir=place, use_cpu=True, report_to=[], per_device_train_batch_size=1, max_steps=2, learning_rate=0,
            remove_unused_columns=False, dataset_kwargs={"skip_prepare_dataset": True}, max_length=None, bf16=False,
            gradient_checkpointing=False, logging_steps=1, save_strategy="no",
        )  # fmt: skip
        trainer = trl.SFTTrainer(
            model=qwen3_model().train(),
            args=settings,
            train_dataset=datasets.IterableDataset.from_generator(lambda: ({"row": row} for row in rows)),
            data_collator=lambda given: collate([each["row"] for each in given]),
            processing_class=processor,
        )
        trainer.train()
    steps = [step for step in trainer.state.log_history if "grad_norm" in step]
    assert len(steps) == 2 and all(step["grad_norm"] > 0 for step in steps)
    own = DataCollatorForVisionLanguageModeling(processor)
    for row, step in zip(rows, steps, strict=True):
        packed = collate([row])
        total, targets = 0.0, 0
        for one, ids in zip(row.samples, np.split(packed["input_ids"][0].numpy(), row.cu_seqlens[1:]), strict=False):
            images = [Image.open(io.BytesIO(one.raw(name))).convert("RGB") for name in sorted(one) if name != "json"]
            batch = own([{"messages": json.loads(one.raw("json"))["messages"], "images": images}])
            assert batch["input_ids"][0].tolist() == ids[: batch["input_ids"].shape[1]].tolist()
            batch["labels"][batch["input_ids"] == processor.image_token_id] = -100
            count = targets_of(batch)
            total, targets = total + loss_of(trainer, batch) * count, targets + count
        alone, together = total / targets, loss_of(trainer, packed)
        assert targets == targets_of(packed) and step["loss"] == together
        print(f"a row of {len(row)} samples: loss {together:.6f}, one by one {alone:.6f}, {targets} targets")
        assert abs(together - alone) < 1e-5
    documents = [{"input_ids": draw.integers(0, 250, size)} for size in DOCUMENTS]
    ours = collate([row_of(documents, DOCUMENTS, sum(DOCUMENTS))])
    collator = DataCollatorForLanguageModeling(collate.encoder.pad, padding_free=True)
    theirs = collator([{"input_ids": each["input_ids"].tolist()} for each in documents])
    for name, value in theirs.items():
        mine = ours[name][0] if name == "position_ids" else ours[name]  # the first row is that of the text
        assert type(mine) is type(value) and torch.equal(torch.as_tensor(mine), torch.as_tensor(value)), name
    assert loss_of(trainer, ours) == loss_of(trainer, theirs)
    print(f"a row of documents: {len(theirs)} of {len(theirs)} fields equal, and the loss")
    if bridge is not None:
        of_bridge(bridge, rows, processor)


def of_bridge(folder: Path, rows: list[Any], processor: Any) -> None:
    """Compare the layout ``megatron`` with Megatron-Bridge's own, which gets each sample as a row of its own."""
    names = ModuleType("megatron.bridge.data.datasets.utils")
    names.IGNORE_INDEX = -100  # type: ignore[attr-defined]
    sys.modules[names.__name__] = names
    packing = ModuleType("in_batch")
    exec((folder / "data/packing/in_batch.py").read_text(), packing.__dict__)
    collate = fm.tokens.collate_rows(processor, "megatron")
    for row in rows:
        ours, alone = collate([row]), []
        for one, length in zip(row.samples, row.lengths.tolist(), strict=True):
            made = collate([row_of([one], [length], length)])
            alone.append({name: made[name][0] for name in ("input_ids", "labels", "loss_mask", "position_ids")})
        theirs = packing.build_mcore_thd_sequence_batch_from_rows(
            alone, sequence_length=row.seq_len, pad_to_max_length=True, pad_to_multiple_of=row.multiple,
            pad_token_id=collate.encoder.pad, emit_padding_mask=True,
        )  # fmt: skip
        for name, value in theirs.items():
            mine = ours[name]
            same = torch.equal(mine, value) and mine.dtype == value.dtype if torch.is_tensor(value) else mine == value
            assert same, (name, mine, value)
        assert set(ours) - set(theirs) == {"visual_inputs"}
    print(f"Megatron-Bridge: {len(theirs)} of {len(theirs)} fields of {len(rows)} rows equal")


def targets_of(batch: Any) -> int:
    return int((batch["labels"][0, 1:] != -100).sum())


def loss_of(trainer: Any, batch: Any) -> float:
    return float(trainer.compute_loss(trainer.model, dict(batch)).item())


if __name__ == "__main__":
    main()
