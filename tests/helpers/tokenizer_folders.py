"""Random folders with a ``tokenizer.json`` and settings, and the ids that transformers' `AutoTokenizer` gives.

``python -m helpers.tokenizer_folders make FOLDER`` writes them. ``... record FOLDER FILE``, where transformers 4.57 is
installed (Feedmill need not be), records its ids, or that it refuses a folder.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

COUNT = 120
TEXTS = (
    "hello world 123 a1b22", " leading", "a  b\n\n c", "<s>x</s> y", "<|im_start|>user\nhi<|im_end|>",
    "<image>a<tool>b <|tool|> z", "x<|endoftext|> y", "Große É ﬁ e\u0301 I'm", "▁a ▁", "",
    "<extra> <unk>  <pad>q[CLS]w[SEP]", "Hello HELLO",
)  # fmt: skip
CLASSES = {
    "bytes": (
        None, "PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "GPT2Tokenizer", "GPT2TokenizerFast",
        "GPTNeoXTokenizerFast", "CohereTokenizerFast", "Qwen2Tokenizer", "MadeUpTokenizer",
    ),
    "pieces": (None, "PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast"),
    "spaces": ("GemmaTokenizer", "GemmaTokenizerFast", "PreTrainedTokenizerFast"),
    "words": ("BertTokenizer", "PreTrainedTokenizerFast"),
}  # fmt: skip
TOKENS = {"bytes": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "words": ("[SEP]", "[CLS]", "[UNK]")}
TYPES = {"bytes": ("llama", "qwen2", "gpt_neox", "gpt2", "phi3", "olmo2"), "pieces": ("llama", "mistral", "phi3")}
PAD = {"__type": "AddedToken", "content": "<pad>", "rstrip": True, "lstrip": False, "normalized": False}
SETTINGS: tuple[tuple[str, float, tuple[Any, ...]], ...] = (
    ("add_bos_token", 0.3, (True, False, None)),
    ("add_eos_token", 0.2, (True, False)),
    ("add_prefix_space", 0.25, (True, False)),
    ("legacy", 0.3, (True, False, None)),
    ("pad_token", 0.3, ("<pad>", PAD)),
    ("additional_special_tokens", 0.25, (["<image>"], ["<tool>", "<|tool|>"], [])),
    ("extra_special_tokens", 0.25, ({"image_token": "<image>"}, ["<image>"], {})),
    ("image_token", 0.1, ("<image>",)),
    ("split_special_tokens", 0.15, (True, False)),
    ("do_lower_case", 0.15, (True, False)),
    ("clean_up_tokenization_spaces", 0.1, (True, False)),
    ("model_max_length", 0.1, (8,)),
    ("truncation_side", 0.1, ("left",)),
    ("errors", 0.1, ("replace",)),
)


def bases() -> dict[str, dict[str, Any]]:
    """Return a ``tokenizer.json`` of each base, without settings."""
    from feedmill.tokens.kinds import pieces as sentencepieces
    from feedmill.tokens.kinds import slow
    from helpers.tokenizer_data import tokenizer_file
    from helpers.tokenizer_kinds import KINDS, MADE

    with tempfile.TemporaryDirectory() as folder:
        words = slow.document(MADE["bert"](Path(folder)) / "vocab.txt")
    pieces = sentencepieces.as_class(KINDS / "bpe.model", (KINDS / "bpe.model").read_bytes())
    spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    normal = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    found = {
        "bytes": json.loads(tokenizer_file("tok1k").read_bytes()),
        "pieces": pieces,
        "spaces": pieces | {"normalizer": normal, "pre_tokenizer": spaces},
        "words": words,
    }
    return {name: {k: v for k, v in given.items() if k not in ("class", "tokens")} for name, given in found.items()}


def drawn(rng: random.Random, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the files of a random folder."""
    base = rng.choice(["bytes"] * 4 + ["pieces"] * 3 + ["spaces", "words"])
    document = json.loads(json.dumps(known[base]))
    tokens = TOKENS.get(base, ("</s>", "<s>", "<unk>"))
    name = rng.choice(CLASSES[base])
    settings: dict[str, Any] = {} if name is None else {"tokenizer_class": name}
    if base != "bytes":
        settings["unk_token"] = tokens[2]
    for role, token in zip(("eos_token", "bos_token"), tokens, strict=False):
        if rng.random() < 0.8:
            settings[role] = token
    for key, chance, values in SETTINGS:
        if rng.random() < chance:
            settings[key] = rng.choice(values)
    vocab, added = document["model"]["vocab"], [*(document.get("added_tokens") or ())]
    document["added_tokens"] = added
    if rng.random() < 0.4:
        following = max([len(vocab) - 1, *(token["id"] for token in added)]) + rng.choice([1, 1, 6])
        for number, text in enumerate(rng.sample(["<tool>", "<|tool|>", "<image>", "<extra>"], rng.randint(1, 2))):
            flags = {flag: rng.random() < 0.3 for flag in ("lstrip", "rstrip", "normalized", "special")}
            added.append({"id": following + number, "content": text, "single_word": False, **flags})
    if rng.random() < 0.45:
        listed = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in added}
        if rng.random() < 0.2:
            listed = dict([*listed.items()][:1])
        settings["added_tokens_decoder"] = listed
    chance = rng.random()
    if chance < 0.25:
        document["post_processor"] = None
    elif chance < 0.6:
        one, text = {"SpecialToken": {"id": tokens[1], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        special = {tokens[1]: {"id": tokens[1], "ids": [vocab[tokens[1]]], "tokens": [tokens[1]]}}
        pair = [one, text, {"Sequence": {"id": "B", "type_id": 1}}]
        document["post_processor"] = {"type": "TemplateProcessing", "single": [one, text], "pair": pair}
        document["post_processor"]["special_tokens"] = special
    if base == "bytes" and rng.random() < 0.5:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}
        document |= {"pre_tokenizer": rng.choice([level, digits]), "normalizer": rng.choice([None, {"type": "NFC"}])}
    files = {"tokenizer.json": document}
    if rng.random() < 0.9:
        files["tokenizer_config.json"] = settings
    if rng.random() < 0.25 and base in TYPES:
        files["config.json"] = {"model_type": rng.choice(TYPES[base])}
    if rng.random() < 0.15:
        more = {"eos_token": tokens[0], "additional_special_tokens": ["<tool>"]}
        files["special_tokens_map.json"] = rng.choice([more, {"extra_special_tokens": ["<image>"]}])
    if rng.random() < 0.08:
        files["added_tokens.json"] = {"<extra>": len(vocab) + 3}
    return files


def make(folder: Path) -> list[Path]:
    """Write `COUNT` folders, always the same ones."""
    known, out = bases(), []
    for seed in range(COUNT):
        (folder / str(seed)).mkdir(parents=True)
        out.append(folder / str(seed))
        for name, content in drawn(random.Random(seed), known).items():
            (out[-1] / name).write_text(json.dumps(content), "utf-8")
    return out


def original(folder: Path) -> list[list[int]] | None:
    """Return the ids by the installed transformers; None if it refuses the folder."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception:
        return None
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def digest(ids: list[list[int]] | None) -> str | None:
    """Return a hash of ids."""
    return None if ids is None else hashlib.md5(json.dumps(ids).encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        from importlib.metadata import version

        found = {str(n): digest(original(Path(sys.argv[2]) / str(n))) for n in range(COUNT)}
        Path(sys.argv[3]).write_text(json.dumps({"transformers": version("transformers"), **found}, indent=1) + "\n")
