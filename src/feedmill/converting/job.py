"""The job of a conversion: its work folder (see `feedmill.jobs.work`), the replacement of an old result, and the proof.

The work folder holds 16 bytes per sample of each finished output (``000012.hashes``), the chunks that are joined to a
single file, and in ``new/`` the staged result that replaces an old one. On a local disk, an old result stays unchanged
until the new one is finished and verified, and published by renaming. If the process is killed while renaming, the next
process that opens or writes the destination finishes it. An object store cannot rename: there the old result is deleted
first.

The proof says what was compared. It is ``.feedmill/convert.json`` in a folder, or ``.feedmill/convert.<name>.json``
next to a file. For each output it holds a digest of the hashes of its samples in order. The hash of a sample (xxh3-128)
covers its key and all its parts. If `verified` is true, the hashes of the source's samples equal those of the samples
read back from the destination with the reader of its format.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.samples import shard_lineage
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.converted import VERSION, proof_place, read_converted
from feedmill.formats.jsonl.splits import splits_name
from feedmill.formats.tar.finished import finished_shards
from feedmill.jobs.engine import is_alone
from feedmill.storage import Entry, Store, open_store, split_url
from feedmill.storage.local import LocalStore
from feedmill.structs import decode_as
from feedmill.writing.shard import Shard
from feedmill.writing.work import OutputWork

VERB, PIECE = "convert", ".piece"
Hashes = npt.NDArray[np.uint8]
"""uint8[n, 16]: xxh3-128 of each sample, in order."""


class Bad(msgspec.Struct, frozen=True):
    """A skipped sample: its number in the source, its key if known, and the reason."""

    index: int
    key: str
    reason: str


def bad_sample(index: int, key: str, reason: str) -> Bad:
    """Return a `Bad` whose key and reason are valid Unicode: lone surrogates in a key may be why it is skipped."""
    key, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (key, reason))
    return Bad(index, key, reason)


class Done(msgspec.Struct, frozen=True):
    """A finished output.

    Attributes:
        number: number of the unit of work.
        path: path in the destination, or in the work folder for a chunk of a single file; empty if it has no samples.
        size, version: size in bytes and version of the file.
        samples: number of samples.
        bad: skipped samples.
        extra: data of the target format.
        hashes: xxh3 digest of the file of sample hashes, which is not synced.
        rows: ranges ``[begin, end)`` of the samples' numbers, see `Source.numbers`.
        shard: the finished `Shard` of a prepared folder. In the journal it is a unit of its own, and this is True.
    """

    number: int
    path: str
    size: int
    version: str
    samples: int
    bad: list[Bad] = []
    extra: dict[str, Any] = {}
    hashes: str = ""
    rows: list[tuple[int, int]] = []
    shard: Any = None

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of the samples in what the unit reads, int64[samples]."""
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in self.rows)])


class ConvertWork(OutputWork):
    """Work folder and journal of one conversion.

    Args:
        destination: path or URL.
        is_file: whether the destination is a file.

    Raises:
        DataError: ``job.json`` is invalid. Other errors are those of `Work`.
    """

    def __init__(self, destination: str, *, is_file: bool) -> None:
        self.destination = destination
        super().__init__(*place_of(destination, is_file=is_file))

    def identity(self) -> dict[str, Any]:
        """Return the identity of the unfinished conversion; empty if there is none."""
        found = dict(self.noted.get("identity", {}))
        return found if found.pop("verb", None) == VERB else {}

    def refuse_present(self, *, overwrite: bool) -> None:
        """Raise `ConfigError` if the destination is not empty. Called before planning, which may read all samples."""
        if self.job is None and (overwrite or read_proof(self.target, self.name) is None):
            self._present(overwrite=overwrite)

    def is_staged(self, *, overwrite: bool) -> bool:
        """Return whether the conversion replaces an old result on a local disk."""
        if self.job is not None:
            return bool(self.job.get("staged"))
        return overwrite and self.target.is_local and bool(self._present(overwrite=True))

    def start(self, job: Mapping[str, Any], *, overwrite: bool) -> None:
        """Prepare the destination: continue an unfinished conversion, or record which old files are replaced.

        Args:
            job: ``identity``, which determines the output bytes; ``writes``, see `Target.writes`; ``staged``.
            overwrite: whether to replace an old result, or an unfinished conversion with other options.

        Raises:
            ConfigError: the destination has other files, or another job is unfinished there.
        """
        identity = {"verb": VERB, **job["identity"]}
        with self.beginning():
            if self.is_of(identity):
                self.begin(identity)
            else:
                if self.job is not None:
                    if not overwrite or self.noted["identity"].get("verb") != VERB:
                        raise self.other_job()
                    self._discard()
                replaced = self._present(overwrite=overwrite)
                self.begin(identity, writes=job["writes"], staged=job["staged"], replaced=replaced)
            if not self.name:
                self.clear_away()
                if isinstance(self.target, LocalStore) and is_alone():
                    self.target.sweep()

    def finish_interrupted(self) -> bool:
        """Finish a conversion that was killed while publishing, and clear its work folder.

        Returns:
            whether there was one: if so, nothing is left to do.
        """
        if not self.roll_forward():
            return False
        self.clear()
        return True

    def publish_proven(self, proof: Proof) -> None:
        """Write the proof of the finished result, and replace the old result if there is one."""
        write_proof(self.outputs, self.name, proof)
        if self.noted.get("staged"):
            self.publish_staged([*proof.files, *proof.lineages, proof_place(self.name)])

    def _discard(self) -> None:
        """Delete all files that an unfinished conversion has written; the destination had no others when it began."""
        if self.noted.get("staged"):  # its files are in the work folder, and the old result is unchanged
            return
        paths, pattern = self.noted.get("writes", ((), ""))
        with contextlib.suppress(LookupError):
            paths = [*paths, *(e.path for e in self.target.files() if pattern and re.fullmatch(pattern, e.path))]
        for path in (*self.noted.get("replaced", ()), *paths):
            self.target.delete(path)

    def _present(self, *, overwrite: bool) -> list[str]:
        """Return the files of an earlier conversion at the destination. Raises `ConfigError` if there are others."""
        store, name = self.target, self.name
        if name:
            there = [path for path in (name, name + ".idx", splits_name(name)) if store.exists(path)]
            if there and not overwrite:
                raise self._exists("the file already exists", "Name another file, or replace it with --overwrite.")
            return [*there, *(p for p in [proof_place(name), shard_lineage(name)] if store.exists(p))]
        try:
            there = [entry.path for entry in store.files()]
        except LookupError:
            return []
        proof = read_proof(store, "")
        known = {*proof.files, *proof.lineages} if proof is not None else set()
        others = [path for path in there if path not in known]
        if others:
            what = f"the destination has files that no conversion has written, such as {others[0]!r}"
            raise self._exists(what, "Name an empty folder.")
        if there and not overwrite:
            fix = "Name another folder, or replace it with --overwrite."
            raise self._exists("the destination is not empty", fix)
        return [*sorted(known), proof_place("")] if known else []

    def _exists(self, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=self.destination, kind="exists", fix=fix)

    def done(self, store: Store) -> dict[int, Done]:
        """Return the finished outputs by unit number, without those whose files have changed since."""
        found = {}
        units = self.units.read()
        shards = finished_shards(units)
        for facts in units.values():
            with contextlib.suppress(msgspec.MsgspecError, NotFound, KeyError):
                done = decode_as(facts, Done)
                entry = self._stat(store, done.path) if done.path else None
                same = entry is None or (entry.size, entry.version) == (done.size, done.version)
                if same and self._has_hashes(done):
                    shard = Shard(done.path, *shards[done.path]) if done.shard else None
                    found[done.number] = msgspec.structs.replace(done, shard=shard)
        return found

    def _has_hashes(self, done: Done) -> bool:
        if not self.place.is_local:  # an object store needs no sync
            return True
        return _digest(self.place.read(_name(done.number))) == done.hashes

    def _stat(self, store: Store, path: str) -> Entry:
        name = path.rpartition("/")[2]  # raises NotFound if another machine wrote the chunk
        return self.scratch.stat(name) if path.endswith(PIECE) else store.stat(path)

    def add(self, done: Done) -> None:
        """Record a finished output in the journal."""
        if done.shard is not None:
            self.add_shard(done.shard)
            done = msgspec.structs.replace(done, shard=True)
        self.units.add(str(done.number), msgspec.json.encode(done))

    def forget(self, number: int) -> None:
        """Remove an output from the journal, so that it is written again: verification found it to differ."""
        self.units.add(str(number), b"")

    def hashes(self, number: int) -> Hashes:
        """Return the hashes of the samples of an output. uint8[samples, 16]."""
        return read_hashes(self.place.url, number)


def place_of(destination: str, *, is_file: bool) -> tuple[Store, str]:
    """Return the store of a destination and, for a file, its name in the store; otherwise an empty name."""
    if not is_file:
        return open_store(destination), ""
    folder, name = split_url(destination)
    return open_store(folder), name


def write_hashes(notes: str, number: int, hashes: bytes) -> str:
    """Write the hashes of an output to the work folder `notes` (a URL), unsynced, and return their digest.

    Called by the process that wrote the output. After a power failure the digest shows whether they were lost.
    """
    open_store(notes).write_note(_name(number), hashes)
    return _digest(hashes)


def read_hashes(notes: str, number: int) -> Hashes:
    """Return what `write_hashes` wrote. uint8[samples, 16]."""
    return np.frombuffer(open_store(notes).read(_name(number)), np.uint8).reshape(-1, 16)


def _name(number: int) -> str:
    return f"{number:06d}.hashes"


def _digest(hashes: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(hashes)


class Proof(msgspec.Struct, frozen=True):
    """The stored proof; see the module.

    Attributes:
        source, source_format: path or URL of the source, and its format.
        format: format of the destination.
        samples: number of samples in both.
        verified: whether the destination was read back.
        digest: digest of all samples in order.
        skipped, skipped_examples: number of skipped samples of the source, and the first of them.
        losses: what the format could not store.
        outputs, digests: path and samples of each output, and the digest of its samples.
        files: all data files of the destination, with their indices.
        lineages: the lineages of the outputs, see `feedmill.documents.lineage`.
        job: hash of the conversion; equal for the same command on the same source.
    """

    source: str
    source_format: str
    format: str
    samples: int
    verified: bool
    digest: str
    skipped: int
    skipped_examples: list[Bad]
    losses: list[str]
    outputs: list[tuple[str, int]]
    digests: list[str]
    files: list[str]
    lineages: list[str] = []
    job: str = ""
    version: int = VERSION


def write_proof(store: Store, name: str, proof: Proof) -> None:
    """Write the proof of a file in the store, or of the whole store if `name` is empty."""
    store.write_bytes(proof_place(name), msgspec.json.format(msgspec.json.encode(proof), indent=1))


def find_proof(url: str) -> Proof | None:
    """Return the proof of the folder or file at a path or URL; None if there is none."""
    folder, name = split_url(url)
    try:
        return (read_proof(open_store(folder), name) if name else None) or read_proof(open_store(url), "")
    except FeedmillError:
        return None


def read_proof(store: Store, name: str) -> Proof | None:
    """Return the proof beside a file or in a folder; None if there is none that this release can read."""
    return read_converted(store, name, Proof)
