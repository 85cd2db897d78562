"""Dolma's command line and Python modules, implemented with Feedmill.

Programs and modules with taggers that import Dolma run with ``feedmill.compat.dolma`` in place of ``dolma``::

    from feedmill.compat.dolma import BaseTagger, add_tagger
    from feedmill.compat.dolma.core.data_types import DocResult, Document, Span

    python -m feedmill.compat.dolma.tokenizer.reshard -c reshard.yaml

Modules of this package have the names and signatures of Dolma's, and no logic of their own: the classes are those of
`feedmill.curation.plugins`. Those that only have names are rows of the table in `feedmill.compat.dolma.modules`. In
files that ``--tagger_modules`` names, ``import dolma`` means this package. docs/migration/dolma.md lists the
differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedmill.compat.dolma import core  # which gets modules of the table
from feedmill.compat.dolma.modules import TABLE
from feedmill.compat.modules import install
from feedmill.curation.fasttexts import BaseFastTextTagger
from feedmill.curation.plugins import (
    BaseTagger,
    BaseTaggerWithMetadata,
    DocResult,
    Document,
    DocumentWithMetadata,
    Span,
    TaggerRegistry,
    TextSlice,
    add_tagger,
)

__all__ = [
    "BaseFastTextTagger",
    "BaseTagger",
    "BaseTaggerWithMetadata",
    "DocResult",
    "Document",
    "DocumentWithMetadata",
    "Span",
    "TaggerRegistry",
    "TextSlice",
    "add_tagger",
    "core",
    "deduper",
    "mixer",
]

install(__name__, TABLE, {})


def deduper(config: Mapping[str, Any]) -> None:
    """Run ``dedupe`` with a configuration. Raises `FeedmillError`."""
    from feedmill.compat.dolma.dedupe import dedupe

    dedupe((), config, False)


def mixer(config: Mapping[str, Any]) -> None:
    """Run ``mix`` with a configuration. Raises `FeedmillError`."""
    from feedmill.compat.dolma.mix import mix

    mix((), config, False)
