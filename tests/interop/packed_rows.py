"""Train on packed rows with TRL's trainers: ``PYTHONPATH=src:tests python tests/interop/packed_rows.py``.

A small Qwen3-VL with random weights, on a CPU. `SFTTrainer` takes two steps on rows of `fm.tokens.collate_rows`.
Then its loss of each row is compared with its loss of the samples one by one, as TRL's own collator for images makes
them, and a row of documents with TRL's collator for packed texts: every field of the batch, and the loss. TRL learns
the tokens of images, too; these have no label here.

`DPOTrainer`, unchanged, takes two steps on rows of preference pairs (layout ``dpo``) with a small Llama. Its loss of
each row is compared with that of the pairs one by one, as its own collator makes them, and with that of one pass over
the packed row, whose sums of log-probabilities come from ``group_ids`` and ``member_ids``.

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
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, DataCollatorForVisionLanguageModeling

import feedmill as fm
from feedmill.formats.tokens.pbin import write_pbin
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
    of_pairs()


def of_pairs() -> None:
    """Compare losses of rows of preference pairs with TRL's."""
    draw = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as place:
        store = fm.open_store(place)
        prompts = [draw.integers(1, 200, draw.integers(3, 12)) for _ in range(40)]
        for name in ("chosen", "rejected"):
            with write_pbin(store, f"{name}.pbin", 4, loss=True) as out:
                for prompt in prompts:
                    whole = np.concatenate([prompt, draw.integers(1, 200, draw.integers(3, 25))])
                    out.add(whole, np.array([len(whole)]), np.arange(len(whole)) >= len(prompt))
        zipped = [{"path": f"{place}/{name}.pbin"} for name in ("chosen", "rejected")]
        recipe = {"seed": 1, "source": {"zip": zipped}, "epochs": 1, "pack": {"seq_len": 128, "long": "drop"}}
        plan = fm.Recipe.parse(recipe).plan()
        rows = plan.read(range(len(plan)))
        config = LlamaConfig(
            vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, pad_token_id=0, attention_dropout=0.0,
        )  # fmt: skip
        torch.manual_seed(0)
        model, reference = LlamaForCausalLM(config), LlamaForCausalLM(config).eval()
        settings = trl.DPOConfig(
            output_dir=place, use_cpu=True, report_to=[], per_device_train_batch_size=1, max_steps=2, learning_rate=0,
            remove_unused_columns=False, bf16=False, gradient_checkpointing=False, logging_steps=1, save_strategy="no",
            beta=0.1, max_length=None,
        )  # fmt: skip
        collate = fm.tokens.collate_rows(layout="dpo")
        pairs = datasets.Dataset.from_dict({"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]})
        trainer = trl.DPOTrainer(
            model=model, ref_model=reference, args=settings, train_dataset=pairs, data_collator=collate,
            processing_class=qwen3_processor().tokenizer,
        )  # fmt: skip
        trainer.train_dataset = rows
        trainer.train()
        steps = [step for step in trainer.state.log_history if "grad_norm" in step]
        assert len(steps) == 2 and all(step["grad_norm"] > 0 for step in steps)
        own, worst = DataCollatorForPreference(0), 0.0
        for row in rows:
            losses = []
            ends = row["cu_seqlens"].tolist()
            for n in range(0, int(row["group_ids"].max() + 1) * 2, 2):
                ids = [
                    row["input_ids"][a:b].tolist() for a, b in zip(ends[n : n + 2], ends[n + 1 : n + 3], strict=True)
                ]
                prompt = int(row["loss_mask"][ends[n] :].argmax())
                pair = {"prompt_ids": ids[0][:prompt], "chosen_ids": ids[0][prompt:], "rejected_ids": ids[1][prompt:]}
                losses.append(loss_of(trainer, own([pair])))
            packed = fm.tokens.collate_rows()([row])
            with torch.no_grad():
                ratios = sums_of(trainer.model, packed) - sums_of(reference, packed)
            together = float(-torch.nn.functional.logsigmoid(0.1 * (ratios[:, 0] - ratios[:, 1])).mean())
            alone = sum(losses) / len(losses)
            worst = max(worst, abs(together - alone), abs(loss_of(trainer, collate([row])) - alone))
        assert worst < 1e-5
        print(
            f"{len(rows)} rows of {len(prompts)} pairs: losses differ from those of single pairs by at most {worst:.1e}"
        )


def sums_of(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the log-probability of each sample's answers in a packed row, [pairs, 2]: the chosen and the rejected."""
    batch = dict(batch)
    groups, members = batch.pop("group_ids")[:, 1:], batch.pop("member_ids")[:, 1:]
    targets = batch.pop("labels")[:, 1:]
    found = model(**batch).logits[:, :-1].log_softmax(-1).gather(-1, targets.clamp(0)[..., None])[..., 0]
    learned = targets != -100
    sums = torch.zeros(int(groups.max()) + 1, 2)
    return sums.index_put((groups[learned], members[learned]), found[learned], accumulate=True)


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
