"""Measure Modalities' loader, as its trainer loads: ``tokens FILE WORKERS``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lib.rates import endless, rate
from benchmarks.lib.side import answer

BATCH, SEQ_LEN, SECONDS = 64, 2048, 4.0


def tokens(path, workers):
    """Measure windows in random order; its collator makes inputs and targets."""
    from modalities.dataloader.dataloader import LLMDataLoader
    from modalities.dataloader.dataset_factory import DatasetFactory
    from modalities.models.gpt2.collator import GPT2LLMCollateFn
    from torch.utils.data import BatchSampler, RandomSampler

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), SEQ_LEN, "input_ids", True)
    loader = LLMDataLoader(
        dataloader_tag="train",
        dataset=dataset,
        batch_sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True),
        num_workers=int(workers),
        pin_memory=False,
        collate_fn=GPT2LLMCollateFn("input_ids", "target_ids"),
    )
    return rate((batch.samples["input_ids"].shape[0] * (SEQ_LEN + 1) / 1e6 for batch in endless(loader)), SECONDS)


if __name__ == "__main__":
    answer(globals())
