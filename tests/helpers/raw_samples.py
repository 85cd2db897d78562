"""Raw samples made without the formats room: from a dict, or from a tar through Python's `tarfile`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from feedmill.formats.sample import Decode, Sample, Source, split_name


def sample_of(
    parts: dict[str, bytes],
    *,
    key: str = "k0",
    index: int = 0,
    dataset: str = "ds",
    file: str = "0.tar",
    decode: Decode | None = None,
    subflavors: dict[str, Any] | None = None,
) -> Sample:
    block, spans = b"", {}
    for name, data in parts.items():
        spans[name] = (len(block), len(block) + len(data))
        block += data
    names = tuple(f"{key}.{name}" for name in parts)
    source = Source(dataset, file, 512, len(block), index, key, names)
    return Sample(key, block, spans, lambda: source, decode, subflavors)


def samples_of_tars(
    folder: Path, files: Iterable[str], *, decode: Decode | None, subflavors: dict[str, Any] | None = None
) -> list[Sample]:
    """All samples of some tars of a dataset, in stored order; regular members grouped at the first dot."""
    samples: list[Sample] = []
    for file in files:
        groups: dict[str, dict[str, bytes]] = {}
        with tarfile.open(folder / file) as tar:
            for member in tar:
                if member.isfile():
                    key, part = split_name(member.name)
                    groups.setdefault(key, {})[part] = tar.extractfile(member).read()
        for key, parts in groups.items():
            made = sample_of(
                parts,
                key=key,
                index=len(samples),
                dataset=folder.name,
                file=file,
                decode=decode,
                subflavors=subflavors,
            )
            samples.append(made)
    return samples
