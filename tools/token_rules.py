"""Compare the token rules with the processors of the installed transformers, and make their frozen tables.

    python tools/token_rules.py [--sizes 1500] [--texts 100] [--pixels] [--write] [FAMILY ...]

Each table in ``tests/golden/token_rules`` has the files of a processor's folder, sizes of media, and the tokens that
the processor itself made of them. For each family, this runs the processor on random sizes, and says how many counts
differ from the rule's, and how many of the table changed with the installed release. ``--write`` writes the tables.
transformers, torch and torchvision are needed. Pixels are zeros, and resampling is replaced by a tensor of the same
shape, so that only the processor's arithmetic is run; videos are tensors without values. With ``--pixels``, nothing is
replaced. Exits with 1 if a count differs.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import re
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.samples.token_rules.processor import read_rules
from feedmill.samples.token_rules.rule import UNKNOWN, Sizes

TABLES = Path(__file__).parents[1] / "tests/golden/token_rules"
KEPT = 150
MARKS = re.compile(
    r"<\|[^|]*\|>|<(?:image|video|start_of_image|end_of_image|image_soft_token|fake_token_around_image"
    r"|global-img|row_\d+_col_\d+|img|/img|IMG_CONTEXT|boi|eoi|soft|boa|eoa|aud|im_patch|im_col|im_start|im_end|im_low"
    r"|low_res_im_start|frame_start|frame_end|slice|/slice|image_id|/image_id|/image)>|\[IMG(?:_BREAK|_END)?\]"
)
GRIDS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
SQUARE = {"size": {"height": 448, "width": 448}}
QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
MOLMO_TOKENS = {"image_token": "<|image|>", "video_token": "<|video|>"}
GEMMA3_TOKENS = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
GEMMA4_TOKENS = {
    "image_token": "<soft>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "audio_token": "<aud>",
    "boa_token": "<boa>",
    "eoa_token": "<eoa>",
}
INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
GLM_TOKENS = {"image_token": "<|image|>", "video_token": "<|video|>"}
MINICPM_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
NESTED = ("idefics3", "smolvlm", "mllama")
"""Processors that take images by sample."""
UNSEEN = ("idefics3", "smolvlm")
"""Processors that copy large pictures, whose values they never read."""
MINICPM_PARTS = {
    "image_processor": "minicpmv4_6:MiniCPMV4_6ImageProcessor",
    "video_processor": "minicpmv4_6:MiniCPMV4_6VideoProcessor",
}
QWEN_IMAGES, QWEN3 = "qwen2_vl:Qwen2VLImageProcessor", {"shortest_edge": 65_536, "longest_edge": 16_777_216}
WHISPER = "whisper:WhisperFeatureExtractor"
LLAVA = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
CROP = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}


def family(
    kind: str,
    processor: str,
    part: str,
    parameters: dict[str, Any],
    own: dict[str, Any] | None = None,
    tokens: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    **limits: Any,
) -> dict[str, Any]:
    """Return a family: classes as ``module:Class``, parameters of the part and of the processor, special tokens."""
    return {
        "kind": kind,
        "processor": processor,
        "part": part,
        "parameters": parameters,
        "own": own or {},
        "tokens": tokens or {"image_token": "<image>", "video_token": "<video>"},
        "limits": limits,
        "options": options or {},
    }


FAMILIES = {
    "qwen2_vl": family("image", "qwen2_vl:Qwen2VLProcessor", QWEN_IMAGES, {}, tokens=QWEN_TOKENS),
    "qwen2_vl_pixels": family(
        "image",
        "qwen2_5_vl:Qwen2_5_VLProcessor",
        QWEN_IMAGES,
        {"min_pixels": 200_704, "max_pixels": 602_112},
        tokens=QWEN_TOKENS,
    ),
    "qwen3_vl": family(
        "image", "qwen3_vl:Qwen3VLProcessor", QWEN_IMAGES, {"patch_size": 16, "size": QWEN3}, tokens=QWEN_TOKENS
    ),
    "glm4v": family(
        "image",
        "glm4v:Glm4vProcessor",
        "glm4v:Glm4vImageProcessor",
        {},
        tokens=GLM_TOKENS,
        low=8,
    ),
    "glm46v": family("image", "glm46v:Glm46VProcessor", "glm46v:Glm46VImageProcessor", {}, tokens=GLM_TOKENS, low=8),
    "kimi_k25": family(
        "image",
        "kimi_k25:Kimi_K25Processor",
        "kimi_k25:Kimi_K25ImageProcessor",
        {},
        tokens={"image_token": "<|media_pad|>"},
        low=2,
    ),
    "llava": family("image", "llava:LlavaProcessor", "clip:CLIPImageProcessor", CROP, LLAVA),
    "llava_next": family(
        "image",
        "llava_next:LlavaNextProcessor",
        "llava_next:LlavaNextImageProcessor",
        {**CROP, "image_grid_pinpoints": PINPOINTS},
        LLAVA,
    ),
    "llava_onevision": family(
        "image",
        "llava_onevision:LlavaOnevisionProcessor",
        "llava_onevision:LlavaOnevisionImageProcessor",
        {"size": {"height": 384, "width": 384}, "image_grid_pinpoints": GRIDS},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
        high=1500,
    ),
    "internvl": family(
        "image",
        "internvl:InternVLProcessor",
        "got_ocr2:GotOcr2ImageProcessor",
        {**SQUARE, "crop_to_patches": True},
        {"image_seq_length": 256},
        INTERNVL_TOKENS,
    ),
    "pixtral": family(
        "image",
        "pixtral:PixtralProcessor",
        "pixtral:PixtralImageProcessor",
        {"patch_size": {"height": 16, "width": 16}, "size": {"longest_edge": 1024}},
        {"patch_size": 16},
        low=1,
    ),
    "mistral3": family(
        "image",
        "pixtral:PixtralProcessor",
        "pixtral:PixtralImageProcessor",
        {"patch_size": 14, "size": {"longest_edge": 1540}},
        {"patch_size": 14, "spatial_merge_size": 2},
        low=1,
    ),
    "gemma3": family(
        "image",
        "gemma3:Gemma3Processor",
        "gemma3:Gemma3ImageProcessor",
        {"size": {"height": 896, "width": 896}, "do_pan_and_scan": None},
        {},
        GEMMA3_TOKENS,
        low=2,
    ),
    "gemma3_crops": family(
        "image",
        "gemma3:Gemma3Processor",
        "gemma3:Gemma3ImageProcessor",
        {"size": {"height": 896, "width": 896}},
        {},
        GEMMA3_TOKENS,
        options={"do_pan_and_scan": True},
    ),
    "gemma4": family("image", "gemma4:Gemma4Processor", "gemma4:Gemma4ImageProcessor", {}, {}, GEMMA4_TOKENS, low=2),
    "idefics3": family(
        "image", "idefics3:Idefics3Processor", "idefics3:Idefics3ImageProcessor", {}, {"image_seq_len": 169}, low=8
    ),
    "smolvlm": family(
        "image",
        "smolvlm:SmolVLMProcessor",
        "smolvlm:SmolVLMImageProcessor",
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_seq_len": 64},
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
        },
        low=8,
    ),
    "phi4_multimodal": family(
        "image",
        "phi4_multimodal:Phi4MultimodalProcessor",
        "phi4_multimodal:Phi4MultimodalImageProcessor",
        {},
        {},
        {"image_token": "<|image|>", "audio_token": "<|audio|>"},
        low=60,
        high=3200,
    ),
    "llama4": family(
        "image",
        "llama4:Llama4Processor",
        "llama4:Llama4ImageProcessor",
        {},
        {},
        {"image_token": "<|image|>"},
        high=2500,
    ),
    "qwen2_vl_video": family(
        "video",
        "qwen2_vl:Qwen2VLProcessor",
        "qwen2_vl:Qwen2VLVideoProcessor",
        {"do_sample_frames": True, "fps": 2.0},
        tokens=QWEN_TOKENS,
        low=64,
        high=700,
    ),
    "qwen3_vl_video": family(
        "video", "qwen3_vl:Qwen3VLProcessor", "qwen3_vl:Qwen3VLVideoProcessor", {}, tokens=QWEN_TOKENS, low=64, high=700
    ),
    "qwen2_5_omni_video": family(
        "video",
        "qwen2_5_omni:Qwen2_5OmniProcessor",
        "qwen2_vl:Qwen2VLVideoProcessor",
        {"min_pixels": 3136, "max_pixels": 12_845_056},
        tokens=OMNI_TOKENS,
        low=64,
        high=700,
    ),
    "qwen3_omni_video": family(
        "video",
        "qwen3_omni_moe:Qwen3OmniMoeProcessor",
        "qwen2_vl:Qwen2VLVideoProcessor",
        {"patch_size": 16, "do_sample_frames": True, "num_frames": 9},
        tokens=OMNI_TOKENS,
        low=64,
        high=700,
    ),
    "glm4v_video": family(
        "video", "glm4v:Glm4vProcessor", "glm4v:Glm4vVideoProcessor", {}, tokens=GLM_TOKENS, low=8, high=700, most=9000
    ),
    "glm46v_video": family(
        "video",
        "glm46v:Glm46VProcessor",
        "glm46v:Glm46VVideoProcessor",
        {},
        tokens=GLM_TOKENS,
        low=8,
        high=700,
        most=9000,
    ),
    "internvl_video": family(
        "video",
        "internvl:InternVLProcessor",
        "internvl:InternVLVideoProcessor",
        {**SQUARE, "do_sample_frames": True, "num_frames": 8},
        {"image_seq_length": 256},
        INTERNVL_TOKENS,
    ),
    "internvl_video_fps": family(
        "video",
        "internvl:InternVLProcessor",
        "internvl:InternVLVideoProcessor",
        {**SQUARE, "do_sample_frames": True, "fps": 2, "initial_shift": 0},
        {"image_seq_length": 256},
        INTERNVL_TOKENS,
    ),
    "gemma4_video": family(
        "video", "gemma4:Gemma4Processor", "gemma4:Gemma4VideoProcessor", {}, {}, GEMMA4_TOKENS, low=2, most=3000
    ),
    "gemma4_video_frames": family(
        "video",
        "gemma4:Gemma4Processor",
        "gemma4:Gemma4VideoProcessor",
        {"num_frames": 6, "max_soft_tokens": 140},
        {},
        GEMMA4_TOKENS,
        low=2,
    ),
    "llava_onevision_video": family(
        "video",
        "llava_onevision:LlavaOnevisionProcessor",
        "llava_onevision:LlavaOnevisionVideoProcessor",
        {},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
    ),
    "llava_onevision_video_fps": family(
        "video",
        "llava_onevision:LlavaOnevisionProcessor",
        "llava_onevision:LlavaOnevisionVideoProcessor",
        {"do_sample_frames": True, "fps": 1.5},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
    ),
    "molmo2": family("image", "molmo2:Molmo2Processor", "molmo2:Molmo2ImageProcessor", {}, {}, MOLMO_TOKENS, low=2),
    "molmo2_columns": family(
        "image",
        "molmo2:Molmo2Processor",
        "molmo2:Molmo2ImageProcessor",
        {"max_crops": 24, "pooling_size": [2, 3], "overlap_margins": [4, 3]},
        {"use_single_crop_col_tokens": False, "use_single_crop_start_token": False},
        MOLMO_TOKENS,
        low=2,
    ),
    "molmo2_video": family(
        "video", "molmo2:Molmo2Processor", "molmo2:Molmo2VideoProcessor", {}, {}, MOLMO_TOKENS, low=2, most=3000
    ),
    "minicpmv4_6": family(
        "image",
        "minicpmv4_6:MiniCPMV4_6Processor",
        "minicpmv4_6:MiniCPMV4_6ImageProcessor",
        {},
        {},
        MINICPM_TOKENS,
        low=2,
    ),
    "minicpmv4_7": family(
        "image",
        "minicpmv4_7:MiniCPMV4_7Processor",
        "minicpmv4_6:MiniCPMV4_6ImageProcessor",
        {"max_slice_nums": 36, "downsample_mode": "4x", "use_image_id": False},
        {},
        MINICPM_TOKENS,
        low=2,
    ),
    "minicpmv4_6_video": family(
        "video",
        "minicpmv4_6:MiniCPMV4_6Processor",
        "minicpmv4_6:MiniCPMV4_6VideoProcessor",
        {"max_num_frames": 16},
        {},
        MINICPM_TOKENS,
        low=8,
        high=1200,
        most=900,
    ),
    "minicpmv4_7_video": family(
        "video",
        "minicpmv4_7:MiniCPMV4_7Processor",
        "minicpmv4_6:MiniCPMV4_6VideoProcessor",
        {"max_num_frames": 16, "slice_mode": False},
        {},
        MINICPM_TOKENS,
        low=8,
        high=1200,
        most=900,
    ),
    "deepseek_vl": family(
        "image", "deepseek_vl:DeepseekVLProcessor", "deepseek_vl:DeepseekVLImageProcessor", {}, low=2
    ),
    "deepseek_vl_hybrid": family(
        "image",
        "deepseek_vl_hybrid:DeepseekVLHybridProcessor",
        "deepseek_vl_hybrid:DeepseekVLHybridImageProcessor",
        {},
        {"num_image_tokens": 576},
        low=2,
    ),
    "mllama": family(
        "image",
        "mllama:MllamaProcessor",
        "mllama:MllamaImageProcessor",
        {"size": {"height": 560, "width": 560}},
        {},
        {"image_token": "<|image|>"},
    ),
    "llava_siglip": family(
        "image",
        "llava:LlavaProcessor",
        "siglip:SiglipImageProcessor",
        {"size": {"height": 384, "width": 384}},
        {"patch_size": 14, "vision_feature_select_strategy": "full"},
    ),
    "qwen2_audio": family(
        "audio", "qwen2_audio:Qwen2AudioProcessor", WHISPER, {"feature_size": 128}, tokens={"audio_token": "<|AUDIO|>"}
    ),
    "qwen2_5_omni_audio": family(
        "audio",
        "qwen2_5_omni:Qwen2_5OmniProcessor",
        WHISPER,
        {"feature_size": 128, "chunk_length": 20},
        tokens=OMNI_TOKENS,
    ),
    "qwen3_omni_audio": family(
        "audio", "qwen3_omni_moe:Qwen3OmniMoeProcessor", WHISPER, {"feature_size": 128}, tokens=OMNI_TOKENS
    ),
    "phi4_multimodal_audio": family(
        "audio",
        "phi4_multimodal:Phi4MultimodalProcessor",
        "phi4_multimodal:Phi4MultimodalFeatureExtractor",
        {},
        {},
        {"image_token": "<|image|>", "audio_token": "<|audio|>"},
    ),
    "gemma4_audio": family(
        "audio", "gemma4:Gemma4Processor", "gemma4:Gemma4AudioFeatureExtractor", {}, {}, GEMMA4_TOKENS
    ),
}


def files_of(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the files of the processor's folder, in the form of most checkpoints."""
    kind, name = given["kind"], given["processor"].split(":")[1]
    key = {"image": "image_processor_type", "video": "video_processor_type", "audio": "feature_extractor_type"}[kind]
    part = {**given["parameters"], key: given["part"].split(":")[1], "processor_class": name}
    return {
        "video_preprocessor_config.json" if kind == "video" else "preprocessor_config.json": part,
        "processor_config.json": {**given["own"], "processor_class": name},
        "tokenizer_config.json": {"extra_special_tokens": given["tokens"]},
    }


def random_sizes(
    kind: str, count: int, seed: int, low: int = 28, high: int = 2000, ratio: float = 150, most: int = 400
) -> Sizes:
    """Return sizes with squares, multiples of patches, ties of rounding, and common sizes among them."""
    draw = np.random.default_rng(seed)
    if kind == "audio":
        odd = [480_000, 480_001, 479_999, 400, 401, 160, 320, 321, 641, 100]
        samples = np.concatenate([draw.integers(100, 640_000, count // 2), draw.integers(3, 300, count) * 160])
        return Sizes.of(samples=np.concatenate([odd, samples])[:count])
    many = 6 * count
    sides = np.exp(draw.uniform(np.log(low), np.log(high), (many, 2))).astype(np.int64)
    which = draw.random(many)
    square, whole, tie, usual = (
        which < 0.08,
        (which > 0.08) & (which < 0.3),
        (which > 0.3) & (which < 0.4),
        which > 0.88,
    )
    sides[square, 1] = sides[square, 0]
    sides[whole] = np.maximum(1, np.rint(sides[whole] / 28)) * 28
    sides[tie] = sides[tie] // 28 * 28 + 14
    known = np.array([(480, 640), (1080, 1920), (336, 336), (448, 448), (1024, 768), (512, 512), (800, 1200)])
    sides[usual] = np.minimum(known[draw.integers(0, len(known), int(usual.sum()))], high)
    sides = sides[sides.max(1) <= ratio * sides.min(1)][:count]
    if kind == "image":
        thin = [(1, 1), (1, 300), (300, 1), (28, 5_600), (28, 5_601), (5_700, 28), (2, 4_000), (40, 9_000), (9_000, 40)]
        sides[: len(thin)] = thin
        return Sizes.of(height=sides[:, 0], width=sides[:, 1])
    rates = np.array([10, 12.5, 23.976, 24, 24000 / 1001, 25, 30000 / 1001, 30, 50, 60])
    frames = np.exp(draw.uniform(np.log(2), np.log(most), len(sides))).astype(np.int64)
    return Sizes.of(height=sides[:, 0], width=sides[:, 1], frames=frames, fps=rates[draw.integers(0, 10, len(sides))])


def rows_of(sizes: Sizes) -> list[list[float]]:
    """Return [height, width], [frames, fps, height, width] or [samples] of each medium."""
    columns = [sizes.frames, sizes.fps, sizes.height, sizes.width, sizes.samples]
    return [list(row) for row in zip(*(column.tolist() for column in columns if len(column)), strict=True)]


def bytes_of(text: str) -> int:
    """Return the tokens of a text for the tables: special tokens are one each, and other text its bytes."""
    return len(MARKS.findall(text)) + len(MARKS.sub("", text).encode())


def load(path: str) -> Any:
    module, name = path.split(":")
    package = importlib.import_module(f"transformers.models.{module}")
    return getattr(package, name)


def opened(given: dict[str, Any], folder: Path, *, pixels: bool = False) -> tuple[Callable[[list[float]], str], Any]:
    """Return a function from a size to the text that the processor puts in place of a placeholder, and itself.

    Args:
        pixels: whether it gets real arrays of pixels, which it scales and normalizes as its files say.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("1", "2"), ("Ġ", "a"), ("Ġ", "s"), ("e", "e"), ("y", "y"), ("x", "Ċ"), (":", "Ġ")]
    tokens = [*letters, *("".join(pair) for pair in merges)]  # a pair of newlines is one token, as in many models
    inner = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    marks = ["<fake_token_around_image>", "<image>", "<global-img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    marks += [f"<row_{row}_col_{column}>" for row in range(1, 13) for column in range(1, 13)]
    marks += [f"<|{name}|>" for name in ("image", "image_start", "image_end", "patch")]
    marks += ["<|tile_x_separator|>", "<|tile_y_separator|>", "<|begin_of_image|>", "<|end_of_image|>"]
    marks += [f"<{name}>" for name in ("im_patch", "im_col", "im_start", "im_end", "im_low", "low_res_im_start")]
    marks += ["<frame_start>", "<frame_end>", "<|python_tag|>"]
    special = {"pad_token": "<pad>", "bos_token": "<s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, extra_special_tokens=given["tokens"], **special)
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    kind, made = given["kind"], load(given["processor"])
    part = load(given["part"]).from_pretrained(folder)
    others = {
        "image_processor": QWEN_IMAGES,
        "video_processor": "qwen2_vl:Qwen2VLVideoProcessor",
        "feature_extractor": WHISPER,
    }
    module = given["processor"].split(":")[0]
    others |= {
        "gemma4": {
            "image_processor": "gemma4:Gemma4ImageProcessor",
            "video_processor": "gemma4:Gemma4VideoProcessor",
            "feature_extractor": "gemma4:Gemma4AudioFeatureExtractor",
        },
        "phi4_multimodal": {
            "image_processor": "phi4_multimodal:Phi4MultimodalImageProcessor",
            "audio_processor": "phi4_multimodal:Phi4MultimodalFeatureExtractor",
        },
        "internvl": {
            "image_processor": "got_ocr2:GotOcr2ImageProcessor",
            "video_processor": "internvl:InternVLVideoProcessor",
        },
        "minicpmv4_6": MINICPM_PARTS,
        "minicpmv4_7": MINICPM_PARTS,
        "molmo2": {
            "image_processor": "molmo2:Molmo2ImageProcessor",
            "video_processor": "molmo2:Molmo2VideoProcessor",
        },
    }.get(module, {})
    own = {
        "image": ("image_processor",),
        "video": ("video_processor",),
        "audio": ("feature_extractor", "audio_processor"),
    }
    arguments = [
        tokenizer if name == "tokenizer" else part if name in own[kind] else load(others[name])()
        for name in made.get_attributes()
    ]
    processor = made.from_args_and_dict(arguments, json.loads((folder / "processor_config.json").read_text()))
    whole = kind == "audio" or pixels or "minicpm" in module  # whose patches are of float pixels
    off = {} if whole else {"do_rescale": False, "do_normalize": False}
    options = processor._merge_kwargs(**off, **given["options"])

    def zeros(*shape: int) -> Any:
        if pixels:
            return torch.zeros(shape, dtype=torch.uint8)
        if kind == "video" or module in UNSEEN:  # whose arithmetic needs no values
            return torch.zeros(shape, dtype=torch.uint8, device="meta")
        return torch.zeros([1] * len(shape), dtype=torch.uint8).expand(shape)

    def image(row: list[float]) -> str:
        picture = zeros(3, int(row[0]), int(row[1]))
        nested = [[picture]] if module in NESTED else [picture]
        text = str(processor._process_images(nested, **{**options["images_kwargs"], "return_tensors": "pt"})[1][0])
        return numbered(text, processor.image_token)

    def video(row: list[float]) -> str:
        frames, fps = int(row[0]), row[1]
        about = [{"total_num_frames": frames, "fps": fps, "duration": frames / fps}]
        own = {**options["videos_kwargs"], "return_tensors": "pt", "video_metadata": about}
        given_options = {**options, "videos_kwargs": own, "load_audio_from_video": False} if "omni" in module else own
        clip = zeros(frames, 3, int(row[2]), int(row[3]))
        return numbered(str(processor._process_videos([clip], **given_options)[1][0]), processor.video_token)

    def numbered(text: str, token: str) -> str:
        if not getattr(processor, "default_use_image_id", False):
            return text
        return str(processor._prepend_local_ids([token], [text], token)[0])

    def audio(row: list[float]) -> str:
        clip = np.zeros(int(row[0]), np.float32)
        given_options = {**options["audio_kwargs"], "sampling_rate": 16_000}
        return str(processor._process_audio([clip], **given_options)[1][0])

    return {"image": image, "video": video, "audio": audio}[kind], processor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FAMILY", help=f"by default all: {', '.join(FAMILIES)}")
    parser.add_argument("--sizes", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--texts", type=int, default=0, help="also run whole processors on samples of text and media")
    parser.add_argument("--pixels", action="store_true", help="run on real pixels, at most 1,000 a side; slow")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    import torch
    import torchvision.transforms.v2.functional as functional

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)

    def shaped(image: Any, size: Any, *_: Any, **__: Any) -> Any:
        height, width = size if len(size) == 2 else (size[0], size[0])
        if height < 1 or width < 1:
            raise ValueError(f"cannot resize to {height} x {width}")
        return image.new_zeros(1).expand(*image.shape[:-2], height, width)

    taken = torch.Tensor.__getitem__

    def checked(tensor: Any, index: Any) -> Any:
        """Raise for frames that are not there, which tensors without values do not check."""
        if tensor.is_meta and isinstance(index, list | np.ndarray | torch.Tensor) and len(index):
            numbers = np.asarray(index)
            if numbers.dtype != bool and numbers.max() >= len(tensor):
                raise IndexError(f"index {numbers.max()} is out of bounds for dimension 0 with size {len(tensor)}")
        return taken(tensor, index)

    if not options.pixels:
        functional.resize = shaped
    failed = 0
    for name in sorted(options.names or FAMILIES, key=lambda name: FAMILIES[name]["kind"] == "video"):
        if FAMILIES[name]["kind"] == "video" and not options.pixels:
            # From here on, torch.tensor takes tensors of one number for sequences, and Llama 4's processor needs it.
            torch.Tensor.__getitem__ = checked  # type: ignore[method-assign,assignment]
        if options.texts:
            failed += whole(name, options.texts, options.seed, options.pixels)
        failed += compare(name, options.sizes, options.seed, options.write, options.pixels)
    return int(failed > 0)


def compare(name: str, count: int, seed: int, write: bool, pixels: bool) -> int:
    """Compare one family, and return the number of sizes whose counts differ."""
    import transformers

    given, version = FAMILIES[name], transformers.__version__
    limits = given["limits"]
    if pixels:
        limits = {**limits, "high": min(limits.get("high", 1000), 1000 if given["kind"] == "image" else 300)}
        limits["most"] = min(limits.get("most", 200), 200)
    sizes = random_sizes(given["kind"], count, seed, **limits)
    with tempfile.TemporaryDirectory() as place:
        folder, files = Path(place), files_of(given)
        for file, content in files.items():
            (folder / file).write_text(json.dumps(content))
        rule = read_rules(place, given["options"]).rules[given["kind"]]
        predicted = rule.tokens(sizes, np.arange(len(sizes) + 1), bytes_of)
        run, _ = opened(given, folder, pixels=pixels)
        rows, made = rows_of(sizes), []
        errors: dict[str, list[float]] = {}
        for row in rows:
            try:
                made.append(bytes_of(run(row)))
            except Exception as error:  # what it raises is what is compared
                made.append(UNKNOWN)
                errors.setdefault(f"{type(error).__name__}: {str(error)[:80]}", row)
        real = np.array(made)
        wrong = np.flatnonzero(real != predicted.tokens)
        print(
            f"{name:24}{len(rows) - len(wrong):7,} of {len(rows):6,} equal, {int((real < 0).sum()):3} refused",
            flush=True,
        )
        for message, row in errors.items():
            print(f"      the processor raises {message} for {row}")
        for number in wrong[:3].tolist():
            print(f"      {rows[number]}: processor {real[number]}, rule {predicted.tokens[number]}")
        table = TABLES / f"{name}.json"
        if table.exists() and not pixels:
            old = json.loads(table.read_text())
            changed = [
                (row, then)
                for *row, then in old["rows"]
                if (bytes_of(run(row)) if then != UNKNOWN else UNKNOWN) != then
            ]
            print(f"      {len(changed)} of {len(old['rows'])} changed since {old['transformers']} {changed[:2] or ''}")
        if write:
            kept = [[*row, int(value)] for row, value in zip(rows[:KEPT], real.tolist(), strict=False)]
            document = {
                "transformers": version,
                "kind": given["kind"],
                "options": given["options"],
                "files": files,
                "rows": kept,
            }
            table.parent.mkdir(parents=True, exist_ok=True)
            text = (
                json.dumps(document, separators=(",", ":"))
                .replace('"files"', '\n"files"')
                .replace('"rows"', '\n"rows"')
            )
            table.write_text(text + "\n")
    return len(wrong)


def whole(name: str, count: int, seed: int, pixels: bool) -> int:
    """Compare the lengths of samples of text and up to 3 media with the whole processor; return how many differ.

    The processor is saved as a checkpoint's, with a tokenizer of bytes and some pairs of them, and samples are written
    to shards: this is what ``feedmill tokens lengths --check`` does.
    """
    import feedmill as fm
    from feedmill.samples.media import MediaFilter

    given, draw = FAMILIES[name], np.random.default_rng(seed)
    if not pixels and "minicpm" not in name:  # whose patches are of float pixels
        given = {**given, "parameters": {**given["parameters"], "do_rescale": False, "do_normalize": False}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "files")
        folder.mkdir()
        for file, content in files_of(given).items():
            (folder / file).write_text(json.dumps(content))
        _, processor = opened(given, folder)
        checkpoint = Path(place, "checkpoint")
        processor.save_pretrained(checkpoint)
        kind = given["kind"]
        mark = read_rules(str(folder), given["options"]).rules[kind].placeholder
        media = draw.integers(0, {"image": 4, "video": 2, "audio": 3}[kind], count)
        limits = {"image": (12, 800), "video": (32, 160, 8, 90), "audio": ()}[kind]
        sizes = random_sizes(kind, int(media.sum()) + 20, seed + 1, *limits)
        rows = iter([row for row in rows_of(sizes) if max(row[-2:]) <= 4000 or kind == "audio"])
        make, ending = {"image": (black_png, "png"), "video": (black_mp4, "mp4"), "audio": (silence, "wav")}[kind]
        edges = [" see ", "\n", "\n\n", "", "x\n", "1", "12", " a"]

        def samples() -> Iterator[dict[str, Any]]:
            for number in range(count):
                shown = [next(rows) for _ in range(int(media[number]))]
                between = [str(draw.choice(edges)) for _ in range(len(shown) + 1)]
                text = "question" + mark.join(between) + "answer" + "y" * int(draw.integers(1, 40))
                files = {f"{n}.{ending}": make(*row) for n, row in enumerate(shown)}
                yield {"__key__": f"{number:06d}", "txt": text.encode(), **files}

        fm.write(str(Path(place, "data")), samples(), progress=False)
        fm.edit.prepare_media(str(Path(place, "data")), MediaFilter.parse(extension=True), progress=False)
        report = fm.tokens.lengths(
            Path(place, "data"),
            processor=checkpoint,
            text="txt",
            processor_args=given["options"],
            check=count,
            progress=False,
        )
        equal = report.checked - len(report.misses)
        print(f"{name:24}{equal:7,} of {report.checked:6,} whole samples equal, {report.tokens:,} tokens", flush=True)
        for refused in report.refused:
            print(f"      without length: {refused.samples}: {refused.reason}")
        for miss in report.misses[:3]:
            print(f"      {miss}")
    return len(report.misses)


def black_png(height: float, width: float) -> bytes:
    """Return a black image of one bit a pixel."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("1", (int(width), int(height))).save(stream, "PNG")
    return stream.getvalue()


def black_mp4(frames: float, fps: float, height: float, width: float) -> bytes:
    """Return a black video of an even size."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as file:
        video = file.add_stream("mpeg4", rate=Fraction(fps).limit_denominator(1001))
        video.width, video.height, video.pix_fmt = int(width) // 2 * 2, int(height) // 2 * 2, "yuv420p"
        black = np.zeros((video.height, video.width, 3), np.uint8)
        for _ in range(int(frames)):
            file.mux(video.encode(av.VideoFrame.from_ndarray(black)))
        file.mux(video.encode())
    return stream.getvalue()


def silence(samples: float) -> bytes:
    """Return a clip of 16,000 samples a second."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * int(samples)))
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
