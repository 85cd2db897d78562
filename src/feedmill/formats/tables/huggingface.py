"""Read Hugging Face datasets on disk: those that `datasets` writes with ``save_to_disk``, and its cache.

Layout, saved::

    dataset_dict.json           {"splits": ["train", "test"]}: each split is a folder below; or, for one split:
    state.json                  {"_data_files": [{"filename": "data-00000-of-00002.arrow"}], "_split": ..., ...}
    dataset_info.json           features
    data-00000-of-00002.arrow   Arrow streams

Layout, cache (``<name>/<config>/<version>/<hash>/``)::

    dataset_info.json           {"dataset_name": ..., "splits": {"train": {"num_examples": ...}}, ...}
    <name>-train.arrow          or <name>-train-00000-of-00003.arrow

Files are memory-mapped. Columns of ``Image`` and ``Audio`` are decoded from their bytes; class labels are numbers,
their names are in `describe`. Saved datasets have the splits of their folder. Without a split, a dataset with several
splits opens all of them, one after another.

Rejected: rows selected by a separate index file (``_indices_data_files``, written before datasets 2.0), file names that
lead out of the folder, and a number of rows that differs from ``num_examples``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.columns import ArrowFile
from feedmill.formats.format import OpenRequest
from feedmill.formats.objects import invalid_file, read_object
from feedmill.formats.tables.dataset import TableDataset, open_columns
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
_AGAIN = "Save the dataset again."
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def is_hf(store: Store) -> bool:
    """Return whether a folder was written by `datasets`."""
    if store.exists(DICT) or store.exists(STATE):
        return True
    return store.exists(INFO) and next(_cached(store), None) is not None


class HfDataset(TableDataset):
    """The rows of one split, or of all splits."""

    format: ClassVar[str] = "huggingface"

    def __init__(
        self, store: Store, files: list[str], *, name: str, split: str | None, of: list[str], info: Mapping[str, Any]
    ) -> None:
        super().__init__(
            store,
            files,
            name=name,
            split=split,
            columns=open_columns(store, files, ArrowFile),
            features=info.get("features"),
        )
        self._split_of = np.asarray(of, object)

    @property
    def splits(self) -> Mapping[str, int]:
        names = dict.fromkeys(self._split_of.tolist())
        return {name: int(self.counts[self._split_of == name].sum()) for name in names if name}

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`; ``labels`` maps columns of classes to their names."""
        labels = {
            name: feature["names"]
            for name, feature in (self._features or {}).items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and "names" in feature
        }
        shards = {name: int((self._split_of == name).sum()) for name in self.splits}
        splits = {name: {"samples": count, "shards": shards[name]} for name, count in self.splits.items()}
        return {**super().describe(), "splits": splits, **({"labels": labels} if labels else {})}


def open_hf(store: Store, url: str, split: str | None = None) -> HfDataset:
    """Open a dataset of `datasets`. Raises `NotFound` for a missing split, `DataError`, `MissingExtra`."""
    if store.exists(DICT):
        names = _read(store, DICT).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _bad(store, DICT, "'splits' must be a list of names")
        parts = {name: _saved_files(store, f"{store.check_path(name)}/") for name in names}
        info = _read(store, f"{names[0]}/{INFO}") if names and store.exists(f"{names[0]}/{INFO}") else {}
    elif store.exists(STATE):
        named = _read(store, STATE).get("_split")
        parts = {named if isinstance(named, str) else "": _saved_files(store, "")}
        info = _read(store, INFO) if store.exists(INFO) else {}
    else:
        info = _read(store, INFO)
        parts = _cache_files(store, info)
    if split is not None and split not in parts:
        have = ", ".join(repr(name) for name in parts if name)
        raise NotFound(
            f"there is no split {split!r}",
            file=url,
            kind="no-such-split",
            fix=f"Splits are: {have}." if have else "It has no splits: open it without a split.",
        )
    chosen = {name: files for name, files in parts.items() if split in (None, name)}
    files = [file for found in chosen.values() for file in found]
    of = [name for name, found in chosen.items() for _ in found]
    dataset = HfDataset(store, files, name=url, split=split, of=of, info=info)
    _check_counts(dataset, info)
    return dataset


def _saved_files(store: Store, folder: str) -> list[str]:
    state = _read(store, f"{folder}{STATE}")
    if state.get("_indices_data_files"):
        raise DataError(
            "its rows are selected by a separate index file (_indices_data_files), which is not supported",
            file=store.locate(f"{folder}{STATE}"),
            kind="unsupported",
            fix="Load it with 'datasets' and save it again, which writes only the selected rows.",
        )
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(
        isinstance(f, dict) and isinstance(f.get("filename"), str) and f["filename"] for f in files
    ):
        raise _bad(store, f"{folder}{STATE}", "'_data_files' must name files")
    out = [folder + store.check_path(file["filename"]) for file in files]
    for path in out:
        if not store.exists(path):
            raise _gone(store, path, STATE)
    return out


def _cached(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (split, file) of a cache folder. The split follows the last hyphen, before any shard numbers."""
    for entry in store.files(suffixes=(".arrow",)):
        stem = _SHARD.sub("", entry.path.removesuffix(".arrow"))
        name, hyphen, split = stem.rpartition("-")
        if "/" not in entry.path and hyphen and name and not name.startswith("cache"):
            yield split, entry.path


def _cache_files(store: Store, info: Mapping[str, Any]) -> dict[str, list[str]]:
    known = info.get("splits")
    names = list(known) if isinstance(known, dict) else []
    out: dict[str, list[str]] = {name: [] for name in names}
    for split, path in _cached(store):
        if not names or split in out:
            out.setdefault(split, []).append(path)
    for name, files in out.items():
        if not files:
            raise _gone(store, f"*-{name}*.arrow", INFO)
    return out


def _check_counts(dataset: HfDataset, info: Mapping[str, Any]) -> None:
    known = info.get("splits")
    for name, count in dataset.splits.items():
        expected = (
            known[name].get("num_examples") if isinstance(known, dict) and isinstance(known.get(name), dict) else None
        )
        if isinstance(expected, int) and expected != count:
            raise DataError(
                f"the split {name!r} has {count} rows, but {INFO} has {expected}",
                file=dataset.url,
                kind="wrong-count",
                fix="A file is missing or truncated. Create the dataset again.",
            )


def _read(store: Store, path: str) -> dict[str, Any]:
    if not store.exists(path):
        raise _gone(store, path, "the layout of 'datasets'")
    content = read_object(store, path, kind="bad-index", fix=_AGAIN)
    if not isinstance(content.get("features") or {}, dict):
        raise _bad(store, path, "'features' must be an object")
    return content


def _bad(store: Store, path: str, why: str) -> DataError:
    return invalid_file(store, path, why, kind="bad-index", fix=_AGAIN)


def _gone(store: Store, path: str, said_by: str) -> FeedmillError:
    return NotFound(
        f"{said_by} requires this file, but it is missing",
        file=store.locate(path),
        kind="missing-shard",
        fix=copy_again(),
    )


def open_found(wanted: OpenRequest) -> HfDataset:
    """See `open_hf`."""
    return open_hf(wanted.store, wanted.url, wanted.split)


def mark(store: Store) -> str | None:
    """Return a mark if a folder was saved by `datasets`, else None."""
    return "" if is_hf(store) else None
