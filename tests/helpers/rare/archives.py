"""Rare ``.npz`` files and tars."""

from __future__ import annotations

import io
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from helpers.rare import Rows, Whole
from helpers.tars import sparse_tar

Arrays = dict[str, Any]
ROWS = 3
METHODS = {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}


def _npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version=version, allow_pickle=True)
    return out.getvalue()


def _bare(values: bytes, header: str) -> bytes:
    """An ``.npy`` whose header has other spaces and alignment than NumPy's."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


class _NoSeek(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def pack(members: dict[str, bytes], method: int = 0, *, how: str = "") -> bytes:
    """A zip of members by `zipfile`.

    Args:
        how: ``zip64`` sizes in every header; ``streamed``, with sizes after the data; ``comment``; ``before``, bytes
            before it; ``folder``, an entry for a folder; ``extra``, values aligned to 64 bytes; ``encrypted`` by flag;
            ``ppmd`` and ``deflate64``, the numbers of these methods.
    """
    out: io.BytesIO = _NoSeek() if how == "streamed" else io.BytesIO()
    if how == "before":
        out.write(b"#!/bin/sh\nexit 0\n")
    with zipfile.ZipFile(out, "a" if how == "before" else "w", method) as archive:
        if how == "folder":
            archive.writestr("nothing/", b"")
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            if how == "extra":
                info.extra = struct.pack("<HH", 0xD935, 60) + bytes(60)
            with archive.open(info, "w", force_zip64=how == "zip64") as member:
                member.write(data)
        if how == "comment":
            archive.comment = b"a comment of the zip" * 9
    data = bytearray(out.getvalue())
    numbers = {"ppmd": 98, "deflate64": 9, "aes": 99}
    at = 0
    while how in ("encrypted", *numbers) and (at := data.find(b"PK", at)) >= 0:
        place = {b"PK\3\4": 6, b"PK\1\2": 8}.get(bytes(data[at : at + 4]))
        if place is not None and how in ("encrypted", "aes"):
            data[at + place] |= 1
        if place is not None and how in numbers:
            data[at + place + 2 : at + place + 4] = struct.pack("<H", numbers[how])
        at += 2
    return bytes(data)


def as_rows(arrays: Arrays) -> Rows:
    return [{name: array[n] for name, array in arrays.items() if np.ndim(array)} for n in range(ROWS)]


def npz() -> Iterator[Whole]:
    plain = {"x": np.arange(ROWS, dtype="i4"), "y": np.linspace(0, 1, ROWS * 4).reshape(ROWS, 2, 2)}
    whole: dict[str, Arrays] = {
        **{
            f"dtype-{kind}": {"x": np.arange(ROWS * 2).reshape(ROWS, 2).astype(kind)}
            for kind in (
                "<i1",
                "<u2",
                ">u2",
                "<i4",
                ">i4",
                "<u8",
                ">i8",
                "<f2",
                ">f2",
                ">f4",
                "<f8",
                ">f8",
                "?",
                "S3",
                "<U4",
                ">U4",
                "longdouble",
            )
        },
        "fortran": {"x": np.asfortranarray(np.arange(ROWS * 6).reshape(ROWS, 2, 3))},
        "fortran-swapped": {"x": np.asfortranarray(np.arange(ROWS * 6, dtype=">i2").reshape(ROWS, 2, 3))},
        "scalar-beside": {**plain, "epoch": np.float32(3)},
        "empty-axis": {"x": np.zeros((ROWS, 0), "f4"), "y": np.arange(ROWS)},
        "many-axes": {"x": np.arange(ROWS * 2).reshape(ROWS, *[1] * 30, 2)},
        "empty-text": {"x": np.asarray([""] * ROWS)},
        "odd-names": {"a b": np.arange(ROWS), "ü/日": np.arange(ROWS), "file": np.arange(ROWS), "x.y": np.arange(ROWS)},
        "long-name": {"x" * 300: np.arange(ROWS)},
    }
    for name, arrays in whole.items():
        members = {f"{key}.npy": _npy(value) for key, value in arrays.items()}
        for method in ("stored", "deflated"):
            yield _npz(f"{name}-{method}", pack(members, METHODS[method]), as_rows(arrays))
    members = {f"{key}.npy": _npy(value) for key, value in plain.items()}
    for (name, method), how in product(
        METHODS.items(), ("", "zip64", "streamed", "comment", "before", "folder", "extra")
    ):
        yield _npz(f"zip-{name}-{how or 'plain'}", pack(members, method, how=how), as_rows(plain))
    for version in ((1, 0), (2, 0), (3, 0)):
        data = pack({f"{key}.npy": _npy(value, version) for key, value in plain.items()})
        yield _npz(f"header-{version[0]}", data, as_rows(plain))
    bare = _bare(np.arange(ROWS, dtype="<i4").tobytes(), "{'shape': (3,), 'fortran_order': False, 'descr': '<i4'}")
    yield _npz("header-unpadded", pack({"x.npy": bare}), as_rows({"x": np.arange(ROWS)}))
    old = _bare(np.arange(ROWS, dtype="<i8").tobytes(), "{'descr': '<i8', 'fortran_order': False, 'shape': (3L,), }\n")
    yield _npz("header-python2", pack({"x.npy": old}), as_rows({"x": np.arange(ROWS)}))
    yield _npz("other-file", pack({**members, "note.txt": b"a note"}), as_rows(plain))
    yield from _refused(members, plain)


def _refused(members: dict[str, bytes], plain: Arrays) -> Iterator[Whole]:
    for how in ("encrypted", "aes"):
        yield _npz(f"zip-{how}", pack(members, how=how), None, "unsupported")
    for how in ("ppmd", "deflate64"):
        yield _npz(f"zip-{how}", pack(members, 8, how=how), None, "unsupported")
    date = np.arange("2020-01-01", "2020-01-04", dtype="M8[D]")
    fields = np.zeros(ROWS, [(f"a{n}", "i4") for n in range(4)])
    wide = np.zeros(ROWS, [(f"field number {n}", "i4") for n in range(500)])
    for name, array in {
        "date": date,
        "span": date - date[0],
        "complex": np.arange(3) + 1j,
        "fields": fields,
        "wide-fields": wide,
        "void": np.zeros(3, "V5"),
    }.items():
        yield _npz(f"dtype-{name}", pack({"x.npy": _npy(array)}), None, "unsupported")
    yield _npz("objects", pack({"x.npy": _npy(np.asarray([{}, 1, None], object))}), None, "untrusted-code")
    yield _npz(
        "lengths-differ", pack({"x.npy": _npy(np.arange(3)), "y.npy": _npy(np.arange(4))}), None, "other-columns"
    )
    yield _npz("scalars-only", pack({"x.npy": _npy(np.int64(3))}), None, "no-samples")
    yield _npz("no-rows", pack({"x.npy": _npy(np.zeros((0, 3)))}), [])
    yield _npz("no-arrays", pack({"note.txt": b"a note"}), None, "no-samples")
    yield _npz("empty-zip", pack({}), None, "no-samples")
    for name, data in {
        "is-npy": _npy(plain["y"]),
        "is-gzip": b"\x1f\x8b\x08" + bytes(40),
        "is-text": b"a,b\n" * 20,
        "is-pickle": b"\x80\x04}q\0." + bytes(30),
        "is-rar": b"Rar!\x1a\x07\x01\x00" + bytes(40),
        "is-7z": b"7z\xbc\xaf\x27\x1c" + bytes(40),
        "is-empty": b"",
    }.items():
        yield _npz(name, data, None, "empty-file" if not data else "other-format")


def _npz(name: str, data: bytes, rows: Rows | None, *refused: str) -> Whole:
    return Whole(f"npz/{name}", partial(_one, "0.npz", data), rows, refused)


def _one(name: str, data: bytes, folder: Path) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


FILES = {f"s{n:03d}.{part}": f"{part} {n}".encode() * (n + 1) for n in range(ROWS) for part in ("txt", "bin")}


def _tar(files: dict[str, bytes] = FILES, *, form: int = tarfile.USTAR_FORMAT, **change: Any) -> bytes:
    out = io.BytesIO()
    options = {key: change.pop(key) for key in ("pax_headers", "encoding") if key in change}
    with tarfile.open(fileobj=out, mode="w", format=form, **options) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in change.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar_rows(data: bytes) -> Rows:
    """What Python's own reader finds, by webdataset's rule of names."""
    rows: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            folder, slash, name = member.name.rpartition("/")
            key, dot, part = name.partition(".")
            if member.isreg() and dot and key:
                content = archive.extractfile(member)
                assert content is not None
                rows.setdefault(folder + slash + key, {})[part] = content.read()
    return list(rows.values())


def _checksum(header: bytearray) -> bytearray:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


def _headers(change: Callable[[bytearray], None]) -> bytes:
    """A ustar file with every header changed."""
    data = bytearray(_tar())
    for at in range(0, len(data), 512):
        if data[at + 257 : at + 262] == b"ustar":
            head = data[at : at + 512]
            change(head)
            data[at : at + 512] = _checksum(head)
    return bytes(data)


def _v7(head: bytearray) -> None:
    head[156:157], head[257:] = b"\0", bytes(255)


def _base256(head: bytearray) -> None:
    head[124:136] = b"\x80" + int(head[124:135], 8).to_bytes(11, "big")


def _spaces(head: bytearray) -> None:
    head[124:136] = (b"%o " % int(head[124:135], 8)).rjust(12)


def tars() -> Iterator[Whole]:
    deep, long, wide = "d" * 90 + "/" + "e" * 90 + "/", "f" * 180, "日本語/ü"
    forms = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    made: dict[str, bytes] = {name: _tar(form=form) for name, form in forms.items()}
    made |= {f"{name}-deep": _tar({deep + k: v for k, v in FILES.items()}, form=form) for name, form in forms.items()}
    made |= {
        f"{name}-unicode": _tar({wide + k: v for k, v in FILES.items()}, form=form) for name, form in forms.items()
    }
    made |= {f"{name}-long": _tar({long + k: v for k, v in FILES.items()}, form=forms[name]) for name in ("gnu", "pax")}
    made |= {f"{name}-empty-members": _tar(dict.fromkeys(FILES, b""), form=form) for name, form in forms.items()}
    made |= {f"{name}-large-ids": _tar(form=forms[name], uid=1 << 40, gid=1 << 40) for name in ("gnu", "pax")}
    made |= {f"{name}-old": _tar(form=forms[name], mtime=-5) for name in ("gnu", "pax")}
    made |= {
        "pax-times": _tar(form=tarfile.PAX_FORMAT, mtime=1.25),
        "pax-global": _tar(form=tarfile.PAX_FORMAT, pax_headers={"comment": "all of them", "SCHILY.xattr.user.x": "1"}),
        "pax-records": _tar(form=tarfile.PAX_FORMAT, pax_headers={"LIBARCHIVE.creationtime": "1.5", "ü": "ü"}),
        "v7": _headers(_v7),
        "base-256": _headers(_base256),
        "spaces": _headers(_spaces),
        "contiguous": _headers(lambda head: head.__setitem__(slice(156, 157), b"7")),
        "no-marker": _tar().rstrip(b"\0").ljust(-(-len(_tar().rstrip(b"\0")) // 512) * 512, b"\0"),
        "one-zero-block": _tar().rstrip(b"\0").ljust(-(-len(_tar().rstrip(b"\0")) // 512 - 1) * 512, b"\0"),
        "blocking-1": _tar().rstrip(b"\0").ljust(-(-len(_tar().rstrip(b"\0")) // 512 - 2) * 512, b"\0"),
        "blocking-64": _tar() + bytes(64 * 512),
        "blocking-odd": _tar() + bytes(777),
        **{f"sparse-{kind}": sparse_tar(kind) for kind in ("gnu", "0.0", "0.1", "1.0")},
        "folders": _with(tarfile.DIRTYPE),
        "fifo": _with(tarfile.FIFOTYPE),
        "device": _with(tarfile.CHRTYPE),
        "symlink": _with(tarfile.SYMTYPE),
        "hardlink": _with(tarfile.LNKTYPE),
    }
    for name, data in made.items():
        yield Whole(f"tar/{name}", partial(_one, "0.tar", data), tar_rows(data))
    for kind, program in {"gz": "gzip", "bz2": "bzip2", "xz": "xz"}.items():
        mode = {"gz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}[kind]
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for key, content in FILES.items():
                info = tarfile.TarInfo(key)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        # `check` refuses compressed tars, since no index can have their offsets.
        for end in (f".tar.{kind}", f".t{kind}" if kind != "gz" else ".tgz"):
            yield Whole(
                f"tar/packed{end}-{program}", partial(_one, f"0{end}", out.getvalue()), tar_rows(_tar()), check=False
            )
    yield Whole("tar/gnu-tar-posix", partial(_gnu_tar, ["--format=posix"]), tar_rows(_tar()))
    yield Whole("tar/gnu-tar-v7", partial(_gnu_tar, ["--format=v7"]), tar_rows(_tar()))
    yield Whole("tar/gnu-tar-label", partial(_gnu_tar, ["--label=a volume", "-b", "3"]), tar_rows(_tar()))
    yield Whole("tar/empty", partial(_one, "0.tar", bytes(10240)), [], check=False)  # `check` says that it is empty
    for name, data in {"is-gzip": b"\x1f\x8b\x08\0" + bytes(600), "is-zip": pack({"a.txt": b"a" * 600})}.items():
        yield Whole(f"tar/{name}", partial(_one, "0.tar", data), None, ("compressed-shard", "other-format"))


def _with(kind: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("other")
        info.type, info.linkname = kind, "s000.txt"
        archive.addfile(info)
    return out.getvalue()


def _gnu_tar(options: list[str], folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    command = ["tar", *options, "-cf", "0.tar", *FILES]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "0.tar"
