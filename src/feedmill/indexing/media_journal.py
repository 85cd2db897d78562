"""Media metadata that an unfinished run has collected, so that a killed run is continued and not restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from feedmill.errors import DataError
from feedmill.formats.energon.media import Row
from feedmill.jobs.units import Units

MEDIA = "media.scanned"
"""In the folder of unfinished work on a dataset."""


class _Facts(msgspec.Struct, array_like=True):
    rows: list[Row]
    broken: list[dict[str, Any]]


class MediaNotes:
    """Finished pieces of work by their names."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._known: dict[str, tuple[list[Row], list[DataError]]] | None = None

    def get(self, piece: bytes) -> tuple[list[Row], list[DataError]] | None:
        """Return what was found in this piece, or None if an earlier run did not come to it."""
        if self._known is None:
            self._known = {}
            for name, body in self.units.read().items():  # a unit of something else is no work done
                with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                    facts = msgspec.msgpack.decode(body, type=_Facts)
                    self._known[name] = facts.rows, [DataError(**fields) for fields in facts.broken]
        return self._known.get(piece.hex())

    def add(self, piece: bytes, rows: Sequence[Row], broken: Sequence[DataError]) -> None:
        """Note a finished piece. One with names that are not UTF-8 is skipped: it is done again."""
        with contextlib.suppress(UnicodeEncodeError):
            facts = _Facts(list(rows), [error.as_dict() for error in broken])
            self.units.add(piece.hex(), msgspec.msgpack.encode(facts))
