#!/usr/bin/env bash
# Packed rows with positions that begin again leak from sample to sample if the model makes a cache, as it does by default.
#
# SDPA and eager attention keep the samples of a row apart where `position_ids` begin again, but only without an
# attention mask and without a cache. `use_cache` is true by default, in training too, so a row of two samples has other
# logits than the samples alone, and nothing says so. With `use_cache=False` they are equal.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)
model = Qwen3ForCausalLM(config).train()
first, second = torch.randint(0, 99, (1, 20)), torch.randint(0, 99, (1, 30))
row = {"input_ids": torch.cat([first, second], 1), "position_ids": torch.cat([torch.arange(20), torch.arange(30)])[None]}
with torch.no_grad():
    alone = model(input_ids=second, use_cache=False).logits
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        for more in ({}, {"use_cache": False}):
            off = float((model(**row, **more).logits[:, 20:] - alone).abs().max())
            print(f"transformers {transformers.__version__}, {attention}, {more or 'by default'}: off by {off:.1e}")
            assert (off > 1e-2) == (not more), "changed"
PYTHON
