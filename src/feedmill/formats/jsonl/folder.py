"""Read several JSONL files as one dataset: those of a folder at any depth, sorted by path, or those of a list.

A record's key is its number in the dataset, as in tables of several files. Lines are found as in one file. Compressed
files, one or several, are unpacked into the cache folder first (`feedmill.formats.unpacked`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.format import OpenRequest
from feedmill.formats.jsonl import PACKED
from feedmill.formats.jsonl.dataset import JsonlDataset, open_jsonl
from feedmill.formats.offsets import Extents, Int64s
from feedmill.formats.rows import RowsDataset
from feedmill.formats.sample import Sample
from feedmill.formats.unpacked import refuse_copies, unpacked_files, unpacked_name
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

_THREADS = 8
_ENDS = (".jsonl", *PACKED)


class JsonlFiles(RowsDataset):
    """The records of JSONL files, one file after another."""

    format = "documents"

    def __init__(self, store: Store, paths: Sequence[str], *, name: str, base: str | None = None) -> None:
        plain, self._unpacked = {path: (store, path) for path in paths}, ""
        packed = [path for path in paths if path.endswith(PACKED)]
        if packed:
            for path in packed:
                if unpacked_name(path) in plain:
                    refuse_copies(store.locate(path), store.locate(unpacked_name(path)))
            folder, names = unpacked_files(store, packed)
            self._unpacked = folder.url
            plain.update((path, (folder, name)) for path, name in zip(packed, names, strict=True))

        def opened(path: str) -> JsonlDataset:
            return open_jsonl(*plain[path], store.locate(path))

        threads = _THREADS if len(paths) > 1 else 0
        self._members = list(ordered_map(opened, paths, workers=threads, in_flight=64))
        super().__init__(store, name=name, files=paths, counts=np.array(list(map(len, self._members))), base=base)
        for member in self._members:
            if member.line_splits is not None:
                raise ConfigError(
                    f"it has splits of its own ({', '.join(member.splits)}), and several files are opened together",
                    file=member.url,
                    kind="unsupported",
                    fix="Open each file by its path, with its split: several are a 'concat' or a 'blend' in a recipe.",
                )

    def extents(self, indices: Indices) -> Sequence[Extents]:
        return () if self._unpacked else super().extents(indices)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **({"unpacked": self._unpacked} if self._unpacked else {})}

    def _lines(self, file: int, local: Int64s) -> list[bytes]:
        """Return records of a file without the blanks around them. `local`: int64[n]."""
        member = self._members[file]
        lines = member._lines_at(member._records(local))
        return [member._whole(record, line) for record, line in zip(local.tolist(), lines, strict=True)]

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        return [{"json": line} for line in self._lines(file, local)]

    def _row(self, file: int, local: int) -> dict[str, Any]:
        return {"json": self._members[file]._read_one(local).raw("json")}

    def _sample(self, file: int, local: int, row: dict[str, Any]) -> Sample:
        line, opened = row["json"], self._opened
        return Sample(
            self._key(file, local),
            line,
            {"json": (0, len(line))},
            lambda: self._source(file, local, ("json",)),
            opened.decode,
            opened.subflavors,
        )

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        if want != "parts" or self.view is not None or not len(indices):
            return super().read_batch(indices, want)
        places: list[tuple[int, int]] = [(0, 0)] * len(indices)
        lines = [b""] * len(indices)
        for number, which, local in self._by_file(indices):
            for place, at, line in zip(which.tolist(), local.tolist(), self._lines(number, local), strict=True):
                places[place], lines[place] = (number, at), line
        keys = [self._key(*place) for place in places]
        return Parts(keys, {"json": lines}, self.decode, lambda number: self._source(*places[number], ("json",)))

    def _extent(self, file: int, local: int) -> tuple[int, int]:
        if self.files[file].endswith(PACKED):
            return 0, self.store.stat(self.files[file]).size
        source = self._members[file].locate(local)
        return source.offset, source.length

    def _ranges(self, file: int, local: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        offsets = self._members[file]._offsets
        begins, ends = (np.asarray(offsets[at], np.int64) for at in (local, local + 1))
        return np.arange(len(local)), begins, ends

    def _stored(self, file: int, local: Int64s) -> Int64s:
        return self._members[file].stored_rows(local)[1]

    def stored_sizes(self, indices: Indices) -> Int64s:
        """Return the sizes of these lines in bytes, int64[n]."""
        sizes = np.zeros(len(indices), np.int64)
        for number, places, local in self._by_file(indices):
            sizes[places] = self._members[number].stored_sizes(local)
        return sizes

    def _file_hash(self, file: int) -> str:
        return self._members[file].fingerprint()

    @property
    def cost_fields(self) -> Sequence[str]:
        """Return the numeric fields of the first record."""
        return self._members[0].cost_fields

    def costs_advice(self, by: str) -> str:
        return self._members[0].costs_advice(by)

    def _find_costs(self, by: str) -> Int64s | None:
        return self._of_members(lambda member: member._find_costs(by))

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        return self._of_members(lambda member: member._find_values(by, texts=texts))

    def _of_members(self, find: Callable[[JsonlDataset], npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
        """Return what is found for all records; None if a file has none."""
        found = []
        for member in self._members:
            values = find(member)
            if values is None:
                return None
            found.append(values)
        return np.concatenate(found)

    def _media_advice(self) -> str:
        return self._members[0]._media_advice()


def is_folder(store: Store) -> str | None:
    """Return a mark if the JSON lines of a folder are its only data, and none of them are attributes, else None."""
    from feedmill.formats.unread_files import data_kind  # which knows all formats, this one too
    from feedmill.formats.vla.manifest import MANIFEST

    if store.exists(MANIFEST):
        return None
    for entry in store.files():
        if entry.path.startswith("attributes/") or (
            not entry.path.endswith(_ENDS) and data_kind(entry.path) is not None
        ):
            return None
    return ""


def open_found(wanted: OpenRequest) -> JsonlFiles:
    """Open a folder or several files.

    Raises:
        NotFound: there is no such file.
        DataError, ConfigError: as for one file; or a file has splits of its own.
    """
    store = wanted.store
    paths = [wanted.name] if wanted.name else list(wanted.names)
    paths = paths or [entry.path for entry in store.files(suffixes=_ENDS)]
    if missing := next((path for path in paths if not store.exists(path)), None):
        from feedmill.storage.codec import missing_file

        raise missing_file(store, missing)
    return JsonlFiles(store, paths, name=wanted.url, base=store.url if wanted.names else None)
