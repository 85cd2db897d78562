#!/usr/bin/env bash
# Training a tokenizer twice on the same texts, with one thread, gives other ids, unless it is BPE without affixes.
#
# With WordPiece, and BPE with `continuing_subword_prefix` or `end_of_word_suffix`, the letters that have an affix get
# their ids in the order of a hash map: nearly every text has other ids. The pieces of Unigram get other scores.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$work"
RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false "$work/venv/bin/python" - <<'PYTHON'
import json
import random

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

draw = random.Random(0)
words = ["".join(draw.choice("abcdefgh") for _ in range(draw.randint(2, 9))) for _ in range(3000)]
texts = [" ".join(draw.choice(words) for _ in range(40)) for _ in range(2000)]
size = {"vocab_size": 1000, "show_progress": False}
prefix, suffix = {"continuing_subword_prefix": "##"}, {"end_of_word_suffix": "</w>"}
kinds = {
    "BPE": lambda: (models.BPE(), trainers.BpeTrainer(**size)),
    "BPE with ##": lambda: (models.BPE(**prefix), trainers.BpeTrainer(**size, **prefix)),
    "BPE with </w>": lambda: (models.BPE(**suffix), trainers.BpeTrainer(**size, **suffix)),
    "WordPiece": lambda: (
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer(**size, special_tokens=["[UNK]"]),
    ),
    "Unigram": lambda: (
        models.Unigram(),
        trainers.UnigramTrainer(**size, special_tokens=["<unk>"], unk_token="<unk>"),
    ),
}


def trained(kind):
    model, trainer = kinds[kind]()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


print(f"tokenizers {tokenizers.__version__}, each trained six times on the same {len(texts)} texts, with one thread:")
files, other = {}, {}
for kind in kinds:
    made = [trained(kind) for _ in range(6)]
    files[kind] = len({json.dumps(json.loads(one.to_str()), sort_keys=True) for one in made})
    ids = [[made[0].encode(text).ids == one.encode(text).ids for text in texts[:200]] for one in made[1:]]
    other[kind] = 200 - min(map(sum, ids))
    assert len({frozenset(one.get_vocab()) for one in made}) == 1, "changed: other pieces"
    print(f"  {kind}: {files[kind]} different files of one set of pieces; up to {other[kind]} of 200 texts have other ids")
assert files["BPE"] == 1 and other["BPE"] == 0, "changed"
assert all(other[kind] > 150 for kind in ("BPE with ##", "BPE with </w>", "WordPiece")), "changed"
assert files["Unigram"] > 1, "changed"
PYTHON
