"""Small vision-language models with random weights, their processors, and rows of samples for them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.formats.sample import Sample, Source
from feedmill.samples.rows import SampleRow

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>",
    "<|vision_end|>",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Any:
    """A tokenizer of bytes with the special tokens of Qwen."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({each: n for n, each in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    made.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def qwen3_processor(most: int = 65536) -> Any:
    """Qwen3-VL's processor with the image processor that needs no torchvision, and without videos."""
    import transformers

    class ImagesOnly(transformers.Qwen3VLProcessor):
        def check_argument_for_proper_class(self, *_: Any) -> None: ...

    # Processes import the class by its name, and what belongs to it by its module.
    ImagesOnly.__module__ = transformers.Qwen3VLProcessor.__module__
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 1024, "longest_edge": most}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return ImagesOnly(image_processor=images, tokenizer=tokenizer(), video_processor=None, chat_template=TEMPLATE)


def qwen3_config(attention: str = "sdpa") -> Any:
    """A configuration of Qwen3-VL of two layers."""
    from transformers import Qwen3VLConfig

    numbers = {name: 256 + at for at, name in enumerate(SPECIAL)}
    return Qwen3VLConfig(
        text_config={
            "vocab_size": 272,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=numbers["<|image_pad|>"],
        video_token_id=numbers["<|video_pad|>"],
        vision_start_token_id=numbers["<|vision_start|>"],
        vision_end_token_id=numbers["<|vision_end|>"],
        attn_implementation=attention,
    )


def qwen3_model(attention: str = "sdpa") -> Any:
    """Qwen3-VL with random weights, always the same."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(0)
    return Qwen3VLForConditionalGeneration(qwen3_config(attention)).eval()


def picture(width: int, height: int, seed: int = 0, orientation: int = 1) -> bytes:
    """A JPEG of noise."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


def talk(*turns: str | Sequence[str | None]) -> bytes:
    """A conversation of user and assistant in turns; None is an image."""
    messages = []
    for number, turn in enumerate(turns):
        pieces = [turn] if isinstance(turn, str) else turn
        content = [{"type": "image"} if piece is None else {"type": "text", "text": piece} for piece in pieces]
        messages.append({"role": ("user", "assistant")[number % 2], "content": content})
    return json.dumps({"messages": messages}).encode()


def sample(key: str, parts: Mapping[str, bytes]) -> Sample:
    """A sample of these parts."""
    block, spans = b"", {}
    for name, data in parts.items():
        spans[name] = (len(block), len(block) + len(data))
        block += data
    return Sample(key, block, spans, lambda: Source("data", "s.tar", 0, len(block), 0, key))


def row_of(
    samples: Sequence[Any], lengths: Sequence[int], seq_len: int, multiple: int = 1, **options: Any
) -> SampleRow:
    """A row of samples with these predicted lengths."""
    places = [-(-length // multiple) * multiple for length in lengths]
    return SampleRow(
        list(samples),
        np.array(lengths, np.int32),
        np.concatenate([[0], np.cumsum(places)]).astype(np.int32),
        seq_len,
        [getattr(each, "key", f"d{number}") for number, each in enumerate(samples)],
        ["data"] * len(samples),
        multiple,
        **options,
    )


def saved(processor: Any, folder: Path) -> str:
    """Return the folder of a checkpoint with the configuration and the files of a processor."""
    processor.save_pretrained(folder)
    qwen3_config().save_pretrained(folder)
    return str(folder)
