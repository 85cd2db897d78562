"""Answers for tests of rollouts."""

from typing import Any


def answers(*groups: str, version: int = 0, size: int = 2, **more: Any) -> list[dict[str, Any]]:
    """Groups of answers, each with its own tokens and rewards."""
    return [
        {
            "group": group,
            "version": version,
            "reward": float(number),
            "token_ids": [sum(map(ord, group)), version, *range(number + 1)],
            "loss_mask": [False, False, *[True] * (number + 1)],
            "logprobs": [0.0, 0.0, *[-0.5] * (number + 1)],
            **more,
        }
        for group in groups
        for number in range(size)
    ]
