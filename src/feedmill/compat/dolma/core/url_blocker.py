"""Dolma's engine for rules of ad blockers."""

from feedmill.curation.taggers.urls import UrlBlocker

__all__ = ["UrlBlocker"]
