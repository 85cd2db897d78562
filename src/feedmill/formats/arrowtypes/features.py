"""The features of `datasets` in the metadata of a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedmill.errors import DataError

HUGGINGFACE = b"huggingface"
"""Key of a schema's metadata that has the features of `datasets` as JSON."""


def features_of(schema: Any, file: str | None) -> Mapping[str, Any]:
    """Return column -> feature, as `datasets` wrote them into the schema's metadata; empty if it did not."""
    stored = (schema.metadata or {}).get(HUGGINGFACE)
    if stored is None:
        return {}
    try:
        found = json.loads(stored)
        info = found.get("info") or {}
        features = info.get("features") or {}
        if isinstance(features, dict):
            return features
    except (ValueError, AttributeError):
        pass
    raise DataError(
        "its metadata 'huggingface' is not what 'datasets' writes, so the types of its columns are not known",
        file=file,
        kind="bad-info",
        fix="Write it again with 'datasets', or without this metadata.",
    )
