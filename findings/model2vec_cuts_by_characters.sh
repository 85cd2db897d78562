#!/usr/bin/env bash
# model2vec cuts texts by characters before it counts tokens: a text with fewer tokens than max_length loses the rest.
#
# The cut is after max_length times the median length of the vocabulary's tokens, whatever the text's tokens are.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check model2vec==0.10.0 tokenizers==0.23.3 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import model2vec
import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer, models, pre_tokenizers

long = [f"internationalization{n}" for n in range(200)]  # as names of chemistry, German compounds, identifiers
vocabulary = {word: n for n, word in enumerate(["[UNK]", *long, *(f"w{n}" for n in range(1000))])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
vectors = np.random.default_rng(0).normal(size=(len(vocabulary), 16)).astype(np.float32)
model = StaticModel(vectors, tokenizer)

text = " ".join(long)
tokens = tokenizer.encode(text).ids
made = {most: model.encode([text], max_length=most)[0] for most in (200, 512, 2000, None)}


def seen(vector):
    """Return of how many first tokens a vector is the mean."""
    means = {n: vectors[tokens[:n]].mean(0) for n in range(1, len(tokens) + 1)}
    near = {n: np.abs(mean / np.linalg.norm(mean) - vector / np.linalg.norm(vector)).max() for n, mean in means.items()}
    best = min(near, key=near.get)
    assert near[best] < 1e-5
    return best


counts = {most: seen(vector) for most, vector in made.items()}
print(f"model2vec {model2vec.__version__}: a text of {len(tokens)} tokens; max_length -> tokens in its vector: {counts}")
assert len(tokens) == 200 and counts[None] == counts[2000] == 200, "changed"
assert counts[512] == 89 and counts[200] == 35, "changed"
PYTHON
