"""Proof of a conversion: what was compared, stored next to the destination.

The proof is ``.feedmill/convert.json`` in a folder, or ``.feedmill/convert.<name>.json`` next to a file. For each
output it holds a digest of the hashes of its samples in order. The hash of a sample (xxh3-128) covers its key and all
its parts. If `verified` is true, the hashes of the source's samples equal those of the samples read back from the
destination with the reader of its format.
"""

from __future__ import annotations

import msgspec

from feedmill.converting.job import Bad
from feedmill.errors import FeedmillError
from feedmill.formats.converted import VERSION, proof_place, read_converted
from feedmill.storage import Store, open_store, split_url


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
