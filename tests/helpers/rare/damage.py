"""Damage that a format can detect, by rule: cuts, flipped bytes, blocks of zeros, and files of another dataset.

Where a format has no checksum, a changed byte of the content is another content: only bytes are changed that are under
a checksum, or that say where something lies.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from helpers.rare import Whole, archives, parts, rows, tokens

Places = Iterable[int]


@dataclass(frozen=True)
class Damaged:
    """A damaged file: the whole one, which of its files is changed and how, and whether it may look like another cause.

    Attributes:
        plain: nothing but damage can be the reason: a byte more or less of a number may also say "version 5".
    """

    name: str
    whole: Whole
    file: str
    change: Callable[[bytes], bytes]
    plain: bool = True

    def write(self, folder: Path) -> Path:
        path = self.whole.write(folder)
        file = next(each for each in sorted(folder.rglob("*")) if each.match(self.file))
        data = file.read_bytes()
        changed = self.change(data)
        assert changed != data
        file.write_bytes(changed)
        return path


@dataclass(frozen=True)
class _Rule:
    """How the files of some whole cases are damaged.

    Attributes:
        names: cases of the maker.
        file: pattern of the file that is damaged.
        cuts: lengths to which it is cut.
        flips: offsets of bytes that are changed.
        plain: as `Damaged.plain`, of the flips.
    """

    maker: Callable[[], Iterator[Whole]]
    names: tuple[str, ...]
    file: str
    cuts: Callable[[bytes], Places] = lambda data: range(len(data))
    flips: Callable[[bytes], Places] = lambda data: ()
    plain: bool = True


def _in_members(data: bytes) -> Places:
    """The stored bytes of the members of a zip, which are under its checksums."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            begin = info.header_offset + 30 + sum(np.frombuffer(data, "<u2", 2, info.header_offset + 26).tolist())
            yield from range(begin, begin + info.compress_size)


def _in_headers(data: bytes) -> Places:
    """The bytes of the headers of a tar but for the end of the checksum."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            yield from (member.offset + at for at in range(512) if at not in (154, 155))


def _inside_tar(data: bytes) -> Places:
    """Lengths at which a tar ends inside a header or a member."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            yield from range(member.offset + 1, member.offset_data + member.size, 7)


def _inside_lines(data: bytes) -> Places:
    return (at for at in range(1, len(data)) if not data[:at].rstrip().endswith(b"}"))


def _braces(data: bytes) -> Places:
    return (at for at, byte in enumerate(data) if byte in b'{}":')


def _odd(data: bytes) -> Places:
    """Lengths that no type of a token has: Dolma's files do not say their type."""
    return (at for at in range(len(data)) if at % 10)


def _from(begin: int, end: int | None = None) -> Callable[[bytes], Places]:
    return lambda data: range(len(data))[begin:end]


def _sampled(places: Places, count: int) -> list[int]:
    """Up to `count` of some places, from the first to the last."""
    found = list(places)
    return sorted({found[at] for at in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int).tolist()})


RULES = (
    _Rule(
        archives.npz,
        ("npz/dtype-<i4-stored", "npz/zip-deflated-plain", "npz/zip-lzma-zip64"),
        "*.npz",
        flips=_in_members,
    ),
    _Rule(archives.tars, ("tar/ustar", "tar/pax-times", "tar/gnu-long"), "*.tar", _inside_tar, _in_headers),
    _Rule(
        rows.jsonl, ("jsonl/no-final-newline", "jsonl/crlf", "jsonl/unicode-ascii"), "*.jsonl", _inside_lines, _braces
    ),
    _Rule(rows.documents, ("documents/gz-flags-0",), "*.gz", flips=_from(10)),
    _Rule(rows.documents, ("documents/zst-checksum",), "*.zst", flips=_from(6)),
    _Rule(rows.documents, ("documents/bz2-level-1",), "*.bz2", flips=_from(4, -1)),
    _Rule(rows.documents, ("documents/xz-check-4", "documents/xz-check-10"), "*.xz", flips=_from(6)),
    _Rule(rows.mds, ("mds/hashes",), "*.mds", flips=_from(0)),
    _Rule(rows.mds, ("mds/columns",), "*.mds", flips=_from(0, 12)),
    _Rule(rows.mds, ("mds/packed-gz", "mds/packed-bz2"), "shard*", flips=_from(10, -1)),
    _Rule(rows.mds, ("mds/columns", "mds/hashes"), "index.json", _from(0, -1)),
    _Rule(
        tokens.megatron, ("megatron/code-4", "megatron/several-sequences"), "*.idx", flips=_from(34, 82), plain=False
    ),
    _Rule(tokens.megatron, ("megatron/code-8", "megatron/empty-documents-modes"), "*.bin"),
    _Rule(tokens.flat, ("npy/<u2", "npy/header-3", "llm.c/20240520", "llm.c/20240801"), "*.bin"),
    _Rule(
        tokens.pbin, ("pbin/2-pickle-4", "pbin/4-pickle-2", "pbin/version-0"), "*.pbin", flips=_from(0, 6), plain=False
    ),
    _Rule(tokens.ds, ("ds/2-plain", "ds/4-slashes"), "*.ds", _from(0, -1)),
    _Rule(tokens.ds, ("ds/2-plain", "ds/4-no-metadata"), "*.index", _from(0, -1), _from(24)),
    _Rule(tokens.dolma, ("dolma/<u2-plain", "dolma/<u4-quoted"), "*.npy", _odd),
    _Rule(tokens.dolma, ("dolma/<u2-plain", "dolma/<u4-lines"), "*.gz", _from(1, None), _from(10)),
    _Rule(tokens.litdata, ("litdata/type-17", "litdata/type-20"), "*.bin", flips=_from(0, 8)),
    _Rule(tokens.litdata, ("litdata/type-15",), "index.json", _from(0, -1)),
    _Rule(parts.images, ("part/png-RGB", "part/png-I;16"), "*.png", _from(0, -20)),
    _Rule(parts.images, ("part/jpg-444", "part/jpg-progressive"), "*.jpg", _from(0, -40)),
    _Rule(parts.audio, ("part/wav-WAV-PCM_16-2", "part/wav-RF64-PCM_24-1"), "*.wav"),
    _Rule(parts.audio, ("part/flac-FLAC-PCM_16-1",), "*.flac", _from(0, -40)),
    _Rule(parts.videos, ("part/mp4-libx264-plain", "part/mov-png-plain"), "*.m*", _from(0, -120)),
    _Rule(parts.checkpoints, ("part/pth-zip", "part/pth-legacy"), "*.pth"),
    _Rule(parts.arrays, ("part/npy-<i4-C", "part/npy->f8-F"), "*.npy"),
    _Rule(parts.arrays, ("part/npz-<i4-C-deflated", "part/npz-<f2-F-stored"), "*.npz", flips=_in_members),
)
EACH = 10
"""Cuts, flips and blocks of zeros of one file."""


def damaged() -> Iterator[Damaged]:
    for maker in dict.fromkeys(rule.maker for rule in RULES):
        held = {case.name: case for case in maker()}
        for rule in (rule for rule in RULES if rule.maker is maker):
            for name in rule.names:
                yield from _of(rule, held[name])
    yield from _swapped()


def _of(rule: _Rule, whole: Whole) -> Iterator[Damaged]:
    for number in range(EACH):
        at = f"{whole.name}/{rule.file}"
        yield Damaged(f"{at}/cut-{number}", whole, rule.file, _cut(rule.cuts, number))
        if rule.flips is not _NONE:
            yield Damaged(f"{at}/flip-{number}", whole, rule.file, _flip(rule.flips, number), rule.plain)
        if rule.flips is not _NONE and number < EACH // 3:
            yield Damaged(f"{at}/zeros-{number}", whole, rule.file, _zeros(rule.flips, number), rule.plain)


_NONE = _Rule.flips


def _place(places: Callable[[bytes], Places], data: bytes, number: int) -> int:
    found = _sampled(places(data), EACH)
    return found[number % len(found)]


def _cut(places: Callable[[bytes], Places], number: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: _place(places, data, number)]


def _flip(places: Callable[[bytes], Places], number: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = _place(places, data, number)
        return data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :]

    return change


def _zeros(places: Callable[[bytes], Places], number: int) -> Callable[[bytes], bytes]:
    """Eight bytes of these places are zero, or one if they are zero already."""

    def change(data: bytes) -> bytes:
        at = _place(places, data, number)
        out = bytearray(data)
        for place in islice((place for place in places(data) if place >= at), 8):
            out[place] = 0
        if out == data:
            out[at] ^= 0xFF
        return bytes(out)

    return change


def _swapped() -> Iterator[Damaged]:
    """A file of another dataset in the place of one that belongs with others."""
    pairs: tuple[tuple[Any, str, str, str], ...] = (
        (tokens.megatron, "megatron/code-4", "megatron/empty-sequences", "*.idx"),
        (tokens.megatron, "megatron/code-4", "megatron/code-8", "*.bin"),
        (tokens.ds, "ds/2-plain", "ds/4-plain", "*.ds"),
        (tokens.litdata, "litdata/type-17", "litdata/type-11", "*.bin"),
        (rows.mds, "mds/columns", "mds/encoding-str", "*.mds"),
        (rows.mds, "mds/hashes", "mds/large-header", "*.mds"),
        (rows.mds, "mds/packed-gz", "mds/packed-zstd", "shard*"),
    )
    for maker, one, other, file in pairs:
        held = {case.name: case for case in maker()}
        yield Damaged(f"{one}/{file}/swapped", held[one], file, _Other(held[other], file), plain=False)


class _Other:
    def __init__(self, whole: Whole, file: str) -> None:
        self.whole, self.file = whole, file

    def __call__(self, data: bytes) -> bytes:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            self.whole.write(Path(folder))
            return next(each for each in sorted(Path(folder).rglob("*")) if each.match(self.file)).read_bytes()
