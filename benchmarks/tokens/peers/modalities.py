"""Measure Modalities.

index FILE INDEX
windows FILE SEQ_LEN
train FILE SEQ_LEN [BEGIN END]              inputs and targets in a torch loop; with two token ids, it masks the targets
                                            that are not between them
rewrite shuffle|chunk|merge IN OUT RUNS
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.lib.side import answer
from benchmarks.tokens.timing import BATCH, Work, loop, numbers, rewritten, singles


def index(path: str, index: str) -> dict[str, float]:
    """Return the seconds of the index generator."""
    from modalities.dataloader.create_index import IndexGenerator

    Path(index).unlink(missing_ok=True)
    begun = time.perf_counter()
    IndexGenerator(Path(path)).create_index(Path(index))
    return {"s": time.perf_counter() - begun}


def windows(path: str, seq_len: str) -> dict[str, float]:
    """Measure random windows, one at a time: it has no batches."""
    from modalities.dataloader.dataset_factory import DatasetFactory

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), int(seq_len), "input_ids", True)
    return singles(dataset, numbers(len(dataset)), int(seq_len) + 1)


class _Markers:
    """Tokenizer of the two markers, all that its masking asks for."""

    def get_token_id(self, token: str) -> int:
        """Return the id that is the token's text."""
        return int(token)


def train(path: str, seq_len: str, begin: str = "", end: str = "") -> dict[str, float]:
    """Measure windows with its collator in torch's DataLoader, in the process of the loop."""
    from modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking import (
        LossMaskingCollateFnWrapper,
        LossMaskingTokenConfig,
    )
    from modalities.dataloader.dataset_factory import DatasetFactory
    from modalities.models.gpt2.collator import GPT2LLMCollateFn
    from torch.utils.data import DataLoader

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), int(seq_len), "input_ids", True)
    collate = GPT2LLMCollateFn(sample_key="input_ids", target_key="target_ids")
    if begin:
        markers = LossMaskingTokenConfig(b_include_to_loss_token=begin, e_include_to_loss_token=end)
        collate = LossMaskingCollateFnWrapper(collate, ["target_ids"], -100, markers, _Markers())
    loader = DataLoader(dataset, BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    pairs = ((batch.samples["input_ids"], batch.targets["target_ids"]) for batch in loader)
    return loop(pairs, BATCH * int(seq_len))


def rewrite(what: str, source: str, target: str, runs: str) -> dict[str, float]:
    """Measure rewriting, see `rewritten`."""
    return rewritten(_rewriting, what, source, target, runs)


def _rewriting(what: str, source: Path, target: Path) -> Work:
    """Return the call of the functions of its commands."""
    from modalities.api import (
        FileExistencePolicy,
        create_shuffled_dataset_chunk,
        merge_packed_data_files,
        shuffle_tokenized_data,
    )

    output, policy = target / "x.pbin", FileExistencePolicy.OVERRIDE
    if what == "shuffle":
        return lambda: shuffle_tokenized_data(source, output, 100, policy, 1)
    if what == "chunk":
        return lambda: create_shuffled_dataset_chunk([source], output, 0, 1, policy, 1)
    return lambda: merge_packed_data_files([source, source], output)


if __name__ == "__main__":
    answer(globals())
