"""Token files: making them, reading them, and rewriting them, beside Modalities and datatrove."""

from __future__ import annotations

from benchmarks.tokens import reading, tokenizing, verbs

PEERS = ("modalities", "datatrove")
NEEDS = (tokenizing.TOKENIZER, tokenizing.MAKER)
PARTS = {**tokenizing.PARTS, **reading.PARTS, **verbs.PARTS}
