"""The proof of a conversion: what was compared, stored beside the destination.

``.feedmill/convert.json`` in a folder, ``.feedmill/convert.<name>.json`` beside a file. For each output a digest of the
hashes of its samples, in their order; the hash of a sample (xxh3-128) is of its key and all its parts. Where `verified`
is true, these hashes were computed of what was read from the source, and again of what the destination's own reader
gave, and were the same.
"""

from __future__ import annotations

import msgspec

from feedmill.converting.job import Bad
from feedmill.errors import FeedmillError
from feedmill.storage import Store, open_store, split_url

VERSION = 1


class Proof(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        source, source_format: what was read.
        format: what was written.
        samples: in both.
        verified: whether the destination was read back.
        digest: of all samples in order.
        skipped, skipped_examples: samples of the source that were left out.
        losses: what the format had no place for.
        outputs, digests: path and samples of each output, and the digest of its samples.
        files: all files of the destination.
        job: a hash of what was done: the same command on the same source has the same one.
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
    job: str = ""
    version: int = VERSION


def proof_place(name: str) -> str:
    """Return where the proof of a file lies in its folder; of the folder itself where the name is empty."""
    return f".feedmill/convert.{name}.json" if name else ".feedmill/convert.json"


def write_proof(store: Store, name: str, proof: Proof) -> None:
    """Write the proof of a file in the store, or of all of it."""
    store.write_bytes(proof_place(name), msgspec.json.format(msgspec.json.encode(proof), indent=1))


def find_proof(url: str) -> Proof | None:
    """Return the proof of what lies at a path or URL, a folder or a file; None if there is none."""
    folder, name = split_url(url)
    try:
        return (read_proof(open_store(folder), name) if name else None) or read_proof(open_store(url), "")
    except FeedmillError:
        return None


def read_proof(store: Store, name: str) -> Proof | None:
    """Return the proof beside a file or in a folder; None if there is none, or none that this release understands."""
    if not store.exists(proof_place(name)):
        return None
    try:
        found = msgspec.json.decode(store.read(proof_place(name)), type=Proof)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.version == VERSION else None
