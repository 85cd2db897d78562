"""Rare files of tokens: Megatron, numpy and llm.c, Modalities, datatrove, Dolma, LitData."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from helpers.rare import Rows, Whole

CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
DOCS: list[list[int]] = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]


def rows_of(documents: Sequence[Sequence[int]]) -> Rows:
    return [{"input_ids": list(document)} for document in documents]


def _files(files: dict[str, bytes], opened: str, folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / opened if opened else folder


def _case(name: str, files: dict[str, bytes], opened: str, rows: Rows | None, *refused: str, **more: Any) -> Whole:
    return Whole(name, partial(_files, files, opened), rows, refused, **more)


def megatron_files(
    sequences: Sequence[Sequence[int]], firsts: Sequence[int], code: int = 4, *, modes: bool = False, version: int = 1
) -> dict[str, bytes]:
    """The files of Megatron-LM's indexed dataset; `firsts` are the sequences at which documents begin, and the end."""
    dtype = np.dtype(CODES[code])
    lengths = np.asarray([len(each) for each in sequences], "<i4")
    offsets = np.cumsum([0, *lengths[:-1]])[: len(lengths)] * dtype.itemsize
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, len(lengths), len(firsts)) + lengths.tobytes()
    index += np.asarray(offsets, "<i8").tobytes() + np.asarray(firsts, "<i8").tobytes()
    index += bytes(len(lengths)) if modes else b""
    data = np.asarray([token for each in sequences for token in each], dtype).tobytes()
    return {"all.bin": data, "all.idx": index}


def megatron() -> Iterator[Whole]:
    each = list(range(len(DOCS) + 1))
    for code in CODES:
        real = code in (6, 7)
        yield _case(
            f"megatron/code-{code}",
            megatron_files(DOCS, each, code),
            "all.bin",
            None if real else rows_of(DOCS),
            *["unsupported"] * real,
        )
    more = {
        "several-sequences": (DOCS, [0, 2, 4], [DOCS[0] + DOCS[1], DOCS[2] + DOCS[3]]),
        "empty-sequences": ([[], [1], [], [2, 3], []], [0, 1, 2, 3, 4, 5], [[], [1], [], [2, 3], []]),
        "empty-documents": (DOCS, [0, 0, 4, 4], [[], [t for d in DOCS for t in d], []]),
        "one-document": (DOCS, [0, 4], [[t for d in DOCS for t in d]]),
    }
    for name, (sequences, firsts, found) in more.items():
        yield _case(f"megatron/{name}", megatron_files(sequences, firsts), "all.bin", rows_of(found))
        yield _case(f"megatron/{name}-modes", megatron_files(sequences, firsts, modes=True), "all.bin", rows_of(found))
    yield _case("megatron/no-documents", megatron_files([], [0]), "all.bin", [], "no-samples", "empty-file")
    yield _case("megatron/other-version", megatron_files(DOCS, each, version=2), "all.bin", None, "unsupported")
    old = b"TNTIDX\0\0" + struct.pack("<QQQQ", 1, 4, 4, 3) + bytes(60)
    yield _case(
        "megatron/fairseq",
        {**megatron_files(DOCS, each), "all.idx": old},
        "all.bin",
        None,
        "other-format",
        "not-prepared",
        "bad-token-size",
    )
    files = megatron_files(DOCS, each)
    short = files["all.idx"][:18] + struct.pack("<QQ", 4, 0) + files["all.idx"][34 : 34 + 48]
    yield _case("megatron/no-bounds", {**files, "all.idx": short}, "all.bin", None, "unsupported")


def _npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def flat() -> Iterator[Whole]:
    """Files of one row of numbers, as windows of 4 tokens and the next one."""
    tokens = np.arange(20)
    rows = [{"input_ids": tokens[at : at + 5].tolist()} for at in range(0, 20, 5)]
    for kind in ("<u2", ">u2", "<i4", ">i4", "<u4", "<i8", "u1", ">i8"):
        yield _case(f"npy/{kind}", {"0.bin": _npy(tokens.astype(kind))}, "0.bin", rows, read="windows")
    for version in ((1, 0), (2, 0), (3, 0)):
        yield _case(
            f"npy/header-{version[0]}", {"0.bin": _npy(tokens.astype("u2"), version)}, "0.bin", rows, read="windows"
        )
    for name, array in {
        "float": tokens.astype("f4"),
        "two-axes": tokens.reshape(4, 5),
        "bool": tokens > 3,
        "scalar": np.int64(3),
        "fortran": np.asfortranarray(tokens.reshape(4, 5)),
        "dates": tokens.astype("M8[D]"),
    }.items():
        yield _case(f"npy/{name}", {"0.bin": _npy(np.asarray(array))}, "0.bin", None, "bad-header", read="windows")
    for magic, version, kind in ((20240520, 1, "<u2"), (20240801, 7, "<u4")):
        head = np.zeros(256, "<i4")
        head[:3] = magic, version, len(tokens)
        data = head.tobytes() + tokens.astype(kind).tobytes()
        yield _case(f"llm.c/{magic}", {"0.bin": data}, "0.bin", rows, read="windows")
        head[1] = 9
        other = head.tobytes() + data[1024:]
        yield _case(f"llm.c/{magic}-version", {"0.bin": other}, "0.bin", None, "bad-header", read="windows")
    head = np.zeros(256, "<i4")
    head[0] = 20240522
    yield _case("llm.c/evaluation", {"0.bin": head.tobytes() + bytes(64)}, "0.bin", None, "bad-header", read="windows")


def pbin() -> Iterator[Whole]:
    rows = rows_of(DOCS)
    for width in (1, 2, 4):
        for protocol in (2, 3, 4, 5):
            yield _case(f"pbin/{width}-pickle-{protocol}", {"0.pbin": pbin_file(DOCS, width, protocol)}, "0.pbin", rows)
    many = [[n % 200] * (n % 3) for n in range(3000)]
    yield _case("pbin/many", {"0.pbin": pbin_file(many, 1, 4)}, "0.pbin", rows_of(many))
    yield _case("pbin/empty-documents", {"0.pbin": pbin_file([[], [1], []], 2, 4)}, "0.pbin", rows_of([[], [1], []]))
    yield _case("pbin/no-documents", {"0.pbin": pbin_file([], 4, 4)}, "0.pbin", [], "no-samples", "empty-file")
    big = struct.pack(">Q", 40) + np.arange(10, dtype=">u4").tobytes() + pickle.dumps([(8, 20), (28, 20)])
    yield _case("pbin/version-0", {"0.pbin": big}, "0.pbin", rows_of([range(5), range(5, 10)]))  # type: ignore[list-item]


def pbin_file(documents: Sequence[Sequence[int]], width: int, protocol: int) -> bytes:
    data = np.asarray([token for each in documents for token in each], f"<u{width}").tobytes()
    ends = np.cumsum([0, *(len(each) * width for each in documents)]).tolist()
    pairs = [(begin, len(each) * width) for begin, each in zip(ends, documents, strict=False)]
    return struct.pack("<QI", len(data), width) + data + pickle.dumps(pairs, protocol)


def ds() -> Iterator[Whole]:
    ends = np.cumsum([len(each) for each in DOCS]).astype("<u8").tobytes()
    for width in (2, 4):
        data = np.asarray([t for d in DOCS for t in d], f"<u{width}").tobytes()
        texts = {
            "plain": f"gpt2|{width}\n10\n10 tokens",
            "slashes": f"a/b|c/d|{width}\n10\n10 tokens",
            "no-newer-lines": f"gpt2|{width}\n10",
            "crlf": f"gpt2|{width}\r\n10\r\n10 tokens\r\n",
            "final-newline": f"gpt2|{width}\n10\n10 tokens\n",
        }
        for name, text in texts.items():
            files = {"0.ds": data, "0.ds.index": ends, "0.ds.metadata": text.encode()}
            yield _case(f"ds/{width}-{name}", files, "0.ds", rows_of(DOCS))
        yield _case(f"ds/{width}-no-metadata", {"0.ds": data, "0.ds.index": ends}, "0.ds", rows_of(DOCS))
        yield _case(
            f"ds/{width}-loss",
            {"0.ds": data, "0.ds.index": ends, "0.ds.loss": bytes([1] * 10)},
            "0.ds",
            rows_of(DOCS),
            read="open",
        )


def dolma() -> Iterator[Whole]:
    ends = np.cumsum([0, *map(len, DOCS)]).tolist()
    spans = list(pairwise(ends))
    sources = {"plain": "a.jsonl.gz", "quoted": 'a "b", c.jsonl', "lines": "a\nb", "unicode": "ü日.gz", "empty": ""}
    for kind in ("<u1", "<u2", "<u4", "<u8"):
        for name, source in sources.items():
            text = io.StringIO()
            csv.writer(text).writerows([b, e, f"id {n}", source, n] for n, (b, e) in enumerate(spans))
            data = np.asarray([t for d in DOCS for t in d], kind).tobytes()
            yield _case(
                f"dolma/{kind}-{name}",
                {"0.npy": data, "0.csv.gz": gzip.compress(text.getvalue().encode())},
                "0.npy",
                rows_of(DOCS),
            )
    data = np.asarray([t for d in DOCS for t in d], "<u2").tobytes()
    plain = "".join(f"{b},{e},i,s,0\n" for b, e in spans)
    forms = {
        "unix-lines": gzip.compress(plain.encode()),
        "no-final-newline": gzip.compress(plain[:-1].encode()),
        "two-columns": gzip.compress("".join(f"{b},{e}\n" for b, e in spans).encode()),
        "members": b"".join(gzip.compress(line.encode()) for line in plain.splitlines(True)),
        "all-quoted": gzip.compress("".join(f'"{b}","{e}","i","s","0"\r\n' for b, e in spans).encode()),
        "more-columns": gzip.compress(plain.replace("\n", ",x,y\n").encode()),
    }
    for name, packed in forms.items():
        yield _case(f"dolma/{name}", {"0.npy": data, "0.csv.gz": packed}, "0.npy", rows_of(DOCS))
    yield _case(
        "dolma/numpy", {"0.npy": _npy(np.arange(10)), "0.csv.gz": forms["unix-lines"]}, "0.npy", None, "unknown-format"
    )


def litdata() -> Iterator[Whole]:
    for code, kind in {11: "u1", 12: "i1", 13: "<i2", 15: "<i4", 17: "<i8", 20: "<u2", 21: "<u4"}.items():
        yield _case(f"litdata/type-{code}", litdata_files(kind, code), "", rows_of(DOCS), "unsupported")
    changes: dict[str, dict[str, Any]] = {
        "compressed": {"compression": "zstd"},
        "encrypted": {"encryption": {"algorithm": "fernet"}},
        "numpy-float": {"data_format": ["no_header_numpy:9"]},
        "two-fields": {"data_format": ["no_header_tensor:17", "int"]},
        "float": {"data_format": ["no_header_tensor:1"]},
    }
    for name, config in changes.items():
        yield _case(f"litdata/{name}", litdata_files("<i8", 17, **config), "", None, "unsupported")
    for code, kind in {0: "i1", 2: "<i4", 5: "<u2", 7: "<u8"}.items():
        files = litdata_files(kind, code, data_format=[f"no_header_numpy:{code}"])
        yield _case(f"litdata/numpy-{code}", files, "", rows_of(DOCS))
    files = litdata_files("<i8", 17)
    index = json.loads(files["index.json"])
    index["chunks"][0]["dim"] = None
    yield _case("litdata/no-loader", {**files, "index.json": json.dumps(index).encode()}, "", None, "unsupported")


def litdata_files(kind: str, code: int, **config: Any) -> dict[str, bytes]:
    data = np.asarray([t for d in DOCS for t in d], kind)
    starts = np.cumsum([0, *map(len, DOCS)]) * data.dtype.itemsize + 4 * (len(DOCS) + 2)
    chunk = np.asarray([len(DOCS), *starts], "<u4").tobytes() + data.tobytes()
    about = {
        "data_format": [f"no_header_tensor:{code}"],
        "compression": None,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    chunks = [{"filename": "chunk-0-0.bin", "chunk_size": len(DOCS), "dim": len(data), "chunk_bytes": len(chunk)}]
    return {
        "chunk-0-0.bin": chunk,
        "index.json": json.dumps({"chunks": chunks, "config": {**about, **config}}).encode(),
    }
