"""Folders of img2dataset: shards with statistics, as tars, Parquet or files."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from feedmill.formats.format import Format
from feedmill.storage import Store

STATS = re.compile(r"(\d{5,})_stats\.json")

IMG2DATASET = Format(
    "img2dataset",
    "img2dataset folder",
    "samples",
    open="feedmill.formats.img2dataset.dataset:open_found",
    is_folder="feedmill.formats.img2dataset:is_img2dataset",
    check="open",
    repair="tars",
    data=("Parquet", "tars", "text", "media"),
    beside=(".json",),
)
FORMATS = (IMG2DATASET,)


def is_img2dataset(store: Store) -> str | None:
    """Return a mark if img2dataset wrote this folder, else None. Remote folders are not listed, only probed."""
    found = False
    if not store.is_local:
        found = any(store.exists(f"{number:05d}_stats.json") for number in range(2))
    else:
        with suppress(OSError):  # who lists the files below it reports that
            found = any(map(STATS.fullmatch, os.listdir(store.locate(""))))
    return "" if found else None
