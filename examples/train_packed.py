"""Train a small GPT on text and conversations in packed rows, and check that packing changes nothing.

    python examples/train_packed.py --documents 2000 --steps 50 --layers 6 --size 256

The data are made here: documents of text, in which every token is a target, and conversations, of which only the
answers are. Rows are packed, and dealt to ranks by balanced cost. At the start and at the end, the loss of packed rows
is compared with that of the same documents one by one: they are equal, because no document sees another one, and
neither padding, nor the first token of a document, nor what the mask excludes is a target.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from attention import dense_mask
from torch import Tensor, nn
from torch.nn import functional

import feedmill as fm
from feedmill.formats.tokens.pbin import write_pbin

VOCABULARY = 512
USER, ANSWER, END = 1, 2, 3


class Block(nn.Module):
    """A layer: attention inside documents, and a feed-forward network."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.feed = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        count, width, size = x.shape
        parts = self.project(self.before(x)).reshape(count, width, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(count, width, size))
        return x + self.feed(self.between(x))


class GPT(nn.Module):
    """A GPT whose positions begin at 0 in each document."""

    def __init__(self, width: int, size: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, size), nn.Embedding(width, size)
        self.blocks = nn.ModuleList(Block(size, heads) for _ in range(layers))
        self.end = nn.LayerNorm(size)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss of each target, [n, w]; 0 for ignored ones."""
        x = self.tokens(batch["inputs"]) + self.places(batch["positions"].long())
        mask = dense_mask(batch["document_ids"])
        for block in self.blocks:
            x = block(x, mask)
        logits = self.end(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.transpose(1, 2), batch["targets"], ignore_index=-100, reduction="none")


def make_data(folder: Path, documents: int, longest: int, seed: int = 0) -> None:
    """Write ``text.pbin``, and ``chat.pbin`` with a loss mask: answers repeat the question in reverse."""
    random = np.random.default_rng(seed)
    store = fm.open_store(folder)
    lengths = np.clip(random.lognormal(3.5, 0.8, documents).astype(np.int64), 2, longest)
    with write_pbin(store, "text.pbin", 2) as out:
        steps = random.integers(1, 4, int(lengths.sum()))
        out.add(4 + np.cumsum(steps) % (VOCABULARY - 4), lengths)
    with write_pbin(store, "chat.pbin", 2, loss=True) as out:
        for _ in range(documents):
            turns, masks = [], []
            for _ in range(int(random.integers(1, 4))):
                question = random.integers(4, VOCABULARY, int(random.integers(1, longest // 8)))
                turns.append([USER, *question, ANSWER, *question[::-1], END])
                masks.append([False] * (len(question) + 2) + [True] * (len(question) + 1))
            tokens = np.concatenate(turns)
            out.add(tokens, np.array([len(tokens)]), np.concatenate(masks))


def recipe(folder: Path, seq_len: int) -> dict[str, object]:
    """Return the recipe: both sources by tokens, packed, balanced, with targets."""
    return {
        "seed": 7,
        "blend": [
            {"path": str(folder / "text.pbin"), "name": "text", "weight": 1},
            {"path": str(folder / "chat.pbin"), "name": "chat", "weight": 1},
        ],
        "unit": "tokens",
        "pack": {"seq_len": seq_len, "buffer": 4096},
        "balance": "attention",
        "targets": {"document_ids": True, "max_seqlen": True},
    }


def one_by_one(model: GPT, plan: fm.tokens.PackedPlan, rows: list[int]) -> tuple[float, int]:
    """Return the sum of losses and the number of targets of the documents in rows, each alone in its batch."""
    spans, placed = plan.locate_spans(rows)
    targets = fm.tokens.Targets(document_ids=True)
    total, count = 0.0, 0
    for source, index, start, length in zip(placed.source, placed.index, spans.start, spans.length, strict=True):
        dataset = plan.sources[source]
        assert isinstance(dataset, fm.tokens.TokenDataset)
        asked = (np.array([index]), np.array([start]), np.array([length]))
        tokens, mask = dataset.read_tokens(*asked)[0], dataset.read_loss(*asked)[0]
        if length < 2:
            continue
        row = {"input_ids": tokens.astype(np.int64), "loss_mask": mask, "positions": np.arange(length)}
        batch = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in targets([row]).items()}
        with torch.no_grad():
            total += float(model(batch).double().sum())
        count += int((batch["targets"] != -100).sum())
    return total, count


def compare(model: GPT, plan: fm.tokens.PackedPlan, rows: list[int]) -> tuple[float, float]:
    """Return the mean loss of packed rows, and that of the same documents one by one."""
    with torch.no_grad():
        batch = fm.tokens.Targets(document_ids=True)(plan.read(rows))
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in batch.items()}
        packed = float(model(tensors).double().sum() / (tensors["targets"] != -100).sum())
    total, count = one_by_one(model, plan, rows)
    if count != int((tensors["targets"] != -100).sum()):
        raise AssertionError(f"{count} targets one by one, {int((tensors['targets'] != -100).sum())} in packed rows")
    return packed, total / count


def train(
    folder: Path, *, documents: int, steps: int, seq_len: int, batch_size: int, layers: int, size: int
) -> dict[str, float]:
    """Train, and return the losses: packed and one by one, before and after."""
    torch.manual_seed(0)
    make_data(folder, documents, seq_len)
    plan = fm.Recipe.parse(recipe(folder, seq_len)).plan()
    assert isinstance(plan, fm.tokens.PackedPlan)
    model = GPT(seq_len, size, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    held = list(range(steps * batch_size, steps * batch_size + 4))  # rows that no step below sees
    before = compare(model, plan, held)
    tokens, begin = 0, time.perf_counter()
    loader = fm.Loader(plan, batch_size, rank=0, world_size=1, output="torch")
    for step, batch in enumerate(loader, 1):
        losses = model(batch)
        loss = losses.sum() / (batch["targets"] != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tokens += int(batch["tokens"].sum())
        if step >= steps:
            break
    loader.close()
    seconds = time.perf_counter() - begin
    after = compare(model, plan, held)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens per second": tokens / seconds,
        "packed before": before[0],
        "one by one before": before[1],
        "packed after": after[0],
        "one by one after": after[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("documents", 500), ("steps", 20), ("seq-len", 256), ("batch-size", 4), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--size", type=int, default=64)
    options = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(train(Path(folder), **options), indent=1))


if __name__ == "__main__":
    main()
