"""Journal of collected media metadata, so that a killed run is resumed instead of restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from feedmill.errors import DataError
from feedmill.formats.energon.media import Row
from feedmill.jobs.units import Units

MEDIA = "media.scanned"
"""Name of the journal in the work folder of a dataset."""


class _Facts(msgspec.Struct, array_like=True):
    rows: list[Row]
    broken: list[dict[str, Any]]


class MediaNotes:
    """Results of finished units, by their hashes."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._known: dict[str, tuple[list[Row], list[DataError]]] | None = None

    def get(self, piece: bytes) -> tuple[list[Row], list[DataError]] | None:
        """Return the rows and errors of a unit, or None if no earlier run finished it."""
        if self._known is None:
            self._known = {}
            for name, body in self.units.read().items():  # skip units of other work
                with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                    facts = msgspec.msgpack.decode(body, type=_Facts)
                    self._known[name] = facts.rows, [DataError(**fields) for fields in facts.broken]
        return self._known.get(piece.hex())

    def add(self, piece: bytes, rows: Sequence[Row], broken: Sequence[DataError]) -> None:
        """Record a finished unit. A unit with names that are not UTF-8 is skipped and will be done again."""
        with contextlib.suppress(UnicodeEncodeError):
            facts = _Facts(list(rows), [error.as_dict() for error in broken])
            self.units.add(piece.hex(), msgspec.msgpack.encode(facts))
