"""Batches of packed rows in the forms that trainers take.

    transformers  Hugging Face transformers, and TRL: positions that begin again and ``cu_seq_lens``, no mask
    axolotl       the same with a mask that numbers the samples of a row
    megatron      Megatron-Bridge: rows of Megatron-Core in THD form, with targets
    torchtitan    torchtitan: one dimension, with targets apart
    dpo           TRL's DPOTrainer: no row, but the chosen samples of its pairs and then the rejected ones, padded

Several rows of a batch become one that is as long as all of them. Values follow transformers 5.24, TRL 1.16, axolotl
0.19, and Megatron-Bridge and torchtitan of August 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.samples.targets import IGNORE

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Layout = Literal["transformers", "megatron", "torchtitan", "axolotl", "dpo"]
_SPECIAL = ("image", "video", "vision_start", "vision_end", "pad")
"""Tokens of the text whose numbers torchtitan's models get."""


class Place(NamedTuple):
    """Where a sample is: its first token, its tokens, and those of its place, which ends in padding.

    A place of padding alone has no tokens: the end of a row, or a sample that was dropped.
    """

    start: int
    tokens: int
    width: int


@dataclass(frozen=True)
class PackedRow:
    """Samples one after another, each in its place.

    Attributes:
        ids: int64[T], tokens; `learned`: bool[T], which contribute to the loss as targets.
        positions: int64[T], from 0 in each place, through its padding.
        rope: int64[3, T], those of M-RoPE, or float32 if the model has fractions; None for models without.
        places: all places, without gaps.
        by_token: name -> tensor[T]; `media`: name -> values by medium of all samples.
        pad: the padding token.
        beside: name -> array[T], what else rows have for each token: ``group_ids`` and ``member_ids`` of rows with
            groups, and numeric columns.
    """

    ids: Int64s
    learned: Bools
    positions: Int64s
    rope: Int64s | npt.NDArray[np.float32] | None
    places: Sequence[Place]
    by_token: Mapping[str, Any]
    media: Mapping[str, Any]
    pad: int
    beside: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def real(self) -> Bools:
        """Return which tokens are not padding, bool[T]."""
        out = np.zeros(len(self.ids), bool)
        for start, tokens, _ in self.places:
            out[start : start + tokens] = True
        return out

    @property
    def ends(self) -> npt.NDArray[np.int32]:
        """Return where places begin, and the end of the last, int32[places + 1]."""
        return np.array([*(place.start for place in self.places), len(self.ids)], np.int32)

    def labels(self) -> Int64s:
        """Return each token as its own label, int64[T]; models shift them. The first of a sample has no label."""
        out = np.where(self.learned, self.ids, IGNORE)
        out[self.ends[:-1]] = IGNORE
        return out

    def targets(self) -> Int64s:
        """Return the next token of each, int64[T]; the last of a sample has no target."""
        return np.append(self.labels()[1:], IGNORE)


def transformers(row: PackedRow, _: Any) -> dict[str, Any]:
    """Return what models of transformers take: tensors [1, T], positions [1, T] or [4, 1, T], no attention mask.

    ``use_cache`` is False because models that make a cache, as most do by default, look for no samples in a row: with
    SDPA and eager attention, tokens would attend to those of earlier samples. See
    `findings/transformers_packed_rows_and_caches.sh`.
    """
    ends = _tensor(row.ends)
    longest = int(np.diff(row.ends).max())
    numbers = np.repeat(np.arange(len(row.places), dtype=np.int32), np.diff(row.ends))
    return {
        **_of_transformers(row),
        "use_cache": False,
        "seq_idx": _tensor(numbers[None]),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def axolotl(row: PackedRow, _: Any) -> dict[str, Any]:
    """Return what axolotl's collator for packed rows makes: a mask with the number of each sample, 0 for padding."""
    mask = np.zeros(len(row.ids), np.int64)
    number = 0
    for start, tokens, _width in row.places:
        number += tokens > 0
        mask[start : start + tokens] = number
    return {**_of_transformers(row), "attention_mask": _tensor(mask[None])}


def dpo(row: PackedRow, _: Any) -> dict[str, Any]:
    """Return what TRL's collator for preferences makes: tensors [2 * pairs, tokens of the longest], chosen first.

    Raises:
        DataError: what the row holds are not pairs.
        ConfigError: the row has media, of which this layout has no place.
    """
    if row.media or row.by_token:
        raise ConfigError(
            "pairs with media have no layout 'dpo'",
            kind="unsupported",
            fix="Use the layout 'transformers', which says where each sample of a pair is.",
        )
    places = [place for place in row.places if place.tokens]
    firsts = [place.start for place in places]
    pairs: dict[tuple[int, int], Place] = {}
    if "group_ids" in row.beside:
        keys = zip(*(row.beside[name][firsts].tolist() for name in ("group_ids", "member_ids")), strict=True)
        pairs = dict(zip(keys, places, strict=True))
    count = len(places) // 2
    order = [(group, member) for member in (0, 1) for group in range(count)]
    if not pairs or set(pairs) != set(order):
        raise DataError(
            f"a row holds {len(places):,} samples that are not pairs",
            kind="bad-batch",
            fix="Make each source a 'zip' of two, or give it 'groups: 2'.",
        )
    width = max(place.tokens for place in places)
    out = np.zeros((3, 2 * count, width), np.int64)
    out[0] = row.pad
    for line, key in enumerate(order):
        start, tokens, _width = pairs[key]
        part = slice(start, start + tokens)
        out[:, line, :tokens] = row.ids[part], np.ones(tokens), row.learned[part]
    names = ("input_ids", "attention_mask", "completion_mask")
    return {name: _tensor(values) for name, values in zip(names, out, strict=True)}


def _of_transformers(row: PackedRow) -> dict[str, Any]:
    positions = row.positions[None]
    if row.rope is not None:  # the first row, that of the text, says where samples begin
        positions = np.concatenate([positions.astype(row.rope.dtype), row.rope])[:, None]
    return {
        "input_ids": _tensor(row.ids[None]),
        "labels": _tensor(row.labels()[None]),
        "position_ids": _tensor(positions),
        **{name: value[None] for name, value in row.by_token.items()},
        **row.media,
    }


def megatron(row: PackedRow, _: Any) -> dict[str, Any]:
    """Return what Megatron-Bridge's collators for packed rows make: its models find positions of M-RoPE themselves.

    Its places are samples and the padding after each: padding alone belongs to the sample before it, and is a sample of
    padding if there is none.
    """
    places: list[Place] = []
    for place in row.places:
        if place.tokens:
            places.append(place)
        elif places:
            last = places[-1]
            places[-1] = last._replace(width=last.width + place.width)
        else:
            places.append(place._replace(tokens=place.width))
    targets = row.targets()
    widths, tokens = (np.array([getattr(place, name) for place in places]) for name in ("width", "tokens"))
    ends, padded = (_tensor(np.concatenate([[0], np.cumsum(each)]).astype(np.int32)) for each in (tokens, widths))
    longest = _tensor(np.array(widths.max(), np.int32))
    positions = replace(row, places=places).positions.copy()
    for place in places:
        positions[place.start : place.start + place.width] = np.arange(place.width)
    more = {} if np.array_equal(widths, tokens) else {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    return {
        "input_ids": _tensor(row.ids[None]),
        "labels": _tensor(targets[None]),
        "loss_mask": _tensor((targets[None] != IGNORE).astype(np.float32)),
        "position_ids": _tensor(positions[None]),
        "attention_mask": None,
        "padding_mask": _tensor(~row.real[None]),
        "cu_seqlens_q": ends,
        "cu_seqlens_kv": ends,
        **more,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": len(row.ids),
        "visual_inputs": VisualInputs(row.media),
    }


class VisualInputs:
    """Tensors of media as Megatron-Bridge's steps take them: attributes, or keywords of the model's ``forward``."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.__dict__.update(tensors)

    def as_model_kwargs(self) -> dict[str, Any]:
        """Return the tensors by name; a stage of the pipeline may have set some to None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    normalized_for_model = as_model_kwargs
    """What differs only for media that are nested by sample; these are not."""

    def __repr__(self) -> str:
        return f"VisualInputs({', '.join(self.__dict__)})"


def torchtitan(row: PackedRow, processor: Any) -> tuple[dict[str, Any], Any]:
    """Return inputs and targets as torchtitan's collator of text and media makes them: tensors [T]."""
    media = dict(row.media)
    inputs = {
        "input": _tensor(row.ids),
        "positions": _tensor(row.positions),
        "pixel_values": media.pop("pixel_values", None),
        "grid_thw": media.pop("image_grid_thw", None),
        "pixel_values_videos": media.pop("pixel_values_videos", None),
        "grid_thw_videos": media.pop("video_grid_thw", None),
        "special_tokens": _special(processor, row.pad),
        **media,
    }
    if row.rope is not None:
        inputs["mrope_positions"] = _tensor(np.ascontiguousarray(row.rope.T))
    return inputs, _tensor(row.targets())


def _special(processor: Any, pad: int) -> dict[str, int]:
    """Return the numbers of the tokens that stand for media and around them, as far as the processor has them."""
    out = {}
    for name in _SPECIAL:
        number = getattr(processor, f"{name}_token_id", None)
        if name == "pad":
            number = pad
        if isinstance(number, int):
            out[f"{name}_id"] = number
    return out


LAYOUTS: Mapping[str, Callable[[PackedRow, Any], Any]] = {
    "transformers": transformers,
    "megatron": megatron,
    "torchtitan": torchtitan,
    "axolotl": axolotl,
    "dpo": dpo,
}


def laid_out(row: PackedRow, layout: Layout, processor: Any) -> Any:
    """Return a batch in a layout. What rows have beside their tokens is shaped as these."""
    batch = LAYOUTS[layout](row, processor)
    fields = batch[0] if layout == "torchtitan" else batch
    for name, values in row.beside.items() if layout != "dpo" else ():
        fields[name] = _tensor(values if layout == "torchtitan" else values[None])
    return batch


def joined(values: Sequence[Any]) -> Any:
    """Return values of several samples as one, along the first axis; lists are joined.

    Tensors that differ in other axes are padded with zeros at their ends, as processors pad those of a batch.
    """
    import torch

    if not all(isinstance(value, torch.Tensor) for value in values):
        return [each for value in values for each in value]
    shape = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    if all(list(value.shape[1:]) == shape for value in values):
        return torch.cat(list(values)) if len(values) > 1 else values[0]
    out = values[0].new_zeros((sum(len(value) for value in values), *shape))
    at = 0
    for value in values:
        out[(slice(at, at + len(value)), *map(slice, value.shape[1:]))] = value
        at += len(value)
    return out


def _tensor(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array if array.flags.c_contiguous else array.copy())
