"""Detect folders of img2dataset."""

from __future__ import annotations

import re

from feedmill.storage import Store

STATS = re.compile(r"(\d{5,})_stats\.json")


def is_img2dataset(store: Store) -> str | None:
    """Return a mark if img2dataset wrote this folder, else None. Remote folders are not listed, only probed."""
    if not store.is_local:
        found = any(store.exists(f"{number:05d}_stats.json") for number in range(2))
    else:
        found = any(STATS.fullmatch(entry.path) for entry in store.files(suffixes=("_stats.json",)))
    return "" if found else None
