"""The samples that rows of text and images are packed of, and how long they are: for both sides of a measurement."""

from __future__ import annotations

import io
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

SAMPLES, SHARDS, BUFFER = 100_000, 20, 1_000
PICTURES = 400
"""Number of different pictures."""
KINDS = ((0.45, 1, 60), (0.25, 1, 500), (0.12, 0, 2_600), (0.1, 6, 300), (0.08, 1, 4_500))
"""Share, most pictures and median of the characters of captions, questions, pages, albums and long talks."""
LEAST, MOST, SIDE = 65_536, 16_777_216, 32
"""Pixels of a picture, and the side of a token, for Qwen3-VL."""
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}{% if c.type == 'image' %}"
    + PLACE
    + "{% else %}{{ c.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)


def sample(number: int, pictures: list[bytes]) -> dict[str, bytes]:
    """Return the parts of a sample: pictures, and a conversation as JSON."""
    rng = random.Random(number)
    _, most, median = rng.choices(KINDS, [share for share, *_ in KINDS])[0]
    count = rng.randint(1, most) if most else 0
    length = min(int(rng.lognormvariate(math.log(median), 0.6)) + 1, 24_000)
    content: list[dict[str, str]] = [{"type": "image"}] * count
    messages = [
        {"role": "user", "content": [*content, {"type": "text", "text": "q" * (length // 2)}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a" * (length - length // 2)}]},
    ]
    parts = {f"{place}.jpg": pictures[rng.randrange(len(pictures))] for place in range(count)}
    return {**parts, "json": json.dumps({"messages": messages}).encode()}


def jpegs() -> list[bytes]:
    """Return JPEGs of one color with natural sizes."""
    from PIL import Image

    rng = random.Random(5)
    out = []
    for _ in range(PICTURES):
        width, height = (max(64, int(rng.lognormvariate(math.log(640), 0.4))) for _ in range(2))
        stream = io.BytesIO()
        Image.new("RGB", (width, height), (rng.randrange(256), 90, 60)).save(stream, "JPEG", quality=30)
        out.append(stream.getvalue())
    return out


def length(messages: list[dict[str, Any]], sizes: Iterable[tuple[int, int]]) -> int:
    """Return the tokens of a conversation and its pictures, as on-line packing counts them: with a token for a byte."""
    total = 0
    for message in messages:
        total += 4 + len(message["role"])  # <|im_start|>, <|im_end|> and two line breaks
        for piece in message["content"]:
            total += 2 if piece["type"] == "image" else len(piece["text"].encode())
    return total + sum(_tokens(*size) for size in sizes)


def _tokens(width: int, height: int) -> int:
    tall, wide = (max(SIDE, round(side / SIDE) * SIDE) for side in (height, width))
    if tall * wide > MOST:
        scale = math.sqrt(height * width / MOST)
        tall, wide = (max(SIDE, math.floor(side / scale / SIDE) * SIDE) for side in (height, width))
    elif tall * wide < LEAST:
        scale = math.sqrt(LEAST / (height * width))
        tall, wide = (math.ceil(side * scale / SIDE) * SIDE for side in (height, width))
    return tall * wide // SIDE**2


def timed_rows(load: Callable[[], Iterable[list[int]]], seq_len: int) -> dict[str, float]:
    """Return rows, fill and tokens per second of processor time of a pass.

    Args:
        load: starts a loader, and yields the tokens of the samples of each row, whose bytes were read.
        seq_len: tokens of a row.
    """
    begin, before = time.perf_counter(), os.times()
    rows = tokens = samples = 0
    for lengths in load():
        rows, tokens, samples = rows + 1, tokens + sum(lengths), samples + len(lengths)
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    return {
        "rows": rows,
        "samples": samples,
        "tokens": tokens,
        "fill": 100 * tokens / (rows * seq_len),
        "tokens_per_cpu_s": tokens / cpu,
        "cpu": cpu,
        "wall_s": time.perf_counter() - begin,
    }
