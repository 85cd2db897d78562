"""Access the named fields of any kind of sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.formats.sample import Sample


def named_fields(sample: Any) -> Mapping[str, Any] | None:
    """Return the fields by name of a mapping (`Sample`, crude dict) or a dataclass; None for anything else.

    Mappings are not copied, so the parts of a `Sample` are still decoded lazily.
    """
    if isinstance(sample, Mapping):
        return sample
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return None


def parts_together(samples: Sequence[Sample], name: str) -> Any:
    """Return the column of a part if its decoder decodes all samples at once, otherwise None."""
    waiting = [sample.undecoded(name) for sample in samples]
    if not waiting or waiting[0] is None or any(part is None or part[0] is not waiting[0][0] for part in waiting):
        return None
    together = getattr(waiting[0][0], "together", None)
    return None if together is None else together(name, [part[1] for part in waiting if part is not None])
