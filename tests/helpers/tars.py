"""Tars for tests, written by Python's own `tarfile`."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

Files = Iterable[tuple[str, bytes]]


def tar_bytes(files: Files, *, form: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> bytes:
    """A tar of regular files; with PAX and a fractional mtime every member gets an extension header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files:
            if form == tarfile.USTAR_FORMAT and 0 < len(name) <= 100 and name.isascii():
                for part in (_header(name.encode(), len(data), mtime), data, bytes(-len(data) % 512)):
                    out.write(part)
                    archive.offset += len(part)
                continue
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime  # type: ignore[assignment]
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _header(name: bytes, size: int, mtime: float) -> bytes:
    """The header that `tarfile` would make of it, which takes ten times as long."""
    empty, total = _without_name_and_size(mtime)
    number = b"%011o\0" % size
    check = b"%06o\0 " % (total + sum(name) + sum(number))
    return b"".join((name.ljust(100, b"\0"), empty[100:124], number, empty[136:148], check, empty[156:]))


@cache
def _without_name_and_size(mtime: float) -> tuple[bytes, int]:
    """A header, and the sum of its bytes but for the two and itself, which counts as spaces."""
    info = tarfile.TarInfo("")
    info.mtime = mtime  # type: ignore[assignment]
    empty = info.tobuf(tarfile.USTAR_FORMAT)
    return empty, sum(empty[100:124]) + sum(empty[136:148]) + 8 * ord(" ") + sum(empty[156:])


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


def sparse_tar(kind: str) -> bytes:
    """A sparse file "k.bin": 4 bytes at 1000, 3 at 5000, 6,000 long, in each of the four forms."""

    def header(name: bytes, size: int, flag: bytes, extra: bytes = b"") -> bytes:
        block = bytearray(512)
        block[: len(name)] = name
        block[100:136] = b"0000644\x000000000\x000000000\x00" + f"{size:011o}\0".encode()
        block[136:148] = b"00000000000\0"
        block[156:157] = flag
        block[257:265] = b"ustar\x0000"
        if extra:
            block[257:265] = b"ustar  \0"
            block[386 : 386 + len(extra)] = extra
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
        return bytes(block)

    def pax(records: list[tuple[str, str]]) -> bytes:
        body = b""
        for key, value in records:
            text = f" {key}={value}\n"
            length = len(text) + len(str(len(text) + 2))
            body += f"{length}{text}".encode()
        return header(b"x", len(body), b"x") + body.ljust(-(-len(body) // 512) * 512, b"\0")

    stored = b"AAAABBB"
    tail = bytes(1024)
    numbers = [(1000, 4), (5000, 3)]
    if kind == "gnu":
        pieces = b"".join(f"{o:011o}\0{n:011o}\0".encode() for o, n in numbers).ljust(96, b"\0")
        return header(b"k.bin", 7, b"S", pieces + b"\0" + b"%011o\0" % 6000) + stored.ljust(512, b"\0") + tail
    base = [("GNU.sparse.size", "6000"), ("GNU.sparse.numblocks", "2")]
    if kind == "0.0":
        for o, n in numbers:
            base += [("GNU.sparse.offset", str(o)), ("GNU.sparse.numbytes", str(n))]
    elif kind == "0.1":
        base += [("GNU.sparse.name", "k.bin"), ("GNU.sparse.map", "1000,4,5000,3")]
    else:
        base = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "k.bin"),
                ("GNU.sparse.realsize", "6000")]  # fmt: skip
        stored = b"2\n1000\n4\n5000\n3\n".ljust(512, b"\0") + stored
    return pax(base) + header(b"k.bin", len(stored), b"0") + stored.ljust(-(-len(stored) // 512) * 512, b"\0") + tail
