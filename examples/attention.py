"""Inputs of attention kernels for packed rows: document masks, FlashAttention, FlexAttention, and context parallelism.

All functions take a batch of a loader with ``collate=fm.tokens.Targets(document_ids=True, max_seqlen=True)`` and
``output="torch"``. Copy what you need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def dense_mask(document_ids: Tensor) -> Tensor:
    """Return the mask of `torch.nn.functional.scaled_dot_product_attention`, bool [n, 1, w, w].

    A token sees the tokens of its own document up to itself. Padding (-1) sees the padding before it, because a row of
    the mask without any True would give NaN.
    """
    same = document_ids[:, :, None] == document_ids[:, None, :]
    width = document_ids.shape[1]
    return (same & torch.ones(width, width, dtype=torch.bool, device=document_ids.device).tril())[:, None]


def flex_mask(document_ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the `mask_mod` of `torch.nn.attention.flex_attention.create_block_mask`."""

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    return mask_mod


def varlen(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `flash_attn_varlen_func` for rows that are laid end to end ([n * w, heads, size]).

    Padding counts as sequences, as in ``cu_seqlens``. Repeated ends are dropped: they would be empty sequences.
    """
    ends = batch["cu_seqlens"].to(torch.int64)
    width = int(ends[0, -1])
    starts = torch.arange(len(ends), device=ends.device)[:, None] * width
    flat = torch.unique((ends + starts).reshape(-1)).to(torch.int32)  # also sorts
    longest = int(torch.diff(flat).max())
    return {
        "cu_seqlens_q": flat,
        "cu_seqlens_k": flat,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "causal": True,
    }


def context_slice(batch: dict[str, Any], rank: int, size: int, *, zigzag: bool = True) -> dict[str, Any]:
    """Return a rank's part of the sequence dimension for context parallelism (ring attention).

    With `zigzag`, rows are cut into 2 * size chunks, and rank r gets the chunks r and 2 * size - 1 - r: with a causal
    mask, the first chunks have less to do than the last. All ranks of a context-parallel group must get the same batch:
    give them the same `rank` and `world_size` of the loader. `positions` and `document_ids` are cut too, so each
    token keeps its document; `cu_seqlens` stays that of the whole row.

    Raises:
        ValueError: the width is not a multiple of the number of chunks.
    """
    width = batch["targets"].shape[1]
    chunks = 2 * size if zigzag else size
    if width % chunks:
        raise ValueError(f"{width} tokens cannot be cut into {chunks} chunks: choose another seq_len")
    mine = [rank, chunks - 1 - rank] if zigzag else [rank]
    step = width // chunks
    places = torch.cat([torch.arange(chunk * step, (chunk + 1) * step) for chunk in mine])
    cut = [
        name for name, value in batch.items() if isinstance(value, Tensor) and name not in ("cu_seqlens", "boundaries")
    ]
    return {
        **batch,
        **{name: batch[name][:, places] for name in cut if batch[name].ndim == 2 and batch[name].shape[1] == width},
    }
