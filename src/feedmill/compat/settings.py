"""The tables of settings of all peers; ``python docs/migration/write.py`` writes them into the peers' pages."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from feedmill.formats.settings import Table


class Peer(NamedTuple):
    """A tool whose settings Feedmill reads.

    Attributes:
        title: its name.
        release: the release that the tables follow: a requirement such as ``datatrove==0.10.1``, or
            ``OWNER/NAME@COMMIT`` of a public repository if no release has the code.
        page: its page below ``docs/``.
        modules: modules with a tuple ``TABLES``.
    """

    title: str
    release: str
    page: str
    modules: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        """Return its tables."""
        return [table for module in self.modules for table in import_module(module).TABLES]


PEERS = {
    "datatrove": Peer(
        "datatrove", "datatrove==0.10.1", "migration/nanotron.md", ("feedmill.compat.datatrove.settings",)
    ),
    "energon": Peer(
        "Energon",
        "megatron-energon==7.4.1",
        "migration/energon.md",
        (
            "feedmill.compat.energon.settings",
            "feedmill.planning.dialects.energon_settings",
            "feedmill.samples.description_settings",
        ),
    ),
}
"""Name of the peer -> its tables."""
