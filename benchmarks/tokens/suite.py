"""Suite of token files: making, reading and rewriting them, compared with Modalities and datatrove."""

from __future__ import annotations

from benchmarks.tokens import reading, tokenizing, training, verbs

PEERS = ("modalities", "datatrove")
NEEDS = (tokenizing.TOKENIZER, tokenizing.MAKER)
PARTS = {**tokenizing.PARTS, **reading.PARTS, **training.PARTS, **verbs.PARTS}
