"""Display in notebooks of datasets, samples, plans, loaders and reports: a card, and the method `show`."""

from __future__ import annotations

from typing import Any

from feedmill.provided import provided


class Displayed:
    """Is displayed as a card by notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return a small card of HTML."""
        card: str = provided("card_of")(self)
        return card


class Showable(Displayed):
    """Has `show`, which returns all of it for a notebook."""

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
