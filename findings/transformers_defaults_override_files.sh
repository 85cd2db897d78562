#!/usr/bin/env bash
# Parameters in a checkpoint's own preprocessor file have no effect where its processor passes them in each call.
#
# `Gemma3Processor` calls its image processor with do_pan_and_scan=False, and `Qwen2_5OmniProcessor` its video processor
# with a size, whatever the files say: the same image or video processor alone follows its file. Nothing warns.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    transformers==5.24.0 tokenizers==0.23.3 torch==2.14.1 torchvision==0.29.1 pillow==13.0.0
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - <<'PYTHON'
import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma3ImageProcessor,
    Gemma3Processor,
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def tokenizer(**tokens):
    return PreTrainedTokenizerFast(tokenizer_object=inner, extra_special_tokens=tokens, pad_token="<pad>")


seen = {}
Path("gemma").mkdir()
scan = {"min_crop_size": 256, "max_num_crops": 4, "min_ratio_to_activate": 1.2}
file = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}, "do_pan_and_scan": True}
file |= {f"pan_and_scan_{name}": value for name, value in scan.items()}
Path("gemma/preprocessor_config.json").write_text(json.dumps(file))
images = Gemma3ImageProcessor.from_pretrained("gemma")
gemma = Gemma3Processor(
    images, tokenizer(image_token="<soft>", boi_token="<boi>", eoi_token="<eoi>"), image_seq_length=256
)
picture = torch.zeros(3, 600, 1800, dtype=torch.uint8)
seen["Gemma 3, image processor alone"] = images([picture], return_tensors="pt")["pixel_values"].shape[0]
seen["Gemma 3, processor"] = gemma(text="<boi>", images=[picture], return_tensors="pt")["pixel_values"].shape[0]
asked = gemma(text="<boi>", images=[picture], do_pan_and_scan=True, return_tensors="pt")
seen["Gemma 3, processor called with the parameter"] = asked["pixel_values"].shape[0]

Path("omni").mkdir()
file = {"video_processor_type": "Qwen2VLVideoProcessor", "size": {"shortest_edge": 3136, "longest_edge": 50176}}
Path("omni/video_preprocessor_config.json").write_text(json.dumps(file))
videos = Qwen2VLVideoProcessor.from_pretrained("omni")
tokens = {f"{kind}_token": f"<{kind}>" for kind in ("image", "audio", "video")}
edges = {f"{kind}_{edge}_token": f"<{kind} {edge}>" for kind in ("vision", "audio") for edge in ("bos", "eos")}
omni = Qwen2_5OmniProcessor(
    Qwen2VLImageProcessor(), videos, WhisperFeatureExtractor(feature_size=128), tokenizer(**tokens, **edges)
)
clip = torch.zeros(2, 3, 560, 560, dtype=torch.uint8)
seen["Qwen2.5-Omni, video processor alone"] = videos([clip], return_tensors="pt")["video_grid_thw"].prod().item()
made = omni(text="<video>", videos=[clip], return_tensors="pt")
seen["Qwen2.5-Omni, processor"] = made["video_grid_thw"].prod().item()
for what, count in seen.items():
    print(f"transformers {transformers.__version__}, {what}: {count} {'images' if 'Gemma' in what else 'patches'}")
assert list(seen.values()) == [4, 1, 4, 256, 1600], "changed"
PYTHON
