"""Nanotron's `build_nanoset_dataloader`: ``from feedmill.compat.nanotron.data.dataloader_builder import ...``.

The batches of a rank equal Nanotron's (git 2411b022). Ranks that need no data get Nanotron's own `TensorPointer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from feedmill.errors import ConfigError


class _Dealt:
    """The samples of one rank: every dp-th one, without those that were consumed."""

    def __init__(self, samples: int, ranks: int, rank: int, consumed: int, drop_last: bool) -> None:
        whole = samples // ranks * ranks if drop_last else -(-samples // ranks) * ranks
        self._row = range(rank + consumed // ranks * ranks, whole, ranks)
        self._samples = samples

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[int]:
        # Without drop_last, torch's sampler continues at the beginning.
        return (number % self._samples for number in self._row)


class _Empty:
    """A dataset for ranks that need no data."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> dict[str, Any]:
        if not 0 <= item < self._length:
            raise IndexError(f"sample {item} of {self._length}")
        return {}


@dataclass
class _Collate:
    """Batches of inputs and labels: int64[batch, tokens], with the slice of the context-parallel rank."""

    sequence_length: int
    input_pp_rank: int
    output_pp_rank: int
    parallel_context: Any
    use_position_ids: bool
    use_doc_masking: bool

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        context, length = self.parallel_context, self.sequence_length
        here, positions = context.pp_pg.rank(), "position_ids" if self.use_position_ids else "input_mask"
        owners = {"input_ids": self.input_pp_rank, positions: self.input_pp_rank}
        owners |= {"label_ids": self.output_pp_rank, "label_mask": self.output_pp_rank}
        out: dict[str, Any] = {name: _pointer(owner) for name, owner in owners.items() if owner != here}
        if here not in owners.values():
            if self.use_position_ids:  # as in Nanotron, these ranks have the name before the collation
                out["positions"] = out.pop("position_ids")
            return out
        ids = np.vstack([example["input_ids"] for example in examples])
        if ids.shape[1] != length + 1:
            raise AssertionError(f"Samples should be of length {length + 1} (seq_len+1), but got {ids.shape[1]}")
        size, rank = context.context_parallel_size, context.cp_pg.rank()
        part = slice(rank * length // size, (rank + 1) * length // size)
        documents = "positions" in examples[0] and (self.use_doc_masking or not self.use_position_ids)
        place = np.vstack([example["positions"] for example in examples]) if documents else None
        if here == self.input_pp_rank:
            out["input_ids"] = ids[:, :-1][:, part]
            if not self.use_position_ids:
                out[positions] = np.ones((len(ids), length), np.bool_)[:, part]
            elif place is None:
                out[positions] = np.tile(np.arange(length), (len(ids), 1))
            else:
                out[positions] = place[:, :-1]
        if here == self.output_pp_rank:
            out["label_ids"] = ids[:, 1:][:, part]
            mask = np.ones((len(ids), length), np.bool_) if place is None else place[:, 1:] != 0
            out["label_mask"] = mask[:, part]
        return out


def _pointer(rank: int) -> Any:
    try:
        module = import_module("nanotron.parallel.pipeline_parallel.tensor_pointer")
    except ImportError as error:
        raise ConfigError(
            f"a rank of pipeline parallelism needs Nanotron's TensorPointer ({error})", fix="Install Nanotron."
        ) from None
    return module.TensorPointer(group_rank=rank)


def build_nanoset_dataloader(
    dataset: Any,
    sequence_length: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    micro_batch_size: int,
    dataloader_num_workers: int,
    consumed_train_samples: int = 0,
    dataloader_drop_last: bool = True,
    dataloader_pin_memory: bool = True,
    use_position_ids: bool = True,
    use_doc_masking: bool = True,
) -> Any:
    """Return torch's loader of this rank's batches of a Nanoset.

    Args:
        parallel_context: an object with the groups ``pp_pg``, ``dp_pg`` and ``cp_pg`` (each with ``rank()`` and
            ``size()``) and ``context_parallel_size``, such as Nanotron's.
        consumed_train_samples: samples of all ranks that earlier runs have read.
    """
    from torch.utils.data import DataLoader

    if parallel_context.pp_pg.rank() not in (input_pp_rank, output_pp_rank):
        dataset, dataloader_num_workers = _Empty(len(dataset)), 0
    ranks, rank = parallel_context.dp_pg.size(), parallel_context.dp_pg.rank()
    return DataLoader(
        dataset,
        batch_size=micro_batch_size,
        sampler=_Dealt(len(dataset), ranks, rank, consumed_train_samples, dataloader_drop_last),
        collate_fn=_Collate(
            sequence_length, input_pp_rank, output_pp_rank, parallel_context, use_position_ids, use_doc_masking
        ),
        drop_last=dataloader_drop_last,
        num_workers=dataloader_num_workers,
        pin_memory=dataloader_pin_memory,
        persistent_workers=dataloader_num_workers > 0,
    )
