"""Tables of tar shards: where each sample of a dataset is.

`ScannedShards` scans the shards at opening; `feedmill.formats.energon.prepared` reads the offsets from an index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from feedmill.formats.offsets import Int64s, fingerprint_of_starts, hash_words
from feedmill.formats.sample import no_such_key
from feedmill.formats.tar.samples import REINDEX
from feedmill.storage import Store

if TYPE_CHECKING:
    from feedmill.formats.mediatable import MediaTable
    from feedmill.formats.tar.scan import Unread


class ShardTable(ABC):
    """The shards of a dataset, and the location of each sample.

    Attributes:
        store: store of the shards.
        shards: paths in the store, in the order of the dataset.
        counts: int64[shards], samples per shard.
        reindex: fix for errors about a shard that does not match the table.
        prepared: whether there is an index that may have media metadata.
        unread: shard number -> what reading the shard may miss. Empty for prepared shards: `prepare` reported it.
    """

    counts: Int64s
    reindex: str = REINDEX
    prepared: bool = False
    unread: Mapping[int, Unread] = {}

    def __init__(self, store: Store, shards: Sequence[str]) -> None:
        self.store, self.shards = store, list(shards)
        self._fingerprints: dict[int, str] = {}

    @abstractmethod
    def offsets(self, shard: int) -> Int64s:
        """Return the offset of each sample's first header, and the end of the last sample, int64[count + 1]."""

    def offsets_ahead(self, shard: int) -> Int64s:
        """Return the same to read ahead: the shard may be compared with the index later, when it is read."""
        return self.offsets(shard)

    def load(self, shards: Iterable[int], *, ahead: bool = False) -> None:  # noqa: B027 - most tables have them
        """Load the offsets of several shards at once, because each is a request to a remote store.

        Args:
            ahead: as in `offsets_ahead`.
        """

    def check_ahead(self, shards: Sequence[int], *, awaited: bool = False) -> None:  # noqa: B027 - most have no record
        """Compare shards whose bytes are being fetched with the index; reading them raises what is wrong.

        Args:
            awaited: only those for which none of these bytes can be compared, which takes requests of their own.
        """

    def load_ahead(self) -> None:  # noqa: B027 - most tables have them
        """See `Dataset.load_ahead`."""

    def copy_indices(self) -> None:  # noqa: B027 - most tables have none that are opened by path
        """See `Dataset.copy_indices`."""

    def keys(self, shard: int) -> list[str]:
        """Return the keys of a shard's samples; only tables of tars without an index of Energon's know them."""
        raise NotImplementedError

    def part_names(self, shard: int) -> frozenset[str]:  # noqa: ARG002
        """Return the names of a shard's parts, as far as such tables know them."""
        return frozenset()

    def remarks(self, folder: str) -> list[str]:
        """Return messages about samples in pieces that no shard shows by itself.

        Args:
            folder: the dataset, as the user gave it.
        """
        common, shards = self.apart()
        what = f"keys that are in several shards with different parts are read in pieces: {common:,} ({shards})."
        from feedmill.formats.tar.strays import regroup

        return [f"{what} {regroup(folder)}"] if common else []

    def apart(self) -> tuple[int, str]:
        """Return how many keys are in several shards that have no part in common, and such shards, as text."""
        shards: dict[frozenset[str], list[int]] = {}
        for number in range(len(self.shards)):
            shards.setdefault(self.part_names(number), []).append(number)
        for one, other in combinations(sorted(shards, key=sorted), 2):
            if one and other and not one & other:
                keys = [{key for number in shards[names] for key in self.keys(number)} for names in (one, other)]
                if common := len(keys[0] & keys[1]):
                    places = (
                        f"{self.shards[shards[names][0]]}: {', '.join(sorted(names)[:3])}" for names in (one, other)
                    )
                    return common, "; ".join(places)
        return 0, ""

    @abstractmethod
    def find(self, key: str) -> tuple[int, int]:
        """Return the shard number of a key, and the sample number in that shard. Raises `NotFound`."""

    def find_member(self, name: str) -> tuple[int, int, int] | None:  # noqa: ARG002
        """Return shard number, offset and size of the content that is probably the member's; None if unknown.

        The caller must compare the header before the content with the name.
        """
        return None

    def media_costs(self, by: str) -> Int64s | None:  # noqa: ARG002
        """Return the costs of all samples by their media, int64[sum of counts]; -1 if a media file's cost is unknown.

        None if the table has no media metadata. Raises `DataError`.
        """
        return None

    def media_table(self) -> MediaTable | None:
        """Return the sizes of the media of all samples; None if the table has no media metadata.

        Raises `DataError` if it is damaged.
        """
        return None

    def media_version(self) -> str | None:
        """Return a text that changes when the media metadata does; None if it has none."""
        return None

    @abstractmethod
    def fingerprint(self, first: int | None = None) -> str | None:
        """Return a short hash of shards, counts and data that changes with their content.

        Args:
            first: number of shards to cover, as if there were no others; the result is None if that cannot be
                determined. By default, all shards are covered.
        """

    def _fingerprint_of(self, starts: Sequence[Int64s]) -> str:
        """Return the same for the first shards, from the offsets of their samples and some blocks of their bytes."""
        known = self._fingerprints.get(len(starts))
        if known is None:
            shards = self.shards[: len(starts)]
            places = fingerprint_of_starts(zip(shards, starts, strict=True))
            from feedmill.formats.content import content_of_files

            known = hash_words([places, content_of_files(self.store, shards)])
            self._fingerprints[len(starts)] = known
        return known


def first_places(keys: Iterable[Iterable[str]]) -> dict[str, tuple[int, int]]:
    """Return for each key the number of its first shard, and its number there, from the keys of all shards."""
    places: dict[str, tuple[int, int]] = {}
    for shard, names in enumerate(keys):
        for number, name in enumerate(names):
            places.setdefault(name, (shard, number))
    return places


def with_remarks(unread: Iterable[Unread]) -> dict[int, Unread]:
    """Return what the shards with remarks miss, by number; given that of all shards."""
    return {number: each for number, each in enumerate(unread) if each.remarks()}


class ScannedShards(ShardTable):
    """The table of a folder without an index, created by scanning its tars at opening."""

    def __init__(self, store: Store, shards: Sequence[str]) -> None:
        super().__init__(store, shards)
        from feedmill.formats.tar.scan import Unread, in_file, scan_shard

        scans = [scan_shard(store, shard) for shard in self.shards]
        for shard, found in zip(self.shards, scans, strict=True):
            if found.problem is not None:
                raise in_file(found.problem, store.locate(shard))
        from feedmill.formats.tar.strays import samples_of

        clean = [samples_of(found) for found in scans]
        self.scans = [scan for scan, _ in clean]
        self.counts = np.asarray([len(found.keys) for found in self.scans], np.int64)
        self.unread = with_remarks(Unread.of(scan, strays) for scan, strays in clean)
        self._keys: dict[str, tuple[int, int]] | None = None

    def offsets(self, shard: int) -> Int64s:
        return self.scans[shard].starts

    def keys(self, shard: int) -> list[str]:
        return self.scans[shard].keys

    def part_names(self, shard: int) -> frozenset[str]:
        return frozenset(self.scans[shard].parts)

    def find(self, key: str) -> tuple[int, int]:
        if self._keys is None:
            self._keys = first_places(scan.keys for scan in self.scans)
        try:
            return self._keys[key]
        except KeyError:
            raise no_such_key(self.store.url, key) from None

    def fingerprint(self, first: int | None = None) -> str:
        return self._fingerprint_of([scan.starts for scan in self.scans[:first]])
