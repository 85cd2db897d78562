"""Tars for tests, written by Python's own `tarfile`."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

Files = Iterable[tuple[str, bytes]]


def tar_bytes(files: Files, *, form: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> bytes:
    """A tar of regular files; with PAX and a fractional mtime every member gets an extension header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime  # type: ignore[assignment]
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_tar(path: Path, files: Files, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files, **options))  # type: ignore[arg-type]
    return path


def make_shards(
    root: Path, counts: Sequence[int], *, parts: Sequence[str] = ("txt", "json"), size: int = 40, folder: str = "shards"
) -> Path:
    """A folder of shards with samples ``s00000 ...``, numbered through; part contents say which sample they are of."""
    number = 0
    for shard, count in enumerate(counts):
        files = []
        for _ in range(count):
            for part in parts:
                body = f'{{"n": {number}, "part": "{part}"}}'.encode()
                files.append((f"s{number:05d}.{part}", body.ljust(size)))
            number += 1
        write_tar(root / folder / f"shard_{shard:03d}.tar", files)
    return root
