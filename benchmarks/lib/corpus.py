"""Create the data of the benchmarks: once, always with the same contents, and kept between runs.

The data is a folder of tar shards, and a JSONL file. Samples have a JPEG of about 5 KB and a JSON with a caption. All
data is in the folder that ``FEEDMILL_BENCH_DIR`` names, by default ``feedmill-bench`` in the temporary directory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = ("a", "red", "boat", "on", "the", "quiet", "river", "under", "gray", "sky", "two", "people", "été", "日本")
POOL = 64
"""Number of different pictures, which are assigned to samples at random."""


def folder() -> Path:
    """Return the folder of the data."""
    named = os.environ.get("FEEDMILL_BENCH_DIR")
    path = Path(named) if named else Path(tempfile.gettempdir()) / "feedmill-bench"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def shards(count: int, samples: int) -> Path:
    """Return a folder ``shards/`` of `count` tars with `samples` samples each; keys are ``000000000``, ..."""
    path = folder() / f"wds_{count}x{samples}"
    done = path / ".complete"
    if done.exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    (path / "shards").mkdir(parents=True)
    rng, chosen = random.Random(11), pictures()
    for shard in range(count):
        with open(path / "shards" / f"shard_{shard:05d}.tar", "wb", buffering=1 << 20) as out:
            for number in range(shard * samples, (shard + 1) * samples):
                caption = " ".join(rng.choices(WORDS, k=rng.randint(20, 150)))
                text = json.dumps({"id": number, "caption": caption}, ensure_ascii=False).encode()
                for part, data in (("jpg", rng.choice(chosen)), ("json", text)):
                    out.write(tar_header(f"{number:09d}.{part}", len(data)))
                    out.write(data.ljust(-(-len(data) // 512) * 512, b"\0"))
            out.write(b"\0" * 1024)
    done.touch()
    return path


def jsonl(lines: int) -> Path:
    """Return a JSONL file of `lines` objects with a text of 50 to 900 characters."""
    path = folder() / f"lines_{lines}.jsonl"
    if not path.exists():
        rng = random.Random(3)
        partial = path.with_suffix(".part")
        with open(partial, "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"id": i, "text": "x" * rng.randint(50, 900)}) + "\n" for i in range(lines))
        partial.rename(path)
    return path


def packed(documents: int) -> Path:
    """Return a ``.pbin`` of 2-byte tokens, in documents of 680 tokens on average, log-normal."""
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.storage import LocalStore

    name = f"packed_{documents}.pbin"
    if not (folder() / name).exists():
        with write_pbin(LocalStore(folder()), name, 2) as writer:
            for tokens, lengths in _documents(documents):
                writer.add(tokens, lengths)
    return folder() / name


def tokenized(documents: int) -> Path:
    """Return a folder of two ``.ds`` files with the same tokens."""
    from feedmill.formats.tokens.ds import write_ds
    from feedmill.storage import LocalStore

    path = folder() / f"tokenized_{documents}"
    for number in range(2):
        if not (path / f"{number:05d}_unshuffled.ds").exists():
            with write_ds(LocalStore(path), f"{number:05d}_unshuffled.ds", 2, tokenizer_name="gpt2") as writer:
                for tokens, lengths in _documents(documents // 2, number):
                    writer.add(tokens, lengths)
    return path


def _documents(count: int, seed: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield random tokens of a vocabulary of 50,257 and the lengths of documents, in batches."""
    import numpy as np

    rng = np.random.default_rng([7, seed])
    for low in range(0, count, 10_000):
        lengths = np.clip(rng.lognormal(5.9, 1.1, min(10_000, count - low)), 2, 30_000).astype(np.int64)
        yield rng.integers(0, 50_257, int(lengths.sum()), dtype=np.uint16), lengths


def documents(files: int, megabytes: int) -> Path:
    """Return a folder in Dolma's layout: ``documents/part-N.jsonl.gz`` with `megabytes` of text, and ``corpus.json``.

    The texts are slices of Python's standard library with log-normal lengths. A tenth of them repeat an earlier one.
    """
    path = folder() / f"documents_{files}x{megabytes}"
    if (path / "corpus.json").exists():
        return path
    library = sorted(Path(os.__file__).parent.rglob("*.py"))
    source = "".join(file.read_text("utf-8", "replace") for file in library if "site-packages" not in file.parts)
    dice = random.Random(11)
    (path / "documents").mkdir(parents=True, exist_ok=True)
    total, at, count, earlier = 0, 0, 0, [source[:1000]]
    for number in range(files):
        size = 0
        with gzip.open(path / "documents" / f"part-{number:05d}.jsonl.gz", "wt", 6) as out:
            while size < megabytes * 1_000_000:
                length = min(300_000, int(dice.lognormvariate(7.55, 1.2)) + 1)
                text = dice.choice(earlier) if dice.random() < 0.1 else source[at : at + length]
                at = (at + length) % (len(source) - 300_000)
                earlier = [*earlier[-100:], text]
                size += len(text.encode("utf-8", "replace"))
                out.write(json.dumps({"id": f"{number}-{count}", "text": text, "source": "library"}) + "\n")
                count += 1
        total += size
    (path / "corpus.json").write_text(json.dumps({"files": files, "docs": count, "text_bytes": total}))
    return path


def unprepare(path: Path) -> None:
    """Delete everything that `prepare` has written into a folder of shards, or beside a JSONL file."""
    if path.suffix == ".jsonl":
        path.with_name(f"{path.name}.idx").unlink(missing_ok=True)
        return
    shutil.rmtree(path / ".nv-meta", ignore_errors=True)
    for index in path.rglob("*.tar.idx"):
        index.unlink()


def linked(path: Path, folder: Path) -> Path:
    """Return a new folder with the shards of `path`, as links: for a run that must not find what an earlier one left.

    A file system without a journal makes new files slowly for minutes after as many were deleted beside them.
    """
    for tar in path.rglob("*.tar"):
        link = folder / tar.relative_to(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(tar)
    warm(folder)
    return folder


def warm(path: Path) -> None:
    """Read the data once, so that the next measurement finds it in the page cache."""
    for file in [path] if path.is_file() else sorted([*path.rglob("*.tar"), *path.rglob("*.ds"), *path.rglob("*.gz")]):
        with open(file, "rb", buffering=0) as data:
            while data.read(1 << 22):
                pass


def size(path: Path) -> int:
    """Return the bytes of the data, without the files that `prepare` adds."""
    return path.stat().st_size if path.is_file() else sum(tar.stat().st_size for tar in path.rglob("*.tar"))


def tar_header(name: str, length: int) -> bytes:
    """Return the header of a tar member, always with the same time."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime = length, 1_700_000_000
    return member.tobuf(tarfile.USTAR_FORMAT)


def pictures() -> list[bytes]:
    """Return JPEGs of 96 x 96 pixels, 3 to 7 KB each: colored noise in small squares."""
    import numpy as np
    from PIL import Image

    rng, out = np.random.default_rng(5), []
    for number in range(POOL):
        squares = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        picture = io.BytesIO()
        Image.fromarray(squares.repeat(4, 0).repeat(4, 1)).save(picture, "JPEG", quality=40 + number % 50)
        out.append(picture.getvalue())
    return out
