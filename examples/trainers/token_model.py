"""A model of tokens for the examples: it predicts each token from the one before and its position in the document."""

from __future__ import annotations

import torch

VOCABULARY = 256


class TokenModel(torch.nn.Module):
    def __init__(self, width: int = 16, longest: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(longest, width)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(tokens) + self.places(positions.long()))


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss per slot of the rows, which has the same weight on every rank; labels of -100 do not count."""
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / labels.numel()
