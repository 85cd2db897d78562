"""The files of a cache of chunks, as tests look at them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def chunk_files(folder: Path) -> list[Path]:
    """Return the chunks in the folder of a cache."""
    return [path for path in folder.glob("*/*") if path.name.isdigit() and path.parent.name != "readers"]


def disk_bytes(folder: Path) -> int:
    """Return the bytes that the files of a folder take on the disk, in whole blocks; some may go meanwhile."""
    found = 0
    for place, folders, files in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                found += os.lstat(os.path.join(place, name)).st_blocks * 512
    return found


def damage(path: Path, *, at: int = 5, earlier_boot: bool = True) -> None:
    """Change a byte of a chunk, and say that it was written before the machine was started."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    if earlier_boot:
        data[-8:] = bytes(8)
    path.write_bytes(data)
