"""Data and task encoders of Megatron-Bridge's Flux and Qwen2.5-VL, for `megatron_bridge`.

The processor of Qwen2.5-VL is that of Hugging Face, made of a tokenizer of bytes and the stock processors of images and
video. Nothing is downloaded.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np
import torch
from provider_pair import digest

TURN = "{{ '<|im_start|>' + turn.role + '\n' }}"
PART = (
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
)
CONTENT = (
    "{% if turn.content is string %}{{ turn.content }}{% else %}"
    "{% for part in turn.content %}" + PART + "{% endfor %}{% endif %}"
)
TEMPLATE = "{% for turn in messages %}" + TURN + CONTENT + "{{ '<|im_end|>\n' }}{% endfor %}"
SPECIAL = ("<|im_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


def flux_sample(number: int, rng: np.random.Generator) -> dict[str, bytes]:
    """Return the parts of one image for Flux: latents [4, 4, 6], two embeddings."""
    latent = io.BytesIO()
    torch.save(torch.from_numpy(rng.random((4, 4, 6), np.float32)), latent)
    prompt = torch.from_numpy(rng.random((3 + number % 5, 8), np.float32))
    pooled = torch.from_numpy(rng.random(6, np.float32))
    embeddings = pickle.dumps({"prompt_embeds": prompt, "pooled_prompt_embeds": pooled})
    return {"pth": latent.getvalue(), "pickle": embeddings}


def flux_images(batch: dict[str, Any]) -> dict[str, str]:
    """Return the digest of latents, embeddings and mask of each image of a batch, by name."""
    found = {}
    for number, about in enumerate(batch["image_metadata"]):
        names = ("latents", "prompt_embeds", "pooled_prompt_embeds", "latent_shape", "seq_len_q", "seq_len_kv")
        values = [batch[name][number] for name in names]
        found[about["name"]] = digest(*values, batch["loss_mask"][number].float(), sorted(about.items()))
    return found


def processor() -> Any:
    """Return a processor of Qwen2.5-VL whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        PreTrainedTokenizerFast,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=list(SPECIAL),
    )
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE,
    )


def qwen_encoder() -> Any:
    """Return Bridge's task encoder for models with a processor of Hugging Face, which chooses the collation of Qwen."""
    from megatron.bridge.data.energon.hf_task_encoder import HFTaskEncoder  # type: ignore[import-not-found]

    return HFTaskEncoder(processor(), seq_length=1024, min_pixels=28 * 28, max_pixels=64 * 28 * 28)


def qwen_talks(batch: dict[str, Any]) -> dict[str, str]:
    """Return the digest of tokens, labels, loss mask and pixels of each conversation of a batch, by its number."""
    visual, found = batch["visual_inputs"], {}
    media = []  # of both kinds: pixels and grids
    pairs = (visual.pixel_values, visual.image_grid_thw), (visual.pixel_values_videos, visual.video_grid_thw)
    for pixels, grids in pairs:
        media.append(list(zip(pixels.split(grids.prod(dim=1).tolist()), grids, strict=True)))
    rows = len(batch["input_ids"])
    for row in range(rows):
        kept = batch["attention_mask"][row].bool()
        values = [batch[name][row][kept] for name in ("input_ids", "labels", "loss_mask")]
        for items in media:
            own = len(items) // rows
            values += [value for pair in items[row * own : (row + 1) * own] for value in pair]
        (number,) = re.findall(r"what is in (\d+)\?", _text(values[0].tolist()))
        found[number] = digest(*values)
    return found


def _text(tokens: list[int]) -> str:
    """Return the text of tokens. Those of bytes are numbered in the order of the alphabet of byte-level BPE."""
    from tokenizers import decoders, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return str(decoders.ByteLevel().decode([alphabet[token] for token in tokens if token < len(alphabet)]))
