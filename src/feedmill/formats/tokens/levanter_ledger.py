"""The ledger of a Levanter cache: how many rows it has, of which sources, and whether it is finished."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from feedmill.errors import ConfigError, DataError
from feedmill.formats.objects import read_object
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

LEDGER = "shard_ledger.json"
_AGAIN = copy_again("the cache", "build it again with Levanter")
_LARGEST = 1 << 26


class Ledger(NamedTuple):
    """Content of a ledger.

    Attributes:
        rows: number of rows (documents).
        sources: number of source shards.
        counts: the counts of fields that the ledger has, mostly none.
        metadata: what the processor that wrote the rows says about itself.
    """

    rows: int
    sources: int
    counts: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def about(self) -> dict[str, Any]:
        """Facts for `info`."""
        name = self.metadata.get("tokenizer")
        return {
            **({"tokenizer": name} if isinstance(name, str) else {}),
            "source_shards": self.sources,
            **({"field_counts": self.counts} if self.counts else {}),
            **({"processor": self.metadata} if self.metadata else {}),
        }


def mark(store: Store) -> str | None:
    """Return "" if the folder has the ledger of a cache, else None."""
    if not store.exists(LEDGER) or store.stat(LEDGER).size > _LARGEST:
        return None
    data = store.read(LEDGER)
    return "" if b'"total_num_rows"' in data and b'"is_finished"' in data else None


def read_ledger(store: Store) -> Ledger:
    """Read the ledger of a folder.

    Raises:
        ConfigError: the cache is not finished.
        DataError: it is no ledger, or contradicts itself.
    """
    content = read_object(store, LEDGER, kind="bad-index", fix=_AGAIN)
    where = store.locate(LEDGER)
    rows, sources = content.get("total_num_rows"), content.get("shard_rows")
    if content.get("is_finished") is not True:
        raise ConfigError(
            f"the cache is not finished: {_count(rows)} rows of {len(content.get('finished_shards') or [])} of"
            f" {len(sources or {})} source shards are written",
            file=where,
            kind="truncated",
            fix="Let Levanter finish it: start the program that builds it again.",
        )
    numbers = list(sources.values()) if isinstance(sources, dict) else []
    if not isinstance(rows, int) or not isinstance(sources, dict) or not all(isinstance(n, int) for n in numbers):
        raise DataError(
            f"the ledger has no total_num_rows and shard_rows as numbers (found {orjson.dumps(rows)[:80].decode()})",
            file=where,
            kind="bad-index",
            fix=_AGAIN,
        )
    if rows < 0 or sum(numbers) != rows:
        raise DataError(
            f"the ledger has {rows:,} rows in total, but {sum(numbers):,} of its source shards",
            file=where,
            kind="bad-index",
            fix=_AGAIN,
        )
    metadata = content.get("metadata")
    processor = metadata.get("preprocessor_metadata") if isinstance(metadata, dict) else None
    counts = content.get("field_counts")
    return Ledger(
        rows,
        len(sources),
        counts if isinstance(counts, dict) else {},
        processor if isinstance(processor, dict) else {},
    )


def _count(rows: Any) -> str:
    return f"{rows:,}" if isinstance(rows, int) else "an unknown number of"
