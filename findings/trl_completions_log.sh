#!/usr/bin/env bash
# TRL's log of completions is no record of what was sampled: it loses most answers, or has them several times.
#
# GRPO's `log_completions` writes a Parquet file at each logged step, with the answers of the last generation. With
# `logging_steps=4` three of four generations are in no file (the default is 10); with 4 steps of a generation, or 2
# iterations, each answer is written at each of these steps, as if it had been sampled there. Nothing says so. Only one
# generation for each logged step gives each answer once.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check trl==1.16.0 transformers==5.24.0 torch==2.13.0 \
    accelerate==1.15.0 datasets==5.2.0 pandas==3.1.1
cd "$work"
CUDA_VISIBLE_DEVICES="" "$work/venv/bin/python" - 2> log <<'PYTHON' | grep '^trl' || { tail -5 log; exit 1; }
import glob

import pandas as pd
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<pad>", "<eos>", *map(str, range(60))])}, "<pad>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
sizes = dict(vocab_size=62, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
sampled = []


def reward(completions, **_):
    sampled.extend(completions)
    return [float(len(text)) for text in completions]


for more, expected in (
    ({"logging_steps": 1, "steps_per_generation": 1}, (32, 32)),
    ({"logging_steps": 4, "steps_per_generation": 1}, (32, 8)),
    ({"logging_steps": 1, "steps_per_generation": 4}, (32, 128)),
    ({"logging_steps": 1, "steps_per_generation": 1, "num_iterations": 2}, (16, 32)),
):
    torch.manual_seed(0)
    sampled.clear()
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8, eos_token_id=1, pad_token_id=0))
    folder = "-".join(map(str, more.values()))
    config = trl.GRPOConfig(
        folder, max_steps=8, per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
        log_completions=True, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, **more,
    )
    prompts = Dataset.from_dict({"prompt": [str(n) for n in range(40)]})
    trl.GRPOTrainer(model, reward, args=config, train_dataset=prompts, processing_class=tokenizer).train()
    logged = pd.concat([pd.read_parquet(path) for path in sorted(glob.glob(f"{folder}/completions/*.parquet"))])
    steps = logged.groupby("prompt")["step"].unique().map(lambda values: len(values)).max()
    print(f"trl {trl.__version__}, {more}: {len(sampled)} answers sampled, {len(logged)} rows, a prompt in {steps} steps")
    assert (len(sampled), len(logged)) == expected, "changed"
PYTHON
