"""Collate rows of whole samples into batches for training, with the processor of the model: ``fm.tokens.collate_rows``.

    loader = fm.Loader(plan, batch_size=1, collate=fm.tokens.collate_rows("models/qwen3-vl", layout="transformers"))

The plan has predicted the length of each sample (`feedmill.tokens.lengths`). What is done about a sample of another
length depends on its row alone, so rows are equal on any number of ranks and after a resume:

- shorter: its place is padded;
- longer, but the row has room at its end: it is taken, and the samples after it move;
- longer, and the row has no room: an error, or with ``mismatch: drop`` in the plan its place is padding.

Each of these is counted. Nothing is cut, and nothing moves to another row.

Batches have the form that a trainer takes (`layout`):

    transformers  Hugging Face transformers, and TRL: positions that begin again and ``cu_seq_lens``, no mask
    axolotl       the same with a mask that numbers the samples of a row
    megatron      Megatron-Bridge: rows of Megatron-Core in THD form, with targets
    torchtitan    torchtitan: one dimension, with targets apart
    dpo           TRL's DPOTrainer: no row, but the chosen samples of its pairs and then the rejected ones, padded

Several rows of a batch become one that is as long as all of them. Values follow transformers 5.24, TRL 1.16, axolotl
0.19, and Megatron-Bridge and torchtitan of August 2026.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.samples.rows import SampleRow, note_place
from feedmill.samples.targets import IGNORE
from feedmill.tokens.encodesample import (
    EncodedSample,
    Int64s,
    Positions,
    RopePositions,
    SampleEncoder,
    document,
    rope_class,
)

logger = logging.getLogger("feedmill")


@dataclass
class Misses:
    """Samples of rows, and those that were not as predicted.

    Attributes:
        samples: all samples.
        shorter: samples with fewer tokens than predicted; their places are padded.
        longer: samples with more tokens, for which their rows had room.
        dropped: samples with more tokens than their rows had room for; their places are padding.
        refused: samples that the processor refuses, or whose media or text cannot be read; their places are padding.
    """

    samples: int = 0
    shorter: int = 0
    longer: int = 0
    dropped: int = 0
    refused: int = 0

    @property
    def total(self) -> int:
        """Return the number of samples that were not as predicted."""
        return self.shorter + self.longer + self.dropped + self.refused


class RowCollator:
    """Collates rows; see `collate_rows`, which makes it.

    Attributes:
        misses: counts since it was made, of this process. Those of worker processes are in the loader's metrics.
    """

    def __init__(self, encoder: SampleEncoder, layout: Layout, rope: bool, pad: int | None = None) -> None:
        self.encoder, self.layout = encoder, layout
        self._rope, self._pad = rope, encoder.pad if pad is None else pad
        self.misses = Misses()
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._new = Misses()
        self._warned = False
        self._latest = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_new", "_warned", "_latest")
        return {**{name: value for name, value in self.__dict__.items() if name not in own}, "misses": Misses()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"RowCollator({self.encoder.real.name}, layout={self.layout!r})"

    def __call__(self, rows: Sequence[SampleRow]) -> Any:
        """Return a batch of rows in the layout.

        Raises:
            DataError: a sample has more tokens than predicted, and its row no room for them; or it has no text, its
                media do not fit the text, or the processor refuses it.
            ConfigError: what is collated are not rows of samples.
        """
        counts = Misses()
        self._latest.places = []
        encoded: list[EncodedSample] = []
        places: list[Place] = []
        start = 0
        for row in rows:
            if not isinstance(row, SampleRow):
                raise ConfigError(
                    f"collate_rows collates rows of samples: found {type(row).__name__}",
                    kind="bad-batch",
                    fix="Load a plan with 'pack' over sources with 'lengths', without a transform that changes rows.",
                )
            here, kept = self._placed(row, start, counts)
            places += here
            encoded += kept
            start += row.seq_len
        packed = self._packed(encoded, places, start)
        if rows[0].groups is not None:
            packed = replace(packed, beside=_ids(rows, places, start))
        batch = laid_out(packed, self.layout, self.encoder.real.processor)
        with self._lock:
            for total in (self.misses, self._new):
                for name, count in asdict(counts).items():
                    setattr(total, name, getattr(total, name) + count)
        return batch

    def row_places(self) -> tuple[Int64s, Int64s]:
        """Return where the samples of the last batch of this thread begin in their rows, and their tokens: int64[n]."""
        starts, tokens = np.array(self._latest.places, np.int64).reshape(-1, 2).T
        return starts, tokens

    def row_counts(self) -> dict[str, int]:
        """Return what was counted since the last call, as the metrics of a loader name it."""
        with self._lock:
            counted, self._new = self._new, Misses()
        return {
            "row_samples": counted.samples,
            "length_misses": counted.shorter + counted.longer,
            "row_drops": counted.dropped + counted.refused,
        }

    def _placed(self, row: SampleRow, start: int, counts: Misses) -> tuple[list[Place], list[EncodedSample]]:
        """Return the places of a row, whose tokens begin at `start`, and the samples in those that have tokens."""
        made: list[Any] = [document(sample) for sample in row.samples]
        others = [number for number, found in enumerate(made) if found is None]
        for number, encoded in zip(others, self.encoder([row.samples[number] for number in others]), strict=True):
            made[number] = encoded
        widths = np.diff(row.cu_seqlens).tolist()
        room = row.seq_len - int(row.cu_seqlens[-1])
        places: list[Place] = []
        kept: list[EncodedSample] = []
        at = start
        for number, (found, width) in enumerate(zip(made, widths, strict=True)):
            counts.samples += 1
            predicted = int(row.lengths[number])
            if isinstance(found, DataError):
                if row.mismatch == "error":
                    raise self._located(found, row, number)
                counts.refused += 1
                self._note(row, number, f"{found.what}: its place is padding")
                found = None
            elif (real := len(found)) != predicted:
                needed = -(-real // row.multiple) * row.multiple
                if real < predicted:
                    counts.shorter += 1
                    self._note(row, number, f"{real:,} tokens, predicted {predicted:,}: its place is padded")
                elif needed - width <= room:
                    counts.longer += 1
                    room -= max(0, needed - width)
                    width = max(width, needed)
                    self._note(row, number, f"{real:,} tokens, predicted {predicted:,}: the row has room")
                elif row.mismatch == "error":
                    raise self._too_long(row, number, real, room)
                else:
                    counts.dropped += 1
                    self._note(row, number, f"{real:,} tokens, predicted {predicted:,}: its place is padding")
                    found = None
            places.append(Place(at, 0 if found is None else len(found), width))
            self._latest.places.append((at - start, places[-1].tokens))
            if found is not None and len(found):
                kept.append(found)
            at += width
        if at < start + row.seq_len:
            places.append(Place(at, 0, start + row.seq_len - at))
        return [place for place in places if place.width], kept

    def _too_long(self, row: SampleRow, number: int, real: int, room: int) -> DataError:
        return self._located(
            DataError(
                f"the sample has {real:,} tokens with {self.encoder.real.name}, and its rule predicted"
                f" {int(row.lengths[number]):,}: its row of {row.seq_len:,} has room for {room:,} more",
                kind="bad-costs",
                fix="Compare the rule with 'feedmill tokens lengths --check-samples 1000', and use the same processor,"
                " template and options for both; or plan with 'mismatch: drop' or more 'headroom'.",
            ),
            row,
            number,
        )

    def _located(self, error: DataError, row: SampleRow, number: int) -> DataError:
        """Return an error of a sample with its key and its source."""
        fix = error.fix or "Fix or exclude the sample, or plan with 'mismatch: drop'."
        located = DataError(error.what, file=row.sources[number], record=row.keys[number], kind=error.kind, fix=fix)
        note_place(located, number)
        return located

    def _note(self, row: SampleRow, number: int, what: str) -> None:
        """Log the first sample that is not as predicted; all are counted."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: %s: %s. Further samples that differ are counted only;"
                " 'feedmill tokens lengths --check-samples' finds them.",
                row.sources[number],
                row.keys[number],
                what,
            )

    def _packed(self, encoded: Sequence[EncodedSample], places: Sequence[Place], width: int) -> PackedRow:
        import torch

        ids = np.full(width, self._pad, np.int64)
        learned = np.zeros(width, bool)
        positions = np.zeros(width, np.int64)
        rope: Positions | None = None
        if self._rope:
            fractions = any(each.rope is not None and each.rope.dtype == np.float32 for each in encoded)
            rope = np.zeros((3, width), np.float32 if fractions else np.int64)
        by_token: dict[str, Any] = {}
        media: dict[str, list[Any]] = {}
        samples = iter(encoded)
        for place in places:
            whole = slice(place.start, place.start + place.width)
            positions[whole] = np.arange(place.width)
            if rope is not None:
                rope[:, whole] = positions[whole]
            if not place.tokens:
                continue
            sample = next(samples)
            part = slice(place.start, place.start + place.tokens)
            ids[part], learned[part] = sample.ids, sample.learned
            if rope is not None and sample.rope is not None:
                rope[:, part] = sample.rope
                after = slice(part.stop, whole.stop)
                rope[:, after] = sample.rope.max() + 1 + np.arange(place.width - place.tokens)
            for name, values in sample.by_token.items():
                if name not in by_token:
                    by_token[name] = torch.zeros(width, dtype=values.dtype)
                by_token[name][part] = values
            for name, value in sample.media.items():
                media.setdefault(name, []).append(value)
        together = {name: joined(values) for name, values in media.items()}
        return PackedRow(ids, learned, positions, rope, places, by_token, together, self._pad)


def _ids(rows: Sequence[SampleRow], places: Sequence[Place], width: int) -> dict[str, Int64s]:
    """Return the group and the member of each token of rows with groups, whose samples are in the first places."""
    groups, members = np.full((2, width), -1, np.int64)
    before, start, at = 0, 0, 0
    for row in rows:
        assert row.groups is not None and row.members is not None  # all rows of a plan have them
        for group, member in zip(row.groups.tolist(), row.members.tolist(), strict=True):
            place, at = places[at], at + 1
            part = slice(place.start, place.start + place.tokens)
            groups[part], members[part] = before + group, member
        before += int(row.groups.max(initial=-1)) + 1
        start += row.seq_len
        at += at < len(places) and places[at].start < start  # its padding
    return {"group_ids": groups, "member_ids": members}


_OF_TOKENS = ("input_ids", "positions", "loss_mask")


class TokenRowCollator:
    """Collates rows of tokens; see `collate_rows`."""

    def __init__(self, layout: Layout, pad: int | None = None) -> None:
        self.layout, self._pad = layout, pad or 0

    def __repr__(self) -> str:
        return f"TokenRowCollator(layout={self.layout!r})"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch of rows in the layout.

        Raises:
            ConfigError: what is collated are not packed rows of tokens.
            DataError: the layout is for pairs, and a row has something else.
        """
        import torch  # noqa: F401 - an error that names what to install comes before the rows are laid out

        places: list[Place] = []
        beside: dict[str, list[Any]] = {}
        start, before = 0, 0
        for row in rows:
            if not isinstance(row, Mapping) or "cu_seqlens" not in row or "input_ids" not in row:
                raise ConfigError(
                    f"collate_rows without a processor collates packed rows of tokens: found {type(row).__name__}",
                    kind="bad-batch",
                    fix="Load a plan with 'pack' over token files, or pass the processor of the model.",
                )
            for begin, end in pairwise(row["cu_seqlens"].tolist()):
                places.append(Place(start + begin, end - begin if begin < row["tokens"] else 0, end - begin))
            start += len(row["input_ids"])
            for name, values in row.items():
                if name in _OF_TOKENS or np.shape(values) != row["input_ids"].shape:
                    continue
                if name == "group_ids":  # of all rows together
                    values, before = np.where(values < 0, -1, values + before), before + int(values.max(initial=-1)) + 1
                beside.setdefault(name, []).append(values.astype(np.int64) if values.dtype.kind == "i" else values)

        def joined(name: str) -> Int64s:
            return np.concatenate([row[name] for row in rows]).astype(np.int64, copy=False)

        learned = [row.get("loss_mask", np.ones(len(row["input_ids"]), bool)) != 0 for row in rows]
        ids = PackedRow(
            joined("input_ids"), np.concatenate(learned), joined("positions"), None, places, {}, {}, self._pad
        )
        ids = replace(ids, beside={name: np.concatenate(values) for name, values in beside.items()})
        ids.learned[~ids.real] = False
        return laid_out(ids, self.layout, None)


def collate_rows(
    processor: Any = None,
    layout: Layout = "transformers",
    *,
    messages: str = "json",
    text: str | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    chat_template_args: Mapping[str, Any] | None = None,
    chat_mask: str = "auto",
    processor_args: Mapping[str, Any] | None = None,
    media: Sequence[str] | None = None,
    config: Any = None,
    pad: int | None = None,
) -> RowCollator | TokenRowCollator:
    """Return the `collate` of a loader of packed rows: batches that a model takes.

    Rows of token files, such as conversations with their loss masks, need no processor. Rows of samples do:
    Each sample goes through the processor alone, as its length was predicted. The samples of a row are then laid end to
    end: positions begin again in each, those of M-RoPE too; media are joined along their first axis; the first token of
    a sample is no target, nor are tokens of media and padding. Documents of token files may lie beside them. Several
    rows become one. The options up to `media` are those of `feedmill.tokens.lengths`: give both the same.

    Args:
        processor: A processor of transformers, or the folder of its checkpoint; None for rows of tokens, which take no
            other option than `layout` and `pad`.
        layout: ``transformers`` (also for TRL), ``megatron`` (Megatron-Bridge), ``torchtitan`` or ``axolotl``; or
            ``dpo``, which takes the pairs of rows apart for TRL's DPOTrainer.
        messages: Part with the conversation, as JSON, or a field with it.
        text: Part with a plain text that has the placeholders, instead of a conversation; all of it is learned.
        chat_template: A file, or the name of one of the tokenizer's templates; default: that of the processor.
        chat_template_args: Variables of the template.
        chat_mask: What of a conversation is learned, as for `feedmill.tokenize`: ``auto``, ``generation``, ``turns``,
            ``last`` or ``none`` (everything).
        processor_args: Parameters with which the processor is called.
        media: Parts with media, in the order of their placeholders. By default all, by the numbers in their names:
            ``2.jpg`` before ``10.jpg``. A conversation that names the parts of its media gets them in that order.
        config: Folder with the ``config.json`` of the model, or its configuration; default: the processor's folder. It
            is needed for positions of M-RoPE, but not by ``megatron``, whose models find them.
        pad: The padding token; default: that of the tokenizer, or 0.

    Returns:
        A `RowCollator`: list of `SampleRow` -> batch. Its `misses` count samples that were not as predicted. Without a
        processor a `TokenRowCollator`: list of rows of tokens -> batch.

    Raises:
        MissingExtra: transformers, torch, tokenizers or jinja2 is not installed.
        NotFound: The folder has no tokenizer.
        ConfigError: The layout or an option is unknown, the processor or its template cannot be loaded, or a
            configuration is needed.
    """
    known = get_args(Layout)
    if layout not in known:
        raise ConfigError(
            f"unknown layout {layout!r}: expected {', '.join(known[:-1])} or {known[-1]}",
            kind="bad-option",
            fix="Correct layout.",
        )
    if processor is None:
        given = (text, chat_template, chat_template_args, processor_args, media, config)
        if any(each is not None for each in given) or (messages, chat_mask) != ("json", "auto"):
            raise ConfigError(
                "rows of tokens have no options of a processor",
                kind="bad-option",
                fix="Pass the processor, or 'layout' and 'pad' alone.",
            )
        return TokenRowCollator(layout, pad)
    encoder = SampleEncoder(
        processor,
        messages=messages,
        text=text,
        chat_template=chat_template,
        chat_template_args=chat_template_args,
        chat_mask=chat_mask,
        processor_args=processor_args,
        media=media,
    )
    encoder.positions = None if layout == "megatron" else _positions(encoder, config)
    return RowCollator(encoder, layout, encoder.positions is not None, pad)


def _positions(encoder: SampleEncoder, config: Any) -> RopePositions | None:
    """Return what makes positions of M-RoPE; None for a model without."""
    if config is None:
        folder = encoder.real.folder
        if folder is not None and os.path.isfile(os.path.join(folder, "config.json")):
            config = folder
        elif rope_class(type(encoder.real.processor)) is None:
            return None
        else:
            raise ConfigError(
                f"models of {encoder.real.name} have positions of M-RoPE, which need the configuration of the model",
                file=folder,
                kind="missing-option",
                fix="Pass config=, the folder with the config.json of the model or its configuration.",
            )
    return RopePositions.of(config)


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
