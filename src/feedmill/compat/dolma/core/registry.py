"""Dolma's registries."""

from feedmill.curation.plugins import BaseRegistry, TaggerRegistry

__all__ = ["BaseRegistry", "TaggerRegistry"]
