"""Change datasets in place or write changed ones: append, delete, add parts, reshard, repair, mount, media metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "add_parts": "writing.add_parts",
    "append": "writing.append",
    "delete": "writing.delete",
    "mount": "mounting.mount",
    "prepare_media": "indexing.prepare_media",
    "repair": "indexing.repair",
    "reshard": "writing.reshard",
}
__all__ = ["add_parts", "append", "delete", "mount", "prepare_media", "repair", "reshard"]

if TYPE_CHECKING:
    from feedmill.indexing.prepare_media import prepare_media
    from feedmill.indexing.repair import repair
    from feedmill.mounting.mount import mount
    from feedmill.writing.add_parts import add_parts
    from feedmill.writing.append import append
    from feedmill.writing.delete import delete
    from feedmill.writing.reshard import reshard
else:
    __getattr__, __dir__ = lazily("edit", HOMES)
