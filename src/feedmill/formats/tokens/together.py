"""Open token files of one format as one dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.format import Wanted
from feedmill.formats.tokens.base import TokenDataset, refuse_missing

COUNTS = ("sequences",)
"""Facts of a dataset that are numbers of something in its files, and add up."""


def open_files(wanted: Wanted, format: str, open_one: Callable[[Wanted], TokenDataset]) -> TokenDataset:
    """Return the dataset of a file or folder, or of a list of files in the given order."""
    if not wanted.names:
        if wanted.name:
            refuse_missing(wanted.store, wanted.name)
        return open_one(wanted)
    if wanted.files is not None:
        raise ConfigError("'files' is only for folders, found a list of files", fix="Remove it.")
    opened = []
    for name in wanted.names:
        refuse_missing(wanted.store, name)
        opened.append(open_one(wanted._replace(name=name, names=(), url=wanted.store.locate(name))))
    about: dict[str, Any] = {}
    for name in dict.fromkeys(name for dataset in opened for name in dataset.about):
        values = [dataset.about[name] for dataset in opened if name in dataset.about]
        if name in COUNTS:
            about[name] = sum(values)
            continue
        alike = all(value == values[0] for value in values)
        about[name] = values[0] if alike else list(dict.fromkeys(map(str, values)))
    shards = [shard for dataset in opened for shard in dataset.shards]
    return TokenDataset(wanted.store, shards, name=wanted.store.url, format=format, about=about)
