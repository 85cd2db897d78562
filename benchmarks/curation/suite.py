"""Suite of tagging, counting and near-duplicates, compared with Dolma and two MinHash libraries."""

from __future__ import annotations

from benchmarks.curation import dolma_stat, near, tagging

PEERS = ("dolma", "minhash")
NEEDS = (dolma_stat.TOKENIZER,)
PARTS = {**tagging.PARTS, **dolma_stat.PARTS, **near.PARTS}
