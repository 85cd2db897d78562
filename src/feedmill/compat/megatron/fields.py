"""The fields that Megatron-LM's `GPTDataset` makes from the tokens of a sample, for a whole batch at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.yamls import read_settings
from feedmill.planning.dialects.megatron import attribute, batch_settings
from feedmill.storage import open_store, split_url


def gpt_settings(run: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, bool]:
    """Return the options of `gpt_fields` that the arguments of a run set.

    Args:
        run: the arguments, or a YAML file of them; arguments about other things are skipped.

    >>> gpt_settings({"--eod-mask-loss": True, "no_create_attention_mask_in_dataloader": True, "seed": 1})
    {'eod_mask_loss': True, 'create_attention_mask': False}

    Raises:
        NotFound: the file does not exist.
        ConfigError: the file is no mapping, or a value is neither true nor false.
    """
    file = None if isinstance(run, Mapping) else os.fspath(run)
    if file is not None:
        folder, name = split_url(file)
        run = read_settings(open_store(folder).read(name), file)
    if not isinstance(run, Mapping):
        raise ConfigError(
            "the file is not a mapping of arguments", file=file, kind="bad-config", fix="Write NAME: VALUE."
        )
    given = {attribute(str(name)): value for name, value in run.items()}
    found = {}
    for name in batch_settings(given):
        if not isinstance(given[name], bool):
            raise ConfigError(
                f"'{name}' must be true or false, found {given[name]!r:.60}",
                file=file,
                kind="bad-option",
                fix="Change it.",
            )
        negative = name.startswith("no_")
        key = "create_attention_mask" if negative else name
        found[key] = given[name] is not negative
    return found


def gpt_fields(
    rows: npt.NDArray[np.integer[Any]],
    *,
    eod: int,
    tokens: npt.NDArray[np.integer[Any]] | None = None,
    pad: int | None = None,
    extra_token: bool = True,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    eod_mask_loss: bool = False,
    create_attention_mask: bool = True,
) -> dict[str, npt.NDArray[Any]]:
    """Return the fields of a batch as Megatron-LM's `GPTDataset` gives them for each sample.

    Args:
        rows: integers[n, seq_len + 1], ``input_ids`` of the samples; without `extra_token`, [n, seq_len].
        eod: id of the end of a document, at which positions and attention are reset.
        tokens: int[n], tokens of each row that are not padding; default: all.
        pad: the tokenizer's padding id, if it differs from its other special tokens. It is masked wherever it occurs.
        extra_token: Megatron-LM's `add_extra_token_to_sequence`.
        reset_position_ids, reset_attention_mask, eod_mask_loss, create_attention_mask: as in Megatron-LM.

    Returns:
        ``tokens``, ``labels`` and ``position_ids``, int64[n, seq_len]; ``loss_mask``, float32[n, seq_len]; and
        ``attention_mask``, bool[n, 1, seq_len, seq_len], True where attention is masked.

    >>> fields = gpt_fields(np.array([[5, 0, 6, 7]]), eod=0, reset_position_ids=True, eod_mask_loss=True)
    >>> fields["labels"].tolist(), fields["position_ids"].tolist(), fields["loss_mask"].tolist()
    ([[0, 6, 7]], [[0, 1, 0]], [[1.0, 0.0, 1.0]])

    Raises:
        ConfigError: the rows have another shape.
    """
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ConfigError(f"the tokens of a batch have the shape {rows.shape}, expected [samples, seq_len + 1]")
    padded = np.zeros(rows.shape, np.bool_)
    if tokens is not None:
        padded |= np.arange(rows.shape[1]) >= np.asarray(tokens)[:, None]
    if pad is not None:
        padded |= rows == pad
    whole = np.where(padded, -1, rows).astype(np.int64)
    if extra_token:
        ids, labels = whole[:, :-1].copy(), whole[:, 1:].copy()
    else:
        ids, labels = whole, np.roll(whole, -1, axis=1)
        labels[:, -1] = -1
    ends = ids == eod
    loss = np.ones(ids.shape, np.float32)
    if eod_mask_loss:
        loss[ends] = 0
    loss[labels < 0] = 0
    begins = np.zeros(ids.shape, np.int64)  # the position at which each token's document begins
    begins[:, 1:] = np.where(ends, np.arange(ids.shape[1]) + 1, 0)[:, :-1]
    np.maximum.accumulate(begins, axis=1, out=begins)
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    fields = {
        "tokens": np.maximum(ids, 0),
        "labels": np.maximum(labels, 0),
        "loss_mask": loss,
        "position_ids": positions - begins if reset_position_ids else positions.copy(),
    }
    if create_attention_mask:
        mask = np.arange(ids.shape[1])[None, None, None, :] > positions[:, None, :, None]
        if reset_attention_mask:
            mask = mask | (positions[:, None, None, :] < begins[:, None, :, None])
        fields["attention_mask"] = mask
    return fields
