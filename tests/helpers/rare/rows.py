"""Rare JSON lines, compressed documents, and streaming shards (MDS)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from backports import zstd

from helpers.foreign_datasets import mds_shard
from helpers.rare import Rows, Whole
from helpers.rare.archives import _one

TEXT = b"".join(b'{"id": "%d", "text": "text %d"}\n' % (n, n) for n in range(40))
ROWS: Rows = [{"id": str(n), "text": f"text {n}"} for n in range(40)]


def jsonl() -> Iterator[Whole]:
    plain = [{"n": n, "text": f"line {n}"} for n in range(3)]
    lines = [json.dumps(row).encode() for row in plain]
    made: dict[str, bytes] = {
        "bom": b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n",
        "crlf": b"\r\n".join(lines) + b"\r\n",
        "crlf-bom": b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n",
        "no-final-newline": b"\n".join(lines),
        "crlf-no-final": b"\r\n".join(lines),
        "blank-lines": b"\n\n" + b"\n \n\t\n".join(lines) + b"\n\n\n",
        "indented": b"\n".join(b"  " + line + b" \t" for line in lines) + b"\n",
        "one-line": lines[0],
    }
    for name, data in made.items():
        yield _json(name, data, plain[: 1 if name == "one-line" else 3])
    values: dict[str, Any] = {
        "huge-integer": 10**40,
        "negative-integer": -(2**63) - 1,
        "uint64": 2**64 - 1,
        "small-float": 5e-324,
        "large-float": 1.7976931348623157e308,
        "minus-zero": -0.0,
        "nested-100": None,
        "empty-key": {"": 1},
        "empties": [{}, [], "", None],
        "unicode": "日本\u2028\u2029\x85ü😀",
        "controls": "\0\x01\x1f\x7f",
        "numbers-as-text": ["1", "NaN", "null"],
        "wide": {f"k{n}": n for n in range(2000)},
        "long": "x" * 200_000,
    }
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    values["nested-100"] = deep
    for name, value in values.items():
        for ascii_ in (True, False):
            row = {"v": value, "n": 1}
            text = json.dumps(row, ensure_ascii=ascii_)
            yield _json(f"{name}-{'ascii' if ascii_ else 'utf8'}", text.encode() + b"\n", [row])
    yield _json("escapes", b'{"a": "\\u00e9\\/\\b\\f\\n\\r\\t\\"\\\\\\ud83d\\ude00"}\n', [{"a": 'é/\b\f\n\r\t"\\😀'}])
    yield _json("exponents", b'{"a": [1e5, 1E+2, 1.5e-3, -0, 0.0]}\n', [{"a": [1e5, 1e2, 1.5e-3, 0, 0.0]}])
    yield _json("spaces", b'{ "a" :\t1 , "b":[ ] }\n', [{"a": 1, "b": []}])
    yield _json("same-key-twice", b'{"a": 1, "a": 2}\n', [{"a": 2}])
    yield _json("python-constants", b'{"a": [Infinity, -Infinity]}\n', [{"a": [float("inf"), float("-inf")]}])
    yield _json("lone-surrogate", b'{"a": "\\ud83d"}\n', [{"a": "\ud83d"}])
    for name, data, kind in (
        ("is-array", json.dumps(plain).encode(), "bad-line"),
        ("indented-array", json.dumps(plain, indent=1).encode(), "bad-line"),
        ("pretty-objects", b"\n".join(json.dumps(row, indent=1).encode() for row in plain), "bad-line"),
        ("utf16", "\n".join(map(json.dumps, plain)).encode("utf-16"), "other-format"),
        ("is-gzip", gzip.compress(lines[0] * 9), "other-format"),
        ("is-zstd", zstd.compress(lines[0] * 9), "other-format"),
        ("scalars", b"1\n2\n", "bad-line"),
        ("record-separators", b"".join(b"\x1e" + line + b"\n" for line in lines), "bad-line"),
        ("carriage-returns", b"\r".join(lines) + b"\r", "bad-part"),
        ("empty", b"", "empty-file"),
        ("blank", b"\n \n", "empty-file"),
        ("latin-1", b'{"a": "\xe9"}\n', "bad-part"),
    ):
        yield _json(name, data, None, kind, *["bad-line"] * (kind == "bad-part"))  # as `check` names it


def _json(name: str, data: bytes, rows: Rows | None, *refused: str) -> Whole:
    held = None if rows is None else [{"json": row} for row in rows]
    return Whole(f"jsonl/{name}", partial(_one, "0.jsonl", data), held, refused)


def _member(data: bytes, *, flags: int = 0, level: int = 6) -> bytes:
    """A gzip member with optional header fields: 2 a checksum, 4 extra, 8 a name, 16 a comment."""
    head = b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<IBB", 0, 2, 3)
    head += struct.pack("<H", 6) + b"RA\x02\0ab" if flags & 4 else b""
    head += b"a name.jsonl\0" if flags & 8 else b""
    head += b"a comment\0" if flags & 16 else b""
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF) if flags & 2 else b""
    body = zlib.compressobj(level, zlib.DEFLATED, -15)
    return head + body.compress(data) + body.flush() + struct.pack("<II", zlib.crc32(data), len(data))


def _lines(data: bytes) -> list[bytes]:
    at = data.index(b"\n", len(data) // 2) + 1
    return [data[:at], data[at:]]


def _xz(**options: Any) -> bytes:
    return lzma.compress(TEXT, **options)


def _long(window: int) -> bytes:
    options = {zstd.CompressionParameter.window_log: window, zstd.CompressionParameter.enable_long_distance_matching: 1}
    packer = zstd.ZstdCompressor(options=options)
    return packer.compress(TEXT) + packer.flush()  # of no declared size, so that the window is kept


def packed() -> dict[str, bytes]:
    """``kind/what`` -> one document's lines, compressed."""
    skip = struct.pack("<II", 0x184D2A5F, 5) + b"hello"
    sums = zstd.CompressionParameter.checksum_flag
    two = _lines(TEXT)
    return {
        **{f"gz/flags-{flags}": _member(TEXT, flags=flags) for flags in (0, 1, 2, 4, 8, 16, 30)},
        **{f"gz/level-{level}": _member(TEXT, level=level) for level in (0, 1, 9)},
        "gz/members": b"".join(map(_member, two)),
        "gz/split-line": _member(TEXT[:100]) + _member(TEXT[100:]),
        "gz/empty-members": _member(b"") + _member(TEXT) + _member(b""),
        "gz/zeros-after": _member(TEXT) + bytes(512),
        "zst/frames": b"".join(map(zstd.compress, two)),
        "zst/skippable": skip + zstd.compress(TEXT) + skip,
        "zst/empty-frame": zstd.compress(b"") + zstd.compress(TEXT),
        "zst/checksum": zstd.compress(TEXT, options={sums: 1}),
        **{f"zst/level-{level}": zstd.compress(TEXT, level) for level in (-5, 1, 19, 22)},
        **{f"zst/window-{window}": _long(window) for window in (10, 27, 28, 31)},
        "zst/split-line": zstd.compress(TEXT[:100]) + zstd.compress(TEXT[100:]),
        "bz2/streams": b"".join(map(bz2.compress, two)),
        "bz2/level-1": bz2.compress(TEXT, 1),
        "bz2/empty-first": bz2.compress(b"") + bz2.compress(TEXT),
        **{
            f"xz/check-{check}": _xz(check=check)
            for check in (lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256)
        },
        "xz/streams": b"".join(map(lzma.compress, two)),
        "xz/padding": _xz() + bytes(8),
        "xz/padding-between": lzma.compress(two[0]) + bytes(4) + lzma.compress(two[1]),
        "xz/filters": _xz(filters=[{"id": lzma.FILTER_DELTA, "dist": 4}, {"id": lzma.FILTER_LZMA2, "preset": 9}]),
        "xz/preset-0": _xz(preset=0),
    }


def documents() -> Iterator[Whole]:
    for name, data in packed().items():
        kind, _, what = name.partition("/")
        yield _document(f"{kind}-{what}", f"0.jsonl.{kind}", data, ROWS)
    dictionary = zstd.train_dict([b"text %d" % n * 9 for n in range(900)], 1000)
    others = {
        "zst-dictionary": ("zst", zstd.compress(TEXT, zstd_dict=dictionary)),
        "xz-is-lzma": ("xz", _xz(format=lzma.FORMAT_ALONE)),
        "gz-is-zlib": ("gz", zlib.compress(TEXT)),
        "gz-is-text": ("gz", TEXT),
        "zst-is-gz": ("zst", gzip.compress(TEXT)),
        "bz2-is-xz": ("bz2", _xz()),
        "gz-is-zip": ("gz", b"PK\x03\x04" + bytes(60)),
        "gz-is-lz4": ("gz", b"\x04\x22\x4d\x18" + bytes(60)),
        "gz-is-parquet": ("gz", b"PAR1" + bytes(60) + b"PAR1"),
        "zst-is-old-zstd": ("zst", b"\x27\xb5\x2f\xfd" + bytes(60)),
        "gz-is-compress": ("gz", b"\x1f\x9d\x90" + bytes(60)),
        "xz-is-7z": ("xz", b"7z\xbc\xaf\x27\x1c" + bytes(60)),
        "gz-is-html": ("gz", b"<!DOCTYPE html>\n<html>not found</html>"),
        "gz-is-pointer": ("gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    }
    for name, (kind, data) in others.items():
        yield _document(name, f"0.jsonl.{kind}", data, None, "other-compression")


def _document(name: str, file: str, data: bytes, rows: Rows | None, *refused: str) -> Whole:
    return Whole(f"documents/{name}", partial(_one, file, data), rows, refused, read="documents")


def mds() -> Iterator[Whole]:
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    pil = struct.pack("<III", 3, 2, 3) + b"RGB" + image.tobytes()
    listed = struct.pack("<III", 0, 1, len(pil)) + pil
    cells: dict[str, tuple[bytes, Any, int | None]] = {
        "bytes": (b"\0\xff", b"\0\xff", None),
        "str": ("ü日".encode(), "ü日", None),
        "int": (struct.pack("<q", -5), -5, 8),
        "json": (b'{"a": [1, null]}', {"a": [1, None]}, None),
        "str_int": (b"123456789012345678901", 123456789012345678901, None),
        "str_float": (b"1.5e300", 1.5e300, None),
        "str_decimal": (b"1.10", Decimal("1.10"), None),
        "pil": (pil, image, None),
        "list[pil]": (listed, [image], None),
        **{
            kind: (np.asarray(3, kind).tobytes(), 3, np.dtype(kind).itemsize)
            for kind in (
                "uint8",
                "int8",
                "uint16",
                "int16",
                "uint32",
                "int32",
                "uint64",
                "int64",
                "float16",
                "float32",
                "float64",
            )
        },
        "ndarray": (bytes([34, 2 << 2, 2, 3]) + np.ones((2, 3), "<f4").tobytes(), np.ones((2, 3)), None),
        "ndarray:int16": (bytes([1 << 2 | 1, 3, 0]) + np.arange(3, dtype="<i2").tobytes(), np.arange(3), None),
        "ndarray:float64:2,2": (np.eye(2).tobytes(), np.eye(2), 32),
        "ndarray:uint8:0": (b"", np.zeros(0), 0),
    }
    for encoding, (data, value, size) in cells.items():
        yield _mds(f"encoding-{encoding}", {"v": (encoding, data, size)}, [{"v": value}])
    two = {name: (name, *cells[name][::2]) for name in ("int", "str", "uint8", "json", "bytes")}
    rows = [{name: cells[name][1] for name in two}]
    yield _mds("columns", two, rows)
    for name, (end, pack) in PACKS.items():
        yield _mds(f"packed-{name}", two, rows, pack=pack, end=end, compression=name)
        yield _mds(f"both-{name}", two, rows, pack=pack, end=end, compression=name, keep=True)
    hashes = {name: name for name in ("sha1", "md5", "sha3_256", "blake2b", "xxh64", "xxh3_128", "xxh32")}
    yield _mds("hashes", two, rows, hashes=hashes)
    yield _mds("no-hashes-key", two, rows, drop=("hashes", "size_limit"))
    yield _mds("large-header", two, rows, head=b'{"format": "mds", "more": "' + b"x" * 900 + b'"}')
    yield _mds("other-encoding", {"v": ("torch_tensor", b"x", None)}, None, refused=("unsupported",))
    yield _mds("other-format", two, None, refused=("unsupported",), form="json")
    yield _mds("other-version", two, None, refused=("unsupported",), version=3)
    for mode, kind, channels in (
        ("La", "u1", 2),
        ("RGBa", "u1", 4),
        ("I;16B", ">u2", 1),
        ("F", "<f4", 1),
        ("CMYK", "u1", 4),
    ):
        shape = (2, 3, channels) if channels > 1 else (2, 3)
        pixels = np.arange(6 * channels).reshape(shape).astype(kind)
        data = struct.pack("<III", 3, 2, len(mode)) + mode.encode() + pixels.tobytes()
        yield _mds(f"mode-{mode}", {"v": ("pil", data, None)}, [{"v": pixels}])
    yield _mds(
        "json-constants", {"v": ("json", b"[NaN, Infinity]", None)}, lambda rows: str(rows[0]["v"]) == "[nan, inf]"
    )


def _by_arrow(codec: str, data: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.Codec(codec).compress(data, asbytes=True))


PACKS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gz": ("gz", gzip.compress),
    "gz:9": ("gz", partial(gzip.compress, compresslevel=9)),
    "bz2": ("bz2", bz2.compress),
    "bz2:1": ("bz2", partial(bz2.compress, compresslevel=1)),
    "zstd": ("zstd", zstd.compress),
    "zstd:22": ("zstd", partial(zstd.compress, level=22)),
    "br": ("br", partial(_by_arrow, "brotli")),
    "br:5": ("br", partial(_by_arrow, "brotli")),
    "snappy": ("snappy", partial(_by_arrow, "snappy")),
}


def _mds(
    name: str,
    columns: dict[str, tuple[str, bytes, int | None]],
    rows: Any,
    *,
    refused: tuple[str, ...] = (),
    **how: Any,
) -> Whole:
    return Whole(f"mds/{name}", partial(_write_mds, columns, how), rows, refused)


def _write_mds(columns: dict[str, tuple[str, bytes, int | None]], how: dict[str, Any], folder: Path) -> Path:
    import hashlib

    import xxhash

    sizes = [size for _, _, size in columns.values()]
    raw = mds_shard([[data for _, data, _ in columns.values()]], sizes)
    if "head" in how:
        extra = len(how["head"]) - len(b'{"format": "mds"}')
        begin, end = np.frombuffer(raw, "<u4", 2, 4).tolist()
        raw = raw[:4] + struct.pack("<II", begin + extra, end + extra) + how["head"] + raw[begin:]
    hashes = {
        key: getattr(xxhash if key.startswith("xxh") else hashlib, key)(raw).hexdigest()
        for key in how.get("hashes", ())
    }
    stored = {"basename": "shard.00000.mds", "bytes": len(raw), "hashes": hashes}
    zipped = None
    if "pack" in how:
        data = how["pack"](raw)
        zipped = {"basename": f"shard.00000.mds.{how['end']}", "bytes": len(data), "hashes": {}}
        (folder / zipped["basename"]).write_bytes(data)
    if zipped is None or how.get("keep"):
        (folder / "shard.00000.mds").write_bytes(raw)
    shard = {
        "format": how.get("form", "mds"),
        "version": 2,
        "samples": 1,
        "column_names": list(columns),
        "column_encodings": [encoding for encoding, _, _ in columns.values()],
        "column_sizes": sizes,
        "compression": how.get("compression"),
        "hashes": list(hashes),
        "raw_data": stored,
        "zip_data": zipped,
        "size_limit": None,
    }
    shard = {key: value for key, value in shard.items() if key not in how.get("drop", ())}
    (folder / "index.json").write_text(json.dumps({"version": how.get("version", 2), "shards": [shard]}))
    return folder


def read_documents(path: Path) -> Rows:
    """The rows of a document file, by its lines."""
    from feedmill.formats.documents import read_lines
    from feedmill.storage import LocalStore

    text = b"".join(bytes(block) for block in read_lines(LocalStore(path.parent), path.name))
    return [json.loads(line) for line in io.BytesIO(text)]
