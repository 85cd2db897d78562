"""One measurement in a process of its own: the bare engine (in Feedmill's Python), or datatrove (in the peer's).

tokenize_side.py bare TOKENIZER FILE one|own     the engine alone over the texts of a file, on one thread or its own
tokenize_side.py datatrove TOKENIZER FILE OUT    JsonlReader and DocumentTokenizer, one task
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time


def bare(tokenizer: str, path: str, threads: str) -> dict[str, float]:
    """Seconds inside the engine, and the bytes of the file."""
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


def datatrove(tokenizer: str, path: str, out: str) -> dict[str, float]:
    """Nothing but the run: its process is timed from outside."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    shutil.rmtree(out, ignore_errors=True)
    folder, name = os.path.split(path)
    tokenize = DocumentTokenizer(
        output_folder=os.path.join(out, "tokens"),
        tokenizer_name_or_path=os.path.join(tokenizer, "tokenizer.json"),
        eos_token="<|endoftext|>",
        shuffle_documents=False,
        max_tokens_per_file=int(1e9),
    )
    pipeline = [JsonlReader(folder, glob_pattern=name, text_key="text"), tokenize]
    LocalPipelineExecutor(pipeline=pipeline, tasks=1, logging_dir=os.path.join(out, "logs")).run()
    return {}


if __name__ == "__main__":
    print(json.dumps({"bare": bare, "datatrove": datatrove}[sys.argv[1]](*sys.argv[2:])))
