"""Suite of tagging, counting, near-duplicates and leaked questions, compared with Dolma and two MinHash libraries."""

from __future__ import annotations

from benchmarks.curation import cells, dolma_stat, injection, models, near, tagging

PEERS = ("dolma", "minhash", "models")
NEEDS = (dolma_stat.TOKENIZER,)
PARTS = {**tagging.PARTS, **dolma_stat.PARTS, **near.PARTS, **injection.PARTS, **cells.PARTS, **models.PARTS}
