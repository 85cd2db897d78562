"""Preview of a conversion: its outputs and losses, reported before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from feedmill.errors import ConfigError
from feedmill.storage import canonical_location

SAMPLES_EACH = 10_000
"""Default number of samples per output."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Content or metadata that the destination cannot store.

    Attributes:
        what: what is lost or changed.
        content: whether it is part of samples, documents or tokens; otherwise it is metadata.
        fix: how to keep it.
        unread: whether the conversion does not read it, regardless of the destination.
    """

    what: str
    content: bool = False
    fix: str = ""
    unread: bool = False


@dataclass(slots=True)
class Preview:
    """Plan and losses of a conversion.

    Attributes:
        family: ``samples``, ``tokens`` or ``rows``.
        source, destination: paths or URLs.
        kind, to: formats.
        count: samples, documents or rows; None if unknown.
        outputs: planned data files.
        losses: what will be lost.
        names: renamed or re-encoded parts or columns: name -> new name or encoding.
    """

    family: str
    source: str
    destination: str
    kind: str
    to: str
    count: int | None = None
    outputs: int | None = None
    losses: list[Loss] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for ``--json``."""
        return asdict(self)

    def allow(self, *, allow_loss: bool) -> None:
        """Raise `ConfigError` if content would be lost and `allow_loss` is false."""
        lost = [loss for loss in self.losses if loss.content]
        if lost and not allow_loss:
            fix = " ".join(dict.fromkeys(loss.fix for loss in lost if loss.fix))
            left = "; ".join(loss.what for loss in lost if loss.unread)
            lacks = "; ".join(loss.what for loss in lost if not loss.unread)
            what = [f"{self.to} cannot store {lacks}"] if lacks else []
            what += [f"not all data in the source is read as {self.kind}: {left} would be skipped"] if left else []
            raise ConfigError(
                "; ".join(what),
                file=self.source,
                kind="loses-content",
                fix=f"{fix} To convert without it, add --allow-loss.".strip(),
            )


def check_places(source: str, destination: str) -> None:
    """Raise `ConfigError` if the destination is the source, inside it or around it."""
    a, b = canonical_location(source), canonical_location(destination)
    if a == b:
        raise ConfigError(
            "the destination is the source", file=source, kind="input-is-output", fix="Choose another destination."
        )
    if b.startswith(a.rstrip("/") + "/") or a.startswith(b.rstrip("/") + "/"):
        how = "is inside the source" if b.startswith(a) else "contains the source"
        raise ConfigError(
            f"the destination {how}: both would be one dataset",
            file=destination,
            kind="input-is-output",
            fix="Choose a destination outside the source.",
        )


def named(names: Iterable[str], most: int = 6) -> str:
    """Return the first `most` names as text for a message."""
    listed = list(names)
    return ", ".join(map(repr, listed[:most])) + (f" and {len(listed) - most} more" if len(listed) > most else "")
