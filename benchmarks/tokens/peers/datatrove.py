"""Measure datatrove.

positions FOLDER SEQ_LEN
train FOLDER SEQ_LEN [located]  inputs and targets in a torch loop, with the positions in the documents if wanted
rewrite merger IN OUT RUNS
tokenize TOKENIZER FILE OUT
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.tokens.timing import BATCH, Work, loop, numbers, rewritten, singles


def _dataset(folder: str, seq_len: str, located: bool) -> Any:
    """Return its windows, with the positions of the tokens in their documents if wanted."""
    from datatrove.utils.dataset import DatatroveFolderDataset

    return DatatroveFolderDataset(
        folder,
        int(seq_len),
        filename_pattern="*.ds",
        recursive=False,
        token_size=2,
        shuffle=True,
        return_positions=located,
    )


def positions(folder: str, seq_len: str) -> dict[str, float]:
    """Measure random windows with positions from the index."""
    dataset = _dataset(folder, seq_len, located=True)
    return singles(dataset, numbers(len(dataset)), int(seq_len) + 1)


def train(folder: str, seq_len: str, kind: str = "") -> dict[str, float]:
    """Measure windows in torch's DataLoader, in the process of the loop."""
    from torch.utils.data import DataLoader

    loader = DataLoader(_dataset(folder, seq_len, kind == "located"), BATCH, shuffle=True, drop_last=True)
    pairs = ((batch["input_ids"][:, :-1], batch["input_ids"][:, 1:]) for batch in loader)
    return loop(pairs, BATCH * int(seq_len))


def rewrite(what: str, source: str, target: str, runs: str) -> dict[str, float]:
    """Measure its merger, see `rewritten`."""
    return rewritten(_rewriting, what, source, target, runs)


def _rewriting(what: str, source: Path, target: Path) -> Work:
    """Return the call of datatrove's merger."""
    from datatrove.pipeline.tokens import DocumentTokenizerMerger
    from loguru import logger

    logger.remove()
    assert what == "merger"
    return lambda: DocumentTokenizerMerger(str(source), str(target), "m", seed=1, progress=False).run()


def tokenize(tokenizer: str, path: str, out: str) -> dict[str, float]:
    """Tokenize without measuring: the process is timed from outside."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    shutil.rmtree(out, ignore_errors=True)
    folder, name = os.path.split(path)
    step = DocumentTokenizer(
        output_folder=os.path.join(out, "tokens"),
        tokenizer_name_or_path=os.path.join(tokenizer, "tokenizer.json"),
        eos_token="<|endoftext|>",
        shuffle_documents=False,
        max_tokens_per_file=int(1e9),
    )
    pipeline = [JsonlReader(folder, glob_pattern=name, text_key="text"), step]
    LocalPipelineExecutor(pipeline=pipeline, tasks=1, logging_dir=os.path.join(out, "logs")).run()
    return {}


if __name__ == "__main__":
    answer(globals())
