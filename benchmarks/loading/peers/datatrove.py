"""Measure datatrove's folder dataset with torch's DataLoader: ``tokens FOLDER WORKERS``."""

from __future__ import annotations

from benchmarks.lib.rates import endless, rate
from benchmarks.lib.side import answer

BATCH, SEQ_LEN, SECONDS = 64, 2048, 4.0


def tokens(folder, workers):
    """Measure token windows. The dataset shuffles, so torch's loader does not."""
    from datatrove.utils.dataset import DatatroveFolderDataset
    from torch.utils.data import DataLoader

    dataset = DatatroveFolderDataset(
        folder, SEQ_LEN, filename_pattern="*.ds", recursive=False, token_size=2, shuffle=True
    )
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=int(workers))
    return rate((batch["input_ids"].numel() / 1e6 for batch in endless(loader)), SECONDS)


if __name__ == "__main__":
    answer(globals())
