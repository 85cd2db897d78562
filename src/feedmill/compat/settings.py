"""The tables of settings of all peers; ``python docs/migration/write.py`` writes their page."""

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
    "energon": Peer(
        "Energon",
        "megatron-energon==7.4.1",
        "migration/energon.md",
        (
            "feedmill.compat.energon.settings",
            "feedmill.planning.dialects.energon",
            "feedmill.samples.description",
        ),
    ),
    "megatron": Peer(
        "Megatron-LM",
        "NVIDIA/Megatron-LM@d98e8a64ddf34856e74b24714e3bedb2f5a39553",
        "migration/megatron.md",
        ("feedmill.planning.dialects.megatron", "feedmill.compat.megatron.settings"),
    ),
    "vla": Peer(
        "VLA Foundry",
        "TRI-ML/vla_foundry@515b04573583f9b49561bcac512f6c73977226b6",
        "vla.md",
        ("feedmill.planning.dialects.vla",),
    ),
    "modalities": Peer(
        "Modalities", "modalities==0.5.0", "migration/modalities.md", ("feedmill.compat.modalities.settings",)
    ),
    "dolma": Peer("Dolma", "dolma==1.2.1", "migration/dolma.md", ("feedmill.compat.dolma.settings",)),
    "nanotron": Peer(
        "Nanotron",
        "huggingface/nanotron@2411b022a75fb7f7561a1bb4166706da5e1b76de",
        "migration/nanotron.md",
        ("feedmill.planning.dialects.nanotron", "feedmill.compat.nanotron.settings"),
    ),
    "datatrove": Peer(
        "datatrove", "datatrove==0.10.1", "migration/nanotron.md", ("feedmill.compat.datatrove.settings",)
    ),
}
"""Name of the peer -> its tables."""
