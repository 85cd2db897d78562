"""The method `show` of datasets, plans and reports, for notebooks."""

from __future__ import annotations

from typing import Any


class Showable:
    """Has `show`, which returns what notebooks display."""

    __slots__ = ()

    def show(self, height: int = 560) -> Any:
        """Return this as the pages of `feedmill serve` show it, for the last line of a notebook's cell.

        Args:
            height: of the frame in pixels.

        Raises:
            MissingExtra: the packages of the extra ``web`` are missing.
        """
        import feedmill  # the pages are in a room far above this one

        return feedmill.show(self, height=height)
