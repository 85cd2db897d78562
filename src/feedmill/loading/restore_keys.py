"""Restore keys: what a sample, a pack or a batch carries so that a loader can make it again."""

from __future__ import annotations

from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.batches import now

POSITION = "Position"
_PACK = "Pack"


def restore_key() -> tuple[str, int] | None:
    """Return the restore key of the current sample, for `positions_of`; None outside a loader."""
    position = getattr(now, "position", None)
    return None if position is None else (POSITION, position)


def positions_of(key: Any) -> list[int]:
    """Return the positions of restore keys, in their order.

    Args:
        key: a position, the restore key of a sample or batch, or a list of them.

    Raises:
        ConfigError: the value is not a restore key.
    """
    if isinstance(key, int):
        return [int(key)]
    if isinstance(key, tuple) and len(key) == 2 and key[0] == POSITION and isinstance(key[1], int):
        return [key[1]]
    if isinstance(key, list | tuple) and key and not isinstance(key[0], str):
        return [position for part in key for position in positions_of(part)]
    raise ConfigError(
        f"{key!r:.80} is not a restore key of a Feedmill loader",
        kind="bad-state",
        fix="Give the __restore_key__ of a sample or batch of a loader, or positions of the plan.",
    )


def packs_of(key: Any) -> list[tuple[int, int]] | None:
    """Return the first position of the window and the number there of each pack of a restore key; None for samples."""
    if isinstance(key, tuple) and len(key) == 3 and key[0] == _PACK:
        return [(key[1], key[2])]
    if isinstance(key, list | tuple) and key and not isinstance(key[0], str):
        found = [packs_of(one) for one in key]
        return [pack for packs in found for pack in packs or ()] if all(found) else None
    return None


def keyed(pack: Any, number: int) -> Any:
    """Set the restore key of pack `number` after the current one, if it can have one."""
    return _with_key(pack, (_PACK, now.position, now.item + number))


def keyed_as_sample(pack: Any) -> Any:
    """Set the restore key of a pack that is a row of the plan, which is that of its position."""
    return _with_key(pack, restore_key())


def _with_key(pack: Any, key: Any) -> Any:
    if isinstance(pack, dict) and "__restore_key__" in pack:
        pack["__restore_key__"] = key
    elif hasattr(pack, "__restore_key__"):
        pack.__restore_key__ = key
    return pack
