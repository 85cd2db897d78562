#!/usr/bin/env bash
# The `id` of an added token in a tokenizer.json is not read.
#
# One would expect `{"id": 900, "content": "<x>"}` to give the id 900. `tokenizers` numbers added tokens itself: each
# gets the id that the model's vocabulary has for it, or the next free one, in the order of the list. A gap or a wrong
# number in the file is ignored without an error, so a program that takes ids from the file (for EOS, say) and one that
# encodes disagree. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import json
import tokenizers
from tokenizers import Tokenizer

flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def ids(*added):
    document = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in added],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"},
    }
    tokenizer = Tokenizer.from_str(json.dumps(document))
    return [tokenizer.token_to_id(text) for _, text in added]


print("tokenizers", tokenizers.__version__)
for added, wanted in (
    (((900, "<x>"),), [3]),
    (((3, "<x>"), (7, "<y>")), [3, 4]),
    (((9, "<x>"), (4, "<y>")), [3, 4]),
    (((1, "<x>"),), [3]),
    (((3, "b"), (4, "<y>")), [1, 3]),
):
    found = ids(*added)
    print(f"written {added}: ids {found}")
    assert found == wanted, "changed"
PYTHON
