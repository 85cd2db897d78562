"""Run in Dolma's own Python: its token writer over one group of files, its chance seeded as Feedmill's is.

dolma_writer.py SEED DESTINATION RING BATCH MAX_SIZE TOKENIZER FILE...
"""

from __future__ import annotations

import queue
import random
import sys


def main(seed: str, destination: str, ring: str, batch: str, limit: str, tokenizer: str, *files: str) -> None:
    from dolma.tokenizer.executor import MemMapParallelWriter

    paths = list(files)
    random.Random(f"files {seed}").shuffle(paths)
    random.seed(f"{seed} 0")
    MemMapParallelWriter.process_single(
        "0",
        f"{destination}/part-0",
        queue.Queue(),
        max_size=int(limit),
        dtype="uint16",
        local_shuffle=int(batch),
        ring_size=int(ring),
        grouped_source_prefixes=[paths],
        tokenizer_name_or_path=tokenizer,
        eos_token_id=2,
        id_field_name="id",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
