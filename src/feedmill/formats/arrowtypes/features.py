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
        content = json.loads(stored)
        info = content.get("info") or {}
        features = info.get("features") or {}
        if isinstance(features, dict):
            return features
    except (ValueError, AttributeError):
        pass
    raise DataError(
        "its metadata 'huggingface' is not what 'datasets' writes, so the types of its columns are not known",
        file=file,
        kind="bad-index",
        fix="Write it again with 'datasets', or without this metadata.",
    )


def with_features(schema: Any, features: Mapping[str, Any] | None) -> Any:
    """Return a schema, or None, with features in its metadata as `datasets` writes them, if it has none."""
    metadata = {} if schema is None else schema.metadata or {}
    if schema is None or not features or HUGGINGFACE in metadata:
        return schema
    stored = json.dumps({"info": {"features": dict(features)}})
    return schema.with_metadata({**metadata, HUGGINGFACE: stored.encode()})


def kinds_in(feature: Any) -> set[str]:
    """Return the names of a feature and of all features in it.

    >>> sorted(kinds_in({"feature": {"names": ["a"], "_type": "ClassLabel"}, "_type": "List"}))
    ['ClassLabel', 'List']
    """
    if isinstance(feature, Mapping):
        kind = feature.get("_type")
        return {kind for kind in (kind,) if isinstance(kind, str)}.union(*map(kinds_in, feature.values()))
    return set().union(*map(kinds_in, feature)) if isinstance(feature, list) else set()


def meaning(feature: Any) -> Any:
    """Return what a feature says beyond the type of its column: None for `Value`, and for lists and structures of it.

    Two columns of which this is the same have the same values, if their types unite.

    >>> meaning({"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"})
    >>> meaning([{"mode": None, "_type": "Image"}])
    {'list': {'mode': None, '_type': 'Image'}}
    """
    if isinstance(feature, list) and len(feature) == 1:
        feature = {"feature": feature[0], "_type": "List"}
    if not isinstance(feature, Mapping):
        return feature
    kind = feature.get("_type")
    if kind in ("List", "LargeList", "Sequence") and "feature" in feature:
        inner = meaning(feature["feature"])
        return None if inner is None else {"list": inner}
    if kind == "Value":
        return None
    if isinstance(kind, str):
        return dict(feature)
    fields = {name: meaning(each) for name, each in feature.items()}
    return {name: each for name, each in fields.items() if each is not None} or None
