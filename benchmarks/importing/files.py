"""Files to import, made once: small JPEGs with captions beside them, and texts; and a digest of what was imported.

The digest is a sum over samples, so it does not depend on their order. This module needs only Python.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.lib import corpus

PER_FOLDER = 1000
TEXT_BYTES = 10_000


def images() -> int:
    """Number of JPEGs: `FEEDMILL_BENCH_IMPORT`, or 50,000. There are 20 MB of texts for each thousand."""
    return int(os.environ.get("FEEDMILL_BENCH_IMPORT", "50000"))


def make(kind: str) -> Path:
    """Return the folder of ``photos`` or ``texts``; make it if it is missing."""
    path = corpus.folder() / f"import_{kind}_{images()}"
    if not (path.parent / f"{path.name}.complete").exists():
        shutil.rmtree(path, ignore_errors=True)
        for name, data in _photos() if kind == "photos" else _texts():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        (path.parent / f"{path.name}.complete").touch()
    return path


def digest(contents: Iterable[bytes]) -> int:
    """Return a number for a multiset of contents."""
    return sum(int.from_bytes(hashlib.blake2b(data, digest_size=6).digest()) for data in contents) % (1 << 48)


def of_tars(folder: Path, suffix: str) -> Iterator[bytes]:
    """Yield the parts with this suffix of all tars of a folder."""
    import tarfile

    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(suffix):
                    file = tar.extractfile(member)
                    assert file is not None
                    yield file.read()


def _photos() -> Iterator[tuple[str, bytes]]:
    pictures, rng = corpus.pictures(), random.Random(3)
    for number in range(images()):
        name = f"{number // PER_FOLDER:03d}/{number:06d}"
        picture = rng.choice(pictures)
        comment = b"\xff\xfe\x00\x0a%08d" % number  # no two files are the same
        yield f"{name}.jpg", picture[:2] + comment + picture[2:]
        yield f"{name}.txt", " ".join([*rng.choices(corpus.WORDS, k=12), str(number)]).encode()


def _texts() -> Iterator[tuple[str, bytes]]:
    rng = random.Random(5)
    words = ["".join(rng.choices("aeionrstlmdcu", k=rng.randint(1, 9))) for _ in range(5000)]
    for number in range(images() * 20_000 // TEXT_BYTES):
        text = f"{number} " + " ".join(rng.choices(words, k=TEXT_BYTES // 6))
        yield f"{number // PER_FOLDER:03d}/{number:06d}.txt", text.encode()
