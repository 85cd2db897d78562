"""Provide Dolma's import names while a user's module with taggers is loaded.

Imports like ``from dolma import add_tagger, BaseTagger`` import the classes of `feedmill.curation.plugins`. The names
exist only while the module is loaded. During that time they hide an installed Dolma.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from feedmill.curation import fasttexts, plugins
from feedmill.curation.documents import Row, RowWithMetadata


def _contents() -> dict[str, dict[str, Any]]:
    data = {
        name: getattr(plugins, name) for name in ("Document", "DocumentWithMetadata", "DocResult", "Span", "TextSlice")
    }
    taggers = {name: getattr(plugins, name) for name in ("BaseTagger", "BaseTaggerWithMetadata")}
    fasttext = {
        "BaseFastTextTagger": fasttexts.BaseFastTextTagger,
        "Prediction": fasttexts.Prediction,
    }
    splitters = {name: getattr(plugins, name) for name in ("split_paragraphs", "split_sentences", "split_words")}
    names = {"add_tagger": plugins.add_tagger, "TaggerRegistry": plugins.TaggerRegistry}
    specs = {"InputSpec": Row, "InputSpecWithMetadata": RowWithMetadata, "TaggerOutputDictType": dict}
    return {
        "dolma": {**data, **taggers, **names, "BaseFastTextTagger": fasttexts.BaseFastTextTagger},
        "dolma.core": {},
        "dolma.core.data_types": {**data, **specs},
        "dolma.core.taggers": {**taggers, **data},
        "dolma.core.ft_tagger": {**fasttext, "TextSlice": plugins.TextSlice},
        "dolma.core.registry": {"TaggerRegistry": plugins.TaggerRegistry},
        "dolma.core.loggers": {"get_logger": logging.getLogger},
        "dolma.core.utils": splitters,
        "dolma.taggers": {},
    }


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Return a context in which ``import dolma`` imports Feedmill's classes."""
    before = {name: module for name, module in sys.modules.items() if name == "dolma" or name.startswith("dolma.")}
    for name in before:
        del sys.modules[name]
    modules: dict[str, ModuleType] = {}
    for name, content in _contents().items():
        module = ModuleType(name, "Dolma's names for Feedmill's classes.")
        module.__dict__.update(content)
        module.__path__ = []
        modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == "dolma" or name.startswith("dolma.")]:
            del sys.modules[name]
        sys.modules.update(before)
