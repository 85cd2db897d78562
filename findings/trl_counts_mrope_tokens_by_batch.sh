#!/usr/bin/env bash
# TRL's SFTTrainer counts one token for a whole packed row if the row has the positions of M-RoPE.
#
# For packed rows, which have no attention mask, `num_tokens` grows by the second dimension of `position_ids`: the length
# of the row for most models, which take [1, length]. Models with M-RoPE (Qwen2-VL and later) take [3, 1, length], so it
# grows by 1. The loss is the same; only the logged number of tokens, and what is computed from it, is wrong.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  trl==1.16.0 transformers==5.24.0 torch==2.14.1 accelerate==1.15.0 datasets==5.2.0 numpy==2.4.6
cd "$work"
HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false "$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

LENGTH = 24
words = {f"w{number}": number for number in range(64)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), unk_token="w0", eos_token="w1", pad_token="w2"
)
text = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2], "rope_type": "default"},
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}
vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
config = Qwen2VLConfig(
    text_config=text, vision_config=vision, image_token_id=60, video_token_id=61, vision_start_token_id=62,
    vision_end_token_id=63, pad_token_id=2,
)


def counted(positions):
    """Train for one step of one row; return the tokens that were counted, and the loss."""

    def collate(rows):
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": positions}

    torch.manual_seed(0)
    arguments = trl.SFTConfig(
        output_dir="out", max_steps=1, per_device_train_batch_size=1, use_cpu=True, report_to=[], logging_steps=1,
        disable_tqdm=True, save_strategy="no", bf16=False, gradient_checkpointing=False, remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = trl.SFTTrainer(
        Qwen2VLForConditionalGeneration(config), arguments, data_collator=collate, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"input_ids": [list(range(3, 3 + LENGTH))]}),
    )
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "num_tokens" in entry)
    return int(log["num_tokens"]), round(float(log["loss"]), 4)


row = torch.cat([torch.arange(10), torch.arange(LENGTH - 10)])
plain = counted(row.expand(1, LENGTH))
mrope = counted(row.expand(3, 1, LENGTH))
print(f"trl {trl.__version__}, transformers {transformers.__version__}: one step of a row of {LENGTH} tokens")
print(f"position_ids of [1, {LENGTH}]: num_tokens {plain[0]}, loss {plain[1]}")
print(f"position_ids of [3, 1, {LENGTH}]: num_tokens {mrope[0]}, loss {mrope[1]}")
assert (plain[0], mrope[0]) == (LENGTH, 1) and plain[1] == mrope[1], "changed"
PYTHON
