"""The file of a Bloom filter: its lock, how it is opened or made, and its publication together with the attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from feedmill.curation.options import Dedupe
from feedmill.curation.records import digest as digest_of
from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.bloom import MOST_HASHES, BloomFilter, new_bloom, read_bloom
from feedmill.jobs.engine import is_alone
from feedmill.storage import LocalStore, Store

PATIENCE = 3.0
"""Seconds for which a part of a job array waits for a run that publishes the filter."""


@contextlib.contextmanager
def filter_in_place(store: LocalStore, name: str, options: Dedupe) -> Iterator[None]:
    """Hold the filter's lock, after publishing the filter that a killed run had filled.

    Parts of a job array share the lock: none of them publishes a filter.
    """
    with contextlib.ExitStack() as stack:
        busy, lock = "another process is writing this filter", f"{name}.feedmill-lock"
        if not is_alone() and not store.exists(next_name(name)):
            stack.enter_context(store.lock(lock, what=busy, file=options.bloom or name, patience=PATIENCE, shared=True))
        elif not options.read_only or store.exists(next_name(name)):
            try:
                stack.enter_context(store.exclusive(lock, what=busy, file=options.bloom or name))
                complete(store, name)
            except FeedmillError:
                if not options.read_only:  # a read-only run can use the filter as it is
                    raise
        yield


def open_filter(store: Store, name: str, options: Dedupe) -> BloomFilter:
    """Read the filter, or return a new one."""
    if store.exists(name):
        return read_bloom(store, name)
    if options.read_only and not options.items:
        raise NotFound("Bloom filter not found", file=store.locate(name), fix="Check the path.")
    return new_bloom(
        size=options.bloom_size,
        items=options.items,
        false_positives=options.false_positives or 0.0,
        most=None if options.defects else MOST_HASHES,
        seed=0,
    )


def next_name(name: str) -> str:
    """Return the name of a filled filter that is not published."""
    return f"{name}.feedmill-next"


def complete(store: LocalStore, name: str, committed: bool = False) -> None:
    """Publish a filled filter if the manifest of its attributes was written, else delete it."""
    filled = next_name(name)
    if not store.exists(filled):
        if store.exists(f"{filled}.of"):
            store.delete(f"{filled}.of")  # left by a run that was killed, or could not delete it
        return
    digest = digest_of(store, filled)
    if not committed and not (store.exists(f"{filled}.of") and store.read(f"{filled}.of").decode() == digest):
        store.delete(filled)
        return
    if committed:
        store.write_bytes(f"{filled}.of", digest.encode())
    store.rename(store, filled, name)
    store.delete(f"{filled}.of")
