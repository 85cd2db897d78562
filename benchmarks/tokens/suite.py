"""Suite of token files: making, reading and rewriting them, compared with Modalities and datatrove."""

from __future__ import annotations

from benchmarks.tokens import chats, reading, tokenizing, training, verbs

PEERS = ("modalities", "datatrove", "trl")
NEEDS = (tokenizing.TOKENIZER, tokenizing.MAKER)
PARTS = {**tokenizing.PARTS, **chats.PARTS, **reading.PARTS, **training.PARTS, **verbs.PARTS}
