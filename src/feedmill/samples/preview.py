"""Show samples as text, and their images as a contact sheet (``feedmill show``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.provided import provided
from feedmill.samples.options import Preview
from feedmill.samples.targets import LOSS_MASK
from feedmill.samples.text import MAX_LINES, MAX_WIDTH, as_numbers, as_text, cut, printable

_RANGES = 6


@dataclass(frozen=True, slots=True)
class PreviewReport(VerbReport):
    """Report of samples as text.

    Attributes:
        path: The dataset.
        samples: One dict per sample with ``key``, ``source`` (its location) and ``parts`` (name -> text); see
            `as_shown`.
        sheet: The picture that was written, or None.
    """

    path: str
    samples: list[dict[str, Any]]
    sheet: str | None = None


@verb(Preview)
def preview(options: Preview) -> PreviewReport:
    """Return samples as text: key, location, and each part.

    Raises:
        NotFound: The dataset has no sample `start`.
        ConfigError: `sheet` is given, but the samples have no image.
    """
    path = os.fspath(options.path)
    from feedmill.samples.open import open as open_dataset

    start, sheet = options.start, options.sheet
    dataset = open_dataset(path, split=options.split, **options.description())
    indices = range(start, min(start + options.count, len(dataset)))
    if not len(dataset) and dataset.split is not None:
        sizes = ", ".join(f"{name} {size:,}" for name, size in dataset.splits.items())
        raise NotFound(
            f"the split {dataset.split!r} is empty (samples: {sizes})",
            file=path,
            kind="no-such-sample",
            fix="Choose another split with --split, or run 'feedmill prepare' with another --split-ratio.",
        )
    if not indices:
        raise NotFound(
            f"there is no sample {start:,}: the dataset has {len(dataset):,} samples",
            file=path,
            kind="no-such-sample",
            fix="Sample numbers start at 0.",
        )
    samples = dataset.read(indices)
    shown = [as_shown(dataset.locate(i), sample, dataset) for i, sample in zip(indices, samples, strict=True)]
    if sheet is not None:
        _write_sheet(samples, [sample["key"] for sample in shown], os.fspath(sheet))
    return PreviewReport(path, shown, None if sheet is None else str(sheet))


def as_shown(
    source: Any, sample: Any, dataset: Dataset | None = None, span: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return a sample as text: key, location, and each part; of token data also the ``text``.

    Args:
        dataset: The dataset of the sample.
        span: Show the text of tokens ``[first, end)`` only.
    """
    where = {"file": source.file, "offset": source.offset, "length": source.length, "index": source.index}
    ragged = getattr(type(sample), "ragged", ())  # arrays of any shape that are not pictures
    shown = {LOSS_MASK: _share, **dict.fromkeys(ragged, as_numbers)}
    parts = {name: shown.get(name, as_text)(value) for name, value in _parts(sample)}
    if dataset is not None and "input_ids" in parts and "text" not in parts:
        text = token_text(dataset, sample, span)
        parts |= {"text": text} if text else {}
    return {"key": source.key, "source": where, "parts": parts}


def token_text(dataset: Dataset, sample: Any, span: tuple[int, int] | None = None, *, lines: int = MAX_LINES) -> str:
    """Return a sample of token data as text, or why there is none; empty for other data.

    Args:
        span: Only tokens ``[first, end)``.
        lines: Maximum number of lines.
    """
    if not provided("has_tokens")(dataset):
        return ""
    try:
        text = printable(provided("row_text")(dataset, sample, span))
    except FeedmillError as error:
        unknown = error.kind == "no-tokenizer"  # the error names an option that only 'decode' has
        reason = (
            "no manifest names the tokenizer; 'feedmill tokens decode --tokenizer' takes one" if unknown else str(error)
        )
        return f"(not decoded: {reason})"
    rows = [row for line in text.splitlines() for row in wrap(line, MAX_WIDTH, replace_whitespace=False) or [""]]
    return cut("\n".join(rows), lines, MAX_WIDTH)


def _share(mask: Any) -> str:
    """Return a loss mask as text: how much of it is in the loss, and its ranges."""
    if not (isinstance(mask, np.ndarray) and mask.ndim == 1 and mask.dtype == bool):
        return as_text(mask)
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2).tolist()
    ranges = ", ".join(f"{first} to {stop - 1}" for first, stop in edges[:_RANGES])
    more = ", ..." if len(edges) > _RANGES else ""
    return f"{int(mask.sum()):,} of {len(mask):,} tokens in the loss" + (f" ({ranges}{more})" if edges else "")


def _parts(sample: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sample's own fields in order. A field that cannot be decoded yields the reason instead."""
    from feedmill.samples.types import named_fields

    fields = named_fields(sample)
    if fields is None:
        fields = {"sample": sample}
    for name in fields:
        if not name.startswith("__"):
            try:
                yield name, fields[name]
            except FeedmillError as error:
                yield name, f"(not decoded: {error})"


def _write_sheet(samples: list[Any], keys: list[str], path: str) -> None:
    from feedmill.samples.sheet import as_image, contact_sheet
    from feedmill.samples.types import DetectionSample
    from feedmill.samples.vision import drawn

    images, captions = [], []
    for sample, key in zip(samples, keys, strict=True):
        if isinstance(sample, DetectionSample):
            image = as_image(sample.image)
            images += [] if image is None else [drawn(image, sample)]
            captions += [] if image is None else [key]
            continue
        for _, value in _parts(sample):
            for item in value if isinstance(value, list | tuple) else [value]:
                image = as_image(item)
                if image is not None:
                    images.append(image)
                    captions.append(key)
    if not images:
        raise ConfigError("none of these samples has an image", file=path, fix="Remove --sheet.")
    contact_sheet(images, captions, path)
