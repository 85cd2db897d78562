"""Measure TRL: ``prepare TOKENIZER FILE``, conversations to ids and loss masks as `SFTTrainer` prepares them."""

from __future__ import annotations

import tempfile
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.lib.side import answer


def prepare(tokenizer: str, path: str) -> dict[str, float]:
    """Return the processor time of the map that tokenizes and of the process up to the labels; numbers of tokens."""
    from datasets import Dataset, load_dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    model = AutoTokenizer.from_pretrained(tokenizer)
    seconds: dict[str, float] = {}
    mapped = Dataset.map

    def timed(self: Any, *args: Any, **options: Any) -> Any:
        begun = time.process_time()
        found = mapped(self, *args, **options)
        seconds[str(options.get("desc"))] = time.process_time() - begun
        return found

    Dataset.map = timed
    with tempfile.TemporaryDirectory() as folder:
        rows = load_dataset("json", data_files=path, split="train", cache_dir=folder)
        config = SFTConfig(output_dir=folder, assistant_only_loss=True, max_length=None, use_cpu=True, bf16=False)
        trainer: Any = SimpleNamespace(_tokenizer=model, chat_template=model.chat_template, completion_only_loss=False)
        found = SFTTrainer._prepare_dataset(trainer, rows, model, config, False, None, "train")
        whole = time.process_time()
        tokens = sum(map(len, found["input_ids"]))
        learned = sum(label != -100 for labels in found["labels"] for label in labels)
    tokenized = next(taken for desc, taken in seconds.items() if desc.startswith("Tokenizing"))
    return {"map_s": tokenized, "cpu_s": whole, "tokens": tokens, "learned": learned}


if __name__ == "__main__":
    answer(globals())
