"""A tiny Llama of bytes, and its log, for the trainers that are built on the `Trainer` of transformers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import feedmill as fm

LENGTH = 32


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return the bytes of a random piece of the text as tokens, all of them trained on, and the id of the sample."""
    tokens = common.piece_of(sample, rng, LENGTH)
    return {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "labels": tokens,
        "id": sample["json"]["id"],
    }


def save(folder: Path, row: dict[str, Any]) -> None:
    """Write the model, its tokenizer, and rows that a trainer's own loading accepts, which are not trained on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>")
    tokenizer.save_pretrained(folder / "model")
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 8)


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the `Trainer`."""
    return {
        "max_steps": options.steps,
        "gradient_accumulation_steps": options.accumulate,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_steps": options.every,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


def note(trainer: Any, log: common.Log, accumulate: int) -> None:
    """Log the samples and the mean loss of each batch."""
    loss_of = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        made = "completion_ids" in inputs  # by the policy, so they tell whether the model is the same
        rows = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1) if made else None
        ids = inputs.pop("id") if rows is None else common.checksums(rows)
        found = loss_of(model, inputs, *args, **options)
        loss = (found[0] if isinstance(found, tuple) else found).item()
        of_step = made or options.get("num_items_in_batch") is not None  # divided by the tokens of the whole step
        log(trainer.state.global_step + 1, loss * (accumulate if of_step else 1), {"id": ids})
        return found

    trainer.compute_loss = compute_loss
