"""Measure the tokenizer engine alone: ``bare TOKENIZER FILE one|own``, on one thread or its own number."""

from __future__ import annotations

import os
import time

from benchmarks.lib.side import answer


def bare(tokenizer: str, path: str, threads: str) -> dict[str, float]:
    """Return the seconds inside the engine, and the bytes of the file."""
    import msgspec
    from fastokens import Tokenizer

    model = Tokenizer.from_file(os.path.join(tokenizer, "tokenizer.json"))
    allowed = os.sched_getaffinity(0)
    if threads == "one":
        os.sched_setaffinity(0, {min(allowed)})
    model.encode_batch_flat(["one", "two"], True)
    os.sched_setaffinity(0, allowed)
    decode = msgspec.json.Decoder(msgspec.defstruct("Line", [("text", str)], gc=False)).decode
    seconds = tokens = size = 0
    rest = b""
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            texts = [decode(line).text for line in lines]
            begin = time.perf_counter()
            ids, _ = model.encode_batch_flat(texts, True)
            seconds += time.perf_counter() - begin
            tokens += len(ids) // 4
    return {"s": seconds, "bytes": size, "tokens": tokens, "rate": size / seconds / 1e6}


if __name__ == "__main__":
    answer(globals())
