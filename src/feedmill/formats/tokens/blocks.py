"""Windows that begin with a document: the Megatron-style blocks of Modalities, as documented.

The class in Modalities does not work: it counts starts from the wrong byte, confuses lengths in tokens with bytes, and
loses its position after a document that is longer than a block. This module implements the rule in its comments; see
`feedmill.kernels.order.blocks`. Opening takes as long as reading the bounds of documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.formats.base import Indices, numbers_inside
from feedmill.formats.tokens.base import Int64s, TokenDataset
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.kernels.order.blocks import greedy_blocks


class BlockDataset(WindowDataset):
    """Blocks of `block_size` tokens, each of which begins with a document; no block spans two files.

    Args:
        tokens: the files, with their index of documents.
        block_size: tokens per block, at least 2.
        options: ``positions``, ``boundaries``, ``eos`` and ``dtype`` as for `WindowDataset`.

    Raises:
        NotFound: a file has no index of documents.
        ConfigError: the settings are invalid, or there are no blocks.
    """

    format = "blocks"

    def __init__(self, tokens: TokenDataset, *, block_size: int, **options: Any) -> None:
        tokens.need_index()
        self._starts: list[Int64s] = []
        super().__init__(tokens, width=block_size, **options)

    def _count(self, sizes: Int64s) -> Int64s:  # noqa: ARG002
        self._starts = [greedy_blocks(shard.bounds, self.width) for shard in self.tokens.shards]
        return np.cumsum([len(starts) for starts in self._starts], dtype=np.int64)

    def begins(self, indices: Indices) -> tuple[Int64s, Int64s]:
        wanted = numbers_inside(indices, len(self), self.url, "block")
        file = np.searchsorted(self._ends, wanted, side="right").astype(np.int64)
        start = np.empty(len(wanted), np.int64)
        for number in np.unique(file).tolist():
            mine = file == number
            before = int(self._ends[number - 1]) if number else 0
            start[mine] = self._starts[number][wanted[mine] - before]
        return file, start

    def _overlapping(self, file: int, low: int, high: int) -> tuple[int, int]:
        first, stop = np.searchsorted(self._starts[file], (low - self.width + 1, high))
        return int(first), int(stop)

    def _left_out(self) -> int:
        """Return the number of tokens in no block: truncated ends of documents, and the end of each file."""
        seen = 0
        for starts in self._starts:
            gaps = np.diff(starts)
            seen += int(np.minimum(gaps, self.width).sum()) + (self.width if len(starts) else 0)
        return self.tokens.tokens - seen
