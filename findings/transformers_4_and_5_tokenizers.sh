#!/usr/bin/env bash
# AutoTokenizer of transformers 5 gives other ids for the same folder than that of transformers 4.
#
# One would expect a release to change the interface, and not the ids of a saved tokenizer. But release 5 does not read
# `add_bos_token` and `add_eos_token` where there is a tokenizer.json, and makes most classes from the vocabulary and
# the merges alone: the class Llama has its own way with blanks, whatever normalizer the file has. So BOS can be
# missing, and a text that begins with a blank has other tokens. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for release in 4.57.6 5.24.0; do
    python3 -m venv "$work/$release"
    "$work/$release/bin/pip" install --quiet --disable-pip-version-check "transformers==$release" sentencepiece==0.2.1
done
cat > make.py <<'PYTHON'
import json, os

pieces = ["<unk>", "<s>", "</s>", "▁", "h", "i", "▁h", "▁hi", "▁▁"]
flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
os.makedirs("folder")
json.dump({
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": number, "content": text, **flags} for number, text in enumerate(pieces[:3])],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": None, "post_processor": None,
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                 {"type": "Fuse"}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": False,
              "vocab": {text: number for number, text in enumerate(pieces)},
              "merges": [["▁", "h"], ["▁h", "i"], ["▁", "▁"]]},
}, open("folder/tokenizer.json", "w"))
json.dump({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>",
           "unk_token": "<unk>", "legacy": False}, open("folder/tokenizer_config.json", "w"))
PYTHON
cat > read.py <<'PYTHON'
import sys, warnings

warnings.simplefilter("ignore")
import transformers
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("folder")
found = [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in ("hi", " hi")]
print(transformers.__version__, type(tokenizer).__name__, "'hi':", found[0], "' hi':", found[1])
wanted = {"4": [["<s>", "▁hi"], ["<s>", "▁", "▁hi"]], "5": [["▁hi"], ["▁hi"]]}[transformers.__version__[0]]
sys.exit("changed" if found != wanted else 0)
PYTHON
"$work/4.57.6/bin/python" make.py
for release in 4.57.6 5.24.0; do
    "$work/$release/bin/python" read.py 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
done
