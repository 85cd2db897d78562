#!/usr/bin/env bash
# transformers saves the truncation and padding of a tokenizer's last call in `tokenizer.json`, where other programs obey it.
#
# After `tokenizer(texts, truncation=True, max_length=8, padding="max_length")`, as in a training script, `save_pretrained`
# writes both into the file. `AutoTokenizer` sets them in each call, so nobody sees it; `Tokenizer.from_file` cuts each
# document to 8 ids and fills short ones up, without a word. So does the backend of the tokenizer itself after such a call.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 tokenizers==0.23.3
cd "$work"
"$work/venv/bin/python" - 2> log <<'PYTHON' || { tail -5 log; exit 1; }
import json
from importlib.metadata import version

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = {word: number for number, word in enumerate(["<pad>", "<unk>", *(f"w{number}" for number in range(50))])}
backend = Tokenizer(models.WordLevel(words, "<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")
long, short = " ".join(f"w{number}" for number in range(50)), "w1 w2"


def lengths(encode):
    return [len(encode(text)) for text in (long, short)]


print(", ".join(f"{name} {version(name)}" for name in ("transformers", "tokenizers")))
tokenizer.save_pretrained("before")
tokenizer([long, short], truncation=True, max_length=8, padding="max_length")
tokenizer.save_pretrained("after")
for folder, cut in (("before", [50, 2]), ("after", [8, 8])):
    saved = json.load(open(f"{folder}/tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(folder)
    seen = lengths(lambda text: auto(text)["input_ids"])
    direct = Tokenizer.from_file(f"{folder}/tokenizer.json")
    raw = lengths(lambda text: direct.encode(text).ids)
    print(f"  saved {folder} a call with max_length=8, texts of 50 and 2 words: AutoTokenizer {seen}, from_file {raw}")
    assert bool(saved["truncation"]) == bool(saved["padding"]) == (folder == "after"), "changed"
    assert (seen, raw) == ([50, 2], cut), "changed"
assert len(tokenizer.backend_tokenizer.encode(long)) == 8, "changed"
PYTHON
