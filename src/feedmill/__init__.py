"""Feedmill: the data side of training a foundation model.

    import feedmill as fm

    ds = fm.open("coco/")                    # any format; sniffed
    ds.read([3, 14, 15])                     # in bulk; ds[3] is the short form
    plan = fm.Recipe.load("recipe.yaml").plan()
    loader = fm.Loader(plan, batch_size=32, rank=0, world_size=8)
    for batch in loader: ...

Names are loaded when first used, so that ``import feedmill`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "ConfigError": "errors",
    "DataError": "errors",
    "Dataset": "formats.base",
    "FeedmillError": "errors",
    "MissingExtra": "errors",
    "NotFound": "errors",
    "Plan": "planning.plan",
    "Recipe": "planning.recipe",
    "Sample": "formats.base",
    "Source": "formats.base",
    "StorageError": "errors",
    "TrustError": "errors",
}

if TYPE_CHECKING:
    from feedmill.errors import (
        ConfigError,
        DataError,
        FeedmillError,
        MissingExtra,
        NotFound,
        StorageError,
        TrustError,
    )
    from feedmill.formats.base import Dataset, Sample, Source
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipe import Recipe

__all__ = [
    "ConfigError",
    "DataError",
    "Dataset",
    "FeedmillError",
    "MissingExtra",
    "NotFound",
    "Plan",
    "Recipe",
    "Sample",
    "Source",
    "StorageError",
    "TrustError",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"feedmill.{_HOME[name]}"), name)
    raise AttributeError(f"module 'feedmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
