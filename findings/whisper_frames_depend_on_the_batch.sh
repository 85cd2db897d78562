#!/usr/bin/env bash
# The same clip has 99 frames alone and 100 beside a longer one.
#
# WhisperFeatureExtractor with `padding=longest` computes frames of the padded batch and drops its last one, which is
# padding for all but the longest clip. The attention mask of a clip whose length is no multiple of the hop therefore
# counts one frame more beside a longer clip, and models that expand placeholders by it (Qwen's audio families) one
# token more now and then. A length that depends on the neighbors cannot be planned.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import numpy
from transformers import WhisperFeatureExtractor

extractor = WhisperFeatureExtractor(feature_size=128)
options = {"sampling_rate": 16_000, "padding": "longest", "truncation": False, "return_attention_mask": True}
longer = numpy.ones(32_000, "f4")
for samples in (15_999, 16_000, 16_001):
    clip = numpy.ones(samples, "f4")
    alone = int(extractor([clip], **options)["attention_mask"][0].sum())
    beside = int(extractor([clip, longer], **options)["attention_mask"][0].sum())
    print(f"{samples} samples: {alone} frames alone, {beside} beside a clip of 32,000")
    assert (alone, beside) == {15_999: (99, 100), 16_000: (100, 100), 16_001: (100, 101)}[samples], "changed"
PYTHON
