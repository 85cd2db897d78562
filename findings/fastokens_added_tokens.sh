#!/usr/bin/env bash
# Two engines that read one tokenizer.json give different ids where added tokens touch.
#
# `tokenizers` looks for added tokens twice: first for those with `normalized: false`, then for the others in what is
# left, and each search knows only its piece of the text. fastokens looks once, so where tokens with different flags
# overlap, contain each other or stand side by side (a token's blanks, the borders of a word), the leftmost wins
# instead. Nothing is said. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check fastokens==0.3.5 tokenizers==0.23.3
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import json
import fastokens._native as fast
from tokenizers import Tokenizer, pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def token(content, normalized, **flags):
    return {"content": content, "normalized": normalized, "special": False, "single_word": False, "lstrip": False,
            "rstrip": False} | flags


def both(text, *added):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document = json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "added_tokens": [{"id": 256 + number, **one} for number, one in enumerate(added)],
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(LETTERS)}, "merges": []},
    })
    names = LETTERS + [one["content"] for one in added]
    first = Tokenizer.from_str(document).encode(text, add_special_tokens=False).ids
    second = list(fast.Tokenizer.from_json_str(document).encode(text, False).ids)
    return [names[i] for i in first], [names[i] for i in second]


for text, added in (
    ("abc", (token("ab", True), token("bc", False))),
    ("<s>   a", (token("<s>", False, rstrip=True), token("  ", True))),
    ("cabdog", (token("cab", False), token("dog", True, single_word=True))),
    ("x<s>y", (token("x<s>y", True), token("<s>", False))),
):
    reference, engine = both(text, *added)
    print(f"{text!r}: tokenizers {reference}, fastokens {engine}")
    assert reference != engine, "changed"
assert both("abc", token("ab", True), token("bc", True)) == (["ab", "c"], ["ab", "c"]), "changed"
PYTHON
