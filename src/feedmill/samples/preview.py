"""Samples as text, and their images as a contact sheet: the work of ``feedmill preview``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.samples.text import as_text


@dataclass(frozen=True, slots=True)
class PreviewReport:
    """Samples as text.

    Attributes:
        path: the dataset.
        samples: of each, key, ``source`` (where it lies) and ``parts`` (name to text), as `as_shown` gives them.
        sheet: the picture that was written, or None.
    """

    path: str
    samples: list[dict[str, Any]]
    sheet: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {"path": self.path, "samples": self.samples, "sheet": self.sheet}


def preview(
    path: str,
    *,
    count: int = 3,
    start: int = 0,
    sheet: str | os.PathLike[str] | None = None,
    split: str | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trust: bool = False,
) -> PreviewReport:
    """Return samples as text: key, where they lie, and each part.

    Args:
        path: path or URL of any dataset.
        count, start: how many samples, and the number of the first one, from 0.
        sheet: write the samples' images as one picture here.
        split, dataset_config, split_config, trust: as of `feedmill.open`.

    Raises:
        NotFound: there is no sample of that number.
        ConfigError: a sheet is wanted of samples without an image.
    """
    from feedmill.samples.open import open as open_dataset

    dataset = open_dataset(path, split=split, dataset_config=dataset_config, split_config=split_config, trust=trust)
    indices = range(start, min(start + count, len(dataset)))
    if not indices:
        raise NotFound(
            f"there is no sample {start:,}, the dataset has {len(dataset):,}",
            file=path,
            kind="no-sample",
            fix="Samples count from 0.",
        )
    samples = dataset.read(indices)
    shown = [as_shown(dataset.locate(i), sample) for i, sample in zip(indices, samples, strict=True)]
    if sheet is not None:
        _write_sheet(samples, [sample["key"] for sample in shown], Path(sheet))
    return PreviewReport(path, shown, None if sheet is None else str(sheet))


def as_shown(source: Any, sample: Any) -> dict[str, Any]:
    """Return a sample as text: key, where it lies, and each part."""
    where = {"file": source.file, "offset": source.offset, "length": source.length, "index": source.index}
    return {"key": source.key, "source": where, "parts": {name: as_text(value) for name, value in _parts(sample)}}


def _parts(sample: Any) -> Iterator[tuple[str, Any]]:
    """The sample's own fields, in order; one that can't be decoded gives the reason instead of ending the preview."""
    from feedmill.samples.fields import named_fields

    fields = named_fields(sample)
    if fields is None:
        fields = {"sample": sample}
    for name in fields:
        if not name.startswith("__"):
            try:
                yield name, fields[name]
            except FeedmillError as error:
                yield name, f"(not decoded: {error})"


def _write_sheet(samples: list[Any], keys: list[str], path: Path) -> None:
    from feedmill.samples.sheet import as_image, contact_sheet

    images, captions = [], []
    for sample, key in zip(samples, keys, strict=True):
        for _, value in _parts(sample):
            for item in value if isinstance(value, list | tuple) else [value]:
                image = as_image(item)
                if image is not None:
                    images.append(image)
                    captions.append(key)
    if not images:
        raise ConfigError("none of these samples has an image", file=str(path), fix="Leave --sheet out.")
    contact_sheet(images, captions, path)
