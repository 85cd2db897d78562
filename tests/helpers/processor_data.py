"""Folders of processors, and prepared datasets of conversations with pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from PIL import Image

from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples.media import MediaFilter
from helpers.tars import tar_bytes

GOLDEN = Path(__file__).parents[1] / "golden/token_rules"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if polite is defined and polite %}please{% endif %}"
)


def picture(width: int, height: int, orientation: int = 1) -> bytes:
    stream, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (width, height)).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


def processor(folder: Path, name: str = "llava_next", **changes: Any) -> str:
    """A folder of a checkpoint: the processor of a golden table, and a tokenizer of bytes that writes BOS."""
    folder.mkdir(exist_ok=True)
    for file, content in json.loads((GOLDEN / f"{name}.json").read_text())["files"].items():
        (folder / file).write_text(json.dumps(content))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "model_max_length": 10**9}
    old = folder / "tokenizer_config.json"
    before = json.loads(old.read_text()) if old.exists() else {}
    old.write_text(json.dumps({**before, **settings, **changes}))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({each: n for n, each in enumerate(alphabet)}, [], unk_token=None))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "<image>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"])
    bos = made.token_to_id("<s>")
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def talk(*pieces: str | None) -> bytes:
    """A conversation in which None is an image."""
    content = [{"type": "image"} if piece is None else {"type": "text", "text": piece} for piece in pieces]
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def dataset(folder: Path, members: Mapping[str, bytes], *, media: bool = True) -> str:
    folder.mkdir()
    (folder / "s.tar").write_bytes(tar_bytes(list(members.items())))
    prepare(str(folder), split_ratio=[1, 0, 0], progress=False)
    if media:
        prepare_media(str(folder), media=MediaFilter.parse(extension=True), progress=False)
    return str(folder)
