"""Replacing the spans of many documents at once: packed spans, and texts as JSON that are never decoded.

`Attributes` packs the spans that a stream replaces, and texts stay JSON where no expression looks at them. A document
that has it otherwise (spans of its own, or a text with escapes that are not ours) goes one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any

import msgspec
import numpy as np

from feedmill.curation.mix.config import Stream
from feedmill.curation.mix.needs import needed_attributes, whole_attribute
from feedmill.curation.mix.spans import bounds
from feedmill.documents.rows import dump
from feedmill.kernels.jsonl.rawtexts import cut
from feedmill.kernels.jsonl.spanlists import choose

Document = dict[str, Any]


Done = tuple[int, int, bool]
"""Of a document: spans replaced and passed over, and whether the text is long enough for sure."""


def texts_unseen(stream: Stream) -> bool:
    """Return whether no expression of the stream looks at texts."""
    return needed_attributes(stream) is not None


class Bulk:
    """The replacements of a stream.

    Args:
        exact: leave spans to others that Dolma treats in a way of its own.
    """

    def __init__(self, stream: Stream, names: Sequence[str], *, exact: bool) -> None:
        self._names, self._exact = names, exact
        self._bounds = [bounds(one) for one in stream.replacements]
        self._new = [dump(one.text)[1:-1] for one in stream.replacements]
        self._enough = min(stream.min_text_length, 1 << 62)  # what the kernel counts with has 64 bits

    @classmethod
    def of(cls, stream: Stream, *, exact: bool) -> Bulk | None:
        """None if the stream's replacements need more than this."""
        names = [whole_attribute(one.span) for one in stream.replacements]
        constant = all("{}" not in one.text and not one.text.startswith("$") for one in stream.replacements)
        if not constant or None in names or not texts_unseen(stream):
            return None
        return cls(stream, [name for name in names if name is not None], exact=exact)

    def replace(self, documents: Sequence[Document]) -> list[Done | None]:
        """Change the texts, in place; None for documents that are as they were."""
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
        told = zip(
            np.diff(spans.first).tolist(), found.passed.tolist(), found.sound.tolist(), found.odd.tolist(), strict=True
        )
        data = found.data
        for n, (low, high), (count, passed, long, odd) in zip(at, pairwise(found.bounds), told, strict=True):
            if not (odd and self._exact):
                documents[n]["text"] = msgspec.Raw(data[low:high])
                done[n] = count - passed, passed, long
        return done


def _spans(document: Document, name: str) -> Any:
    """Return the spans of this name, packed if they are what we expect."""
    attributes = document.get("attributes")
    return attributes.get(name, b"") if type(attributes) is dict else None
