"""A dataset of each kind that can be opened, of the same samples; for the contracts that all of them keep."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.formats.base import Dataset
from feedmill.formats.tar import index as shardindex
from feedmill.formats.tar.wids import write_wids
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.manifest import BoundsHeader, bounds_path, file_digest, table_hash
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.indexing.manifests import write_manifest
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from feedmill.storage.codec import packed
from helpers import foreign_datasets as sourcedata
from helpers import recordings
from helpers.tars import make_shards, write_tar
from helpers.zarr_arrays import write_cache

COUNTS = [5, 1, 9, 4]
TOTAL = sum(COUNTS)
FORMATS = ["prepared", "plain", "tar", "jsonl", "jsonl-unindexed", "documents", "pax", "vla", "vla-indexed"]
SOURCES: dict[str, Callable[[Path], Path]] = {
    "parquet": lambda root: sourcedata.parquet(root, COUNTS),
    "documents-packed": lambda root: _packed_lines(root),
    "arrow": lambda root: sourcedata.arrow(root, COUNTS),
    "huggingface": lambda root: sourcedata.huggingface(root, COUNTS),
    "mds": lambda root: sourcedata.mds(root, COUNTS),
    "mds-gz": lambda root: sourcedata.mds(root, COUNTS, gzip.compress, "gz"),
    "npz": lambda root: sourcedata.npz(root, COUNTS),
    "lerobot-v2": lambda root: sourcedata.lerobot_v2(root, COUNTS),
    "lerobot-v3": lambda root: sourcedata.lerobot_v3(root, COUNTS),
    "hdf5": lambda root: recordings.hdf5(root, COUNTS),
    "zarr": lambda root: recordings.replay_buffer(root / "x.zarr", COUNTS),
    "rlds": lambda root: recordings.rlds(root, COUNTS),
    "img2dataset-webdataset": lambda root: sourcedata.images(root, COUNTS, "webdataset"),
    "img2dataset-files": lambda root: sourcedata.images(root, COUNTS, "files"),
    "img2dataset-parquet": lambda root: sourcedata.images(root, COUNTS, "parquet"),
    "braces": lambda root: make_shards(root, COUNTS) / "shards/shard_{000..003}.tar",
    "glob": lambda root: make_shards(root, COUNTS) / "**/*.tar",
    "wids": lambda root: _wids(make_shards(root, COUNTS)),
    "kept-index": lambda root: make_shards(root, COUNTS),
}
"""Datasets of other tools, and plain tars named in other ways."""
REMOTE = (
    "parquet",
    "documents-packed",
    "arrow",
    "huggingface",
    "mds",
    "mds-gz",
    "npz",
    "lerobot-v2",
    "img2dataset-files",
    "wids",
)
PACKED = (
    "parquet",
    "documents-packed",
    "mds-gz",
    "npz",
    "lerobot-v2",
    "lerobot-v3",
    "hdf5",
    "zarr",
    "rlds",
    "img2dataset-parquet",
    "img2dataset-files",
    "levanter",
)
"""Those of which a part's bytes do not stand in the file as they are given."""
TOKENS = [
    "pbin",
    "pbin-foreign",
    "pbin-windows",
    "pbin-blocks",
    "ds",
    "ds-windows",
    "megatron",
    "dolma",
    "flat",
    "litdata",
    "levanter",
]
TOKEN_FILE = {
    "pbin": "2.pbin", "ds": "2.ds", "megatron": "all.bin", "dolma": "2.npy", "flat": "2.npy", "litdata": "2.bin",
    "levanter": "input_ids/data/c/0",
}  # fmt: skip
PARTS = dict.fromkeys(TOKENS, "input_ids")
OPTIONS = {
    "pbin-windows": {"seq_len": 3, "reuse_last_target": False},
    "pbin-blocks": {"block_size": 3},
    "ds-windows": {"seq_len": 2},
}
"""How the dataset that `make` makes will be opened; samples of tokens begin with their number."""


def make(root: Path, kind: str) -> str:
    """A dataset of `TOTAL` samples whose json part, or part n, says which sample it is of."""
    if kind in SOURCES:
        return str(SOURCES[kind](root))
    if kind.startswith("jsonl"):
        path = root / "lines.jsonl"
        path.write_text("".join(json.dumps({"n": n, "part": "json"}) + "\n" * (1 + n % 2) for n in range(TOTAL)))
        if kind == "jsonl":
            prepare(str(path), progress=False)
        return str(path)
    if kind == "documents":
        _lines(root, ("",) * len(COUNTS))
        return str(root)
    if kind in TOKENS:
        return make_tokens(root, kind)
    if kind == "tar":
        files = [(f"s{n:05d}.json", json.dumps({"n": n, "part": "json"}).encode()) for n in range(TOTAL)]
        return str(write_tar(root / "one.tar", files))
    if kind == "pax":  # every member with an extension header, as many writers make them
        for shard, low in enumerate(range(0, TOTAL, 7)):
            files = [
                (f"s{n:05d}.json", json.dumps({"n": n, "part": "json"}).encode())
                for n in range(low, min(low + 7, TOTAL))
            ]
            write_tar(root / f"{shard}.tar", files, form=2, mtime=1.5)
        return str(root)
    make_shards(root, COUNTS)
    if kind.startswith("vla"):
        write_manifest(str(root), progress=False)
    if kind == "prepared":
        prepare(str(root), split_ratio="1,0,0", progress=False)
    return str(root)


def _wids(root: Path) -> Path:
    shards = [f"shards/shard_{n:03d}.tar" for n in range(len(COUNTS))]
    assert write_wids(LocalStore(root), shards, "index.json", name="shards") == TOTAL
    return root / "index.json"


def make_tokens(root: Path, kind: str) -> str:
    """Documents of three tokens, each of which is the document's number."""
    store, tokens, lengths = LocalStore(root), np.repeat(np.arange(TOTAL), 3), np.full(TOTAL, 3)
    if kind == "megatron":
        with write_megatron(store, "all", "u2") as whole:
            whole.add(tokens, lengths)
        return str(root / "all.idx")
    parts = np.split(np.arange(TOTAL), np.cumsum(COUNTS)[:-1])
    if kind == "flat":
        for number, part in enumerate(parts):
            np.save(root / f"{number}.npy", np.repeat(part, 3).astype("<u2"))
            size = (root / f"{number}.npy").stat().st_size
            bounds = 3 * np.arange(len(part) + 1)
            header = BoundsHeader(
                258, len(part), size, file_digest(store, f"{number}.npy", size), 0, table_hash(bounds)
            )
            (root / bounds_path(f"{number}.npy")).write_bytes(header.pack() + bounds.astype("<i8").tobytes())
        return str(root)
    if kind == "litdata":
        chunks = []
        for number, part in enumerate(parts):
            begins = 4 * (len(part) + 2) + 6 * np.arange(len(part) + 1)
            head = np.concatenate(([len(part)], begins)).astype("<u4").tobytes()
            (root / f"{number}.bin").write_bytes(head + np.repeat(part, 3).astype("<u2").tobytes())
            chunks.append({"filename": f"{number}.bin", "chunk_size": len(part), "dim": 3 * len(part)})
        config = {"item_loader": "TokensLoader", "data_format": ["no_header_tensor:20"], "compression": None}
        (root / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
        return str(root)
    if kind == "levanter":
        rows = [[number] * 3 for number in range(TOTAL)]
        return str(write_cache(root, rows, dtype="uint16", per_file=16))
    write: dict[str, Any] = {
        "pbin": lambda n: write_pbin(store, f"{n}.pbin", 2),
        "ds": lambda n: write_ds(store, f"{n}.ds", 2, tokenizer_name="t"),
        "dolma": lambda n: write_dolma(store, f"{n}.npy", "u2"),
    }
    for number, part in enumerate(parts):
        with write[kind.partition("-")[0]](number) as out:
            out.add(np.repeat(part, 3), np.full(len(part), 3))
        if kind == "pbin-foreign":
            (root / bounds_path(f"{number}.pbin")).unlink()
    return str(root)


def opened(url: str, kind: str) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        if kind in ("kept-index", "vla-indexed"):  # also for tars as small as these
            patch.setattr(shardindex, "INDEX_FROM", 0)
        return open_dataset(url, **OPTIONS.get(kind, {}))


def _lines(root: Path, ends: Sequence[str]) -> None:
    """Write files of JSON lines, each with one of these suffixes of compression."""
    (root / "deep").mkdir()
    for file, (low, high) in enumerate(pairwise([0, *accumulate(COUNTS)])):
        lines = (json.dumps({"n": n, "part": "json"}) + "\n" * (1 + n % 2) for n in range(low, high))
        with (root / f"deep/{file}.jsonl{ends[file]}").open("wb") as raw, packed(raw, ends[file][1:]) as out:
            out.write("".join(lines).encode())


def _packed_lines(root: Path) -> Path:
    _lines(root, (".gz", ".zst", ".xz", ".bz2"))
    return root
