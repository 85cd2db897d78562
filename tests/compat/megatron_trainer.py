"""Train a small GPT on megatron-core's datasets, and save it half-way: run in the peer's environment.

    python megatron_trainer.py < request.json

The request is one of ``megatron_reader.py`` with `batch`, `steps` and `half` (a step), and `folder`, where the
checkpoint ``half.pt`` is written. The answer is the list of losses. The model is used by the test, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

VOCABULARY, SIZE = 1000, 64


class Gpt(torch.nn.Module):
    """A GPT of two layers, for the fields of `GPTDataset`."""

    def __init__(self, seq_len: int) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, SIZE), torch.nn.Embedding(seq_len, SIZE)
        layer = torch.nn.TransformerEncoderLayer(SIZE, 4, 2 * SIZE, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for table in (self.tokens, self.places):
            torch.nn.init.normal_(table.weight, std=0.02)

    def forward(self, fields: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of a batch, and the number of targets."""
        x = self.tokens(fields["tokens"]) + self.places(fields["position_ids"])
        x = self.layers(x, mask=fields["attention_mask"].squeeze(1).repeat_interleave(4, dim=0))
        logits = x @ self.tokens.weight.T
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), fields["labels"], reduction="none")
        return (losses * fields["loss_mask"]).sum(), fields["loss_mask"].sum()


class Training:
    """A model, its optimizer, and the number of samples that it saw."""

    def __init__(self, seq_len: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(seq_len).double()  # sums in another order stay equal to far more than five digits
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.consumed = 0

    def step(self, parts: Iterable[Mapping[str, torch.Tensor]]) -> float:
        """Train on the parts of one global batch, one for each rank, and return the mean loss of its targets."""
        found = [(self.model(fields), len(fields["tokens"])) for fields in parts]
        loss = sum(total for (total, _), _ in found) / sum(count for (_, count), _ in found)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.consumed += sum(samples for _, samples in found)
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds; the name of the count is that of Megatron-LM."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "consumed_train_samples": self.consumed,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.consumed = state["consumed_train_samples"]


def main() -> None:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron_reader import Tokenizer

    request = json.load(sys.stdin)
    config = GPTDatasetConfig(tokenizer=Tokenizer(None), **request["config"])
    dataset, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, request["sizes"], lambda: True, config).build()
    training, losses, names = Training(config.sequence_length), [], None
    for step in range(request["steps"]):
        if step == request["half"]:
            torch.save(training.state(), f"{request['folder']}/half.pt")
        samples = [dataset[training.consumed + k] for k in range(request["batch"])]
        names = names or [name for name in samples[0] if name != "dataset_id"]
        losses.append(training.step([{n: torch.stack([torch.as_tensor(s[n]) for s in samples]) for n in names}]))
    print(json.dumps({"losses": losses, "samples": len(dataset)}))


if __name__ == "__main__":
    main()
