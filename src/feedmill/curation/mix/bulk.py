"""Replace the spans of many documents at once, with packed spans and texts that stay JSON and are never decoded.

`Attributes` packs the spans that a stream replaces, and texts stay JSON if no expression reads them. Other documents
(with spans of their own, or with escapes in the text that Feedmill does not write) are processed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any

import msgspec
import numpy as np

from feedmill.curation.mix.attributes import needed_attributes, whole_attribute
from feedmill.curation.mix.config import Stream
from feedmill.curation.mix.spans import bounds
from feedmill.documents.rows import dump
from feedmill.kernels.jsonl.rawtexts import cut
from feedmill.kernels.jsonl.spanlists import choose

Document = dict[str, Any]


Done = tuple[int, int, bool]
"""Result of a document: spans replaced, spans skipped, and whether the text is certainly long enough."""


def texts_unseen(stream: Stream) -> bool:
    """Return whether no expression of the stream reads texts."""
    return needed_attributes(stream) is not None


class Bulk:
    """Replacements of a stream, for many documents at once.

    Args:
        exact: Do not change documents with spans that Dolma treats differently.
    """

    def __init__(self, stream: Stream, names: Sequence[str], *, exact: bool) -> None:
        self._names, self._exact = names, exact
        self._bounds = [bounds(replacement) for replacement in stream.replacements]
        self._new = [dump(replacement.text)[1:-1] for replacement in stream.replacements]
        self._enough = min(stream.min_text_length, 1 << 62)  # the kernel counts in 64 bits

    @classmethod
    def of(cls, stream: Stream, *, exact: bool) -> Bulk | None:
        """Return the bulk replacements of a stream, or None if they cannot be done in bulk."""
        names = [whole_attribute(replacement.span) for replacement in stream.replacements]
        constant = all(
            "{}" not in replacement.text and not replacement.text.startswith("$") for replacement in stream.replacements
        )
        if not constant or None in names or not texts_unseen(stream):
            return None
        return cls(stream, [name for name in names if name is not None], exact=exact)

    def replace(self, documents: Sequence[Document]) -> list[Done | None]:
        """Replace the spans in place. The result is None for documents that were not changed."""
        done: list[Done | None] = [None] * len(documents)
        at = [n for n, one in enumerate(documents) if type(one["text"]) is msgspec.Raw]
        columns = [[_spans(documents[n], name) for n in at] for name in self._names]
        if any(set(map(type, column)) != {bytes} for column in columns):
            good = [all(type(column[i]) is bytes for column in columns) for i in range(len(at))]
            at = list(compress(at, good))
            columns = [list(compress(column, good)) for column in columns]
        if not at:
            return done
        spans = choose(columns, self._bounds, len(at))
        found = cut([documents[n]["text"] for n in at], spans, self._new, self._enough)
        counts = zip(
            np.diff(spans.first).tolist(), found.passed.tolist(), found.sound.tolist(), found.odd.tolist(), strict=True
        )
        data = found.data
        for n, (low, high), (count, passed, long, odd) in zip(at, pairwise(found.bounds), counts, strict=True):
            if not (odd and self._exact):
                documents[n]["text"] = msgspec.Raw(data[low:high])
                done[n] = count - passed, passed, long
        return done


def _spans(document: Document, name: str) -> Any:
    """Return the spans of this name: bytes if they are packed, empty bytes if the document has none."""
    attributes = document.get("attributes")
    return attributes.get(name, b"") if type(attributes) is dict else None
