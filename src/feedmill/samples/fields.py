"""The named fields of a sample, whatever kind of sample it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def named_fields(sample: Any) -> Mapping[str, Any] | None:
    """Fields by name of a mapping (`Sample`, crude dict) or a dataclass, not copied; None where there are no names.

    A `Sample` comes back as it is, so its parts are still decoded only when asked for.
    """
    if isinstance(sample, Mapping):
        return sample
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return None
