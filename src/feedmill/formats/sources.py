"""Datasets of other tools, as `sniff` asks for them: what marks each, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from feedmill.formats.base import Dataset
from feedmill.storage import Store

PARQUET, ARROW, HF, MDS, LEROBOT, IMG2DATASET, WIDS = (
    "parquet", "arrow", "huggingface", "mds", "lerobot", "img2dataset", "wids",
)  # fmt: skip
KINDS = (PARQUET, ARROW, HF, MDS, LEROBOT, IMG2DATASET, WIDS)
WITH_SPLITS = (HF, LEROBOT)


class Wanted(NamedTuple):
    """What to open: the store, one file of it or none, the name that the user gave, and a split."""

    store: Store
    name: str
    url: str
    split: str | None
    names: tuple[str, ...] = ()


def kind_of_folder(store: Store) -> str | None:
    """The kind of a folder that holds one of these datasets, by its marker files; None for any other."""
    from feedmill.formats.hf import is_hf
    from feedmill.formats.img2dataset import is_img2dataset
    from feedmill.formats.lerobot import is_lerobot
    from feedmill.formats.mds import is_mds

    marks: tuple[tuple[str, Callable[[Store], bool]], ...] = (
        (LEROBOT, is_lerobot), (MDS, is_mds), (HF, is_hf), (IMG2DATASET, is_img2dataset),
    )  # fmt: skip
    return next((kind for kind, marked in marks if marked(store)), None)


def open_source(kind: str, wanted: Wanted) -> Dataset:
    """A dataset of one of `KINDS`, undecoded. Raises as its format does."""
    store, url = wanted.store, wanted.url
    if kind == LEROBOT:
        from feedmill.formats.lerobot import open_lerobot

        return open_lerobot(store, url, wanted.split)
    if kind == HF:
        from feedmill.formats.hf import open_hf

        return open_hf(store, url, wanted.split)
    if kind == MDS:
        from feedmill.formats.mds import open_mds

        return open_mds(store, url)
    if kind == IMG2DATASET:
        from feedmill.formats.img2dataset import open_img2dataset
        from feedmill.formats.shardindex import plain_shards

        return open_img2dataset(store, url, lambda shards: plain_shards(store, shards))
    if kind == WIDS:
        from feedmill.formats.wids import open_wids

        return open_wids(store, wanted.name, url)
    from feedmill.formats.tables import open_arrow, open_parquet

    return open_arrow(store, wanted.name, url) if kind == ARROW else open_parquet(store, wanted.name, url, wanted.names)
