"""Dolma's taggers as classes, to call on documents and to derive from. docs/tagging.md describes the taggers.

A class of `feedmill.compat.dolma.modules.CLASSES` is made when it is first used. Lists and models are not downloaded:
pass the path as `file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from feedmill.compat.dolma.modules import CLASSES
from feedmill.curation.plugin_types import DocumentWithMetadata
from feedmill.curation.plugins import BuiltInTagger
from feedmill.curation.taggers.urls import AdblockList, DomainList, UrlList


def __getattr__(name: str) -> Any:
    for classes in CLASSES.values():
        if name in classes:
            tagger = classes[name]
            about = {"__module__": __name__, "__doc__": f"Dolma's class of the tagger ``{tagger}``."}
            made = globals()[name] = type(name, (BuiltInTagger,), about, tagger=tagger)
            return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class BaseUrlTagger(BuiltInTagger):
    """Base class of taggers with lists of URLs in local files: set `BLOCKLIST_PATHS`."""

    BLOCKLIST_PATHS: ClassVar[Sequence[str]] = ()
    DOCUMENT = DocumentWithMetadata

    def __init__(self) -> None:
        self.inner = UrlList(*self.BLOCKLIST_PATHS)


class BaseDomainTagger(BaseUrlTagger):
    """Base class of taggers with lists of domains."""

    def __init__(self) -> None:
        self.inner = DomainList(*self.BLOCKLIST_PATHS)


class AdbUrlTagger(BaseUrlTagger):
    """Base class of taggers with rules of ad blockers."""

    def __init__(self) -> None:
        self.inner = AdblockList(*self.BLOCKLIST_PATHS)
