"""Dolma taggers that Feedmill does not provide, each with the reason for the error message."""

from __future__ import annotations

from feedmill.curation.registry import register_unavailable

register_unavailable(
    "it needs Presidio with a spaCy model, which runs code from the model",
    "pii_presidio_v1",
)
