"""What unpacks to too much is refused while it is unpacked, whatever reads it, and the limit can be raised."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.documents import read_rows, write_rows
from feedmill.formats.npz.arrays import read_npz
from feedmill.formats.tokens.dolma import open_dolma, read_origins
from feedmill.samples.decode import Decoder
from feedmill.storage import LocalStore
from feedmill.storage.codec import gunzip, zstd
from feedmill.storage.limits import MOST, SMALL, VARIABLE, max_unpacked
from helpers import foreign_datasets as sourcedata

LARGE = 3 << 20
LIMIT = "1MiB"


def of_a_line(folder: Path, kind: str) -> None:
    with write_rows(LocalStore(folder), f"x.jsonl.{kind}") as write:
        write([b"{}", b'"' + b"a" * LARGE + b'"'])
    for _ in read_rows(LocalStore(folder), f"x.jsonl.{kind}"):
        pass


def of_a_part(folder: Path) -> Any:
    return Decoder()("txt.gz", gzip.compress(b"a" * LARGE))


def zipped(method: int) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, a=np.zeros(LARGE, np.uint8))
    if method == zipfile.ZIP_DEFLATED:
        return out.getvalue()
    with zipfile.ZipFile(out) as archive, zipfile.ZipFile(again := io.BytesIO(), "w", method) as other:
        other.writestr("a.npy", archive.read("a.npy"))
    return again.getvalue()


def of_token_rows(folder: Path, read: Callable[[LocalStore], Any]) -> Any:
    (folder / "x.npy").write_bytes(bytes(8))
    rows = b"0,4,id,src,1\r\n" + b"4,4,,,1\r\n" * (LARGE // 9)
    (folder / "x.csv.gz").write_bytes(gzip.compress(rows))
    return read(LocalStore(folder))


def of_streaming_shards(folder: Path, compression: str) -> Any:
    pack = {"zstd": lambda raw: zstd.compress(raw), "gz": gzip.compress, "bz2": bz2.compress}[compression]
    sourcedata.mds(folder, [3], pack, compression)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["bytes"] = LARGE
    (folder / "index.json").write_text(json.dumps(index))
    return feedmill.open(str(folder)).read([0])


def of_a_hole(folder: Path) -> Any:
    header = bytearray(512)
    header[:6] = b"k0.txt"
    header[100:136] = b"0000644\x000000000\x000000000\x00" + b"00000000003\0"
    header[136:148], header[156:157], header[257:265] = b"00000000000\0", b"S", b"ustar  \0"
    header[386:410], header[483:495] = b"%011o\0%011o\0" % (1000, 3), b"%011o\0" % LARGE
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (folder / "x.tar").write_bytes(bytes(header) + b"AAA".ljust(512, b"\0") + bytes(1024))
    return feedmill.open(str(folder / "x.tar"))[0].raw("txt")


RECORDS: dict[str, Callable[[Path], Any]] = {
    "a line of .jsonl.gz": lambda folder: of_a_line(folder, "gz"),
    "a line of .jsonl.zst": lambda folder: of_a_line(folder, "zst"),
    "a .gz part": of_a_part,
    "an .npz part": lambda _: read_npz(zipped(zipfile.ZIP_DEFLATED)),
    "an .npz part that NumPy reads": lambda _: read_npz(zipped(zipfile.ZIP_BZIP2)),
    "the rows beside Dolma's tokens": lambda folder: of_token_rows(folder, lambda s: open_dolma(s, "", "u")),
    "their origins": lambda folder: of_token_rows(folder, lambda s: list(read_origins(s, "x.npy"))),
    "an MDS shard": lambda folder: of_streaming_shards(folder, "zstd"),
    "an MDS shard of gzip": lambda folder: of_streaming_shards(folder, "gz"),
    "an MDS shard of bz2": lambda folder: of_streaming_shards(folder, "bz2"),
    "a sparse member": of_a_hole,
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_beyond_the_limit_is_one_message(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, LIMIT)
    with pytest.raises(DataError, match=r"more than the limit of 1,048,576 bytes") as error:
        RECORDS[what](tmp_path)
    assert error.value.kind == "too-large" and VARIABLE in str(error.value)
    monkeypatch.setenv(VARIABLE, "1GiB")
    try:
        RECORDS[what](tmp_path)
    except FeedmillError as other:  # of streaming shards: the index was changed
        assert other.kind == "wrong-count"


def test_little_may_not_unpack_to_very_much_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert max_unpacked(100) == SMALL == 64 << 20
    assert max_unpacked(1 << 20) == 100 << 20
    assert max_unpacked(1 << 30) == MOST == 2 << 30
    monkeypatch.setenv(VARIABLE, "8GiB")
    assert max_unpacked(100) == max_unpacked(1 << 40) == 8 << 30
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(ConfigError, match="FEEDMILL_MAX_UNPACKED='lots' is not a size"):
        max_unpacked(100)


def test_gzip_parts_are_read_as_python_reads_them() -> None:
    several = gzip.compress(b"a" * 1000) + gzip.compress(b"b") + bytes(10)
    assert gunzip(several) == gzip.decompress(several)
    assert gunzip(b"") == gzip.decompress(b"") == b""
    for harm in (several[:-12], b"{}", several + b"x" * 30, gzip.compress(b"a" * 1000)[:-5] + b"xxxxx"):
        with pytest.raises((OSError, EOFError)):
            gunzip(harm)
    with pytest.raises(DataError, match="cannot be decoded"):
        Decoder()("txt.gz", several[:-12])


def test_a_line_of_a_gigabyte_in_thirty_kilobytes_takes_no_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    with write_rows(LocalStore(tmp_path), "documents/x.jsonl.zst") as write:
        write([b'{"id":"a","text":"' + b"a" * (1 << 30) + b'"}'])
    assert (tmp_path / "documents" / "x.jsonl.zst").stat().st_size < 1 << 17

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    main = "from feedmill.cli.app import main; main()"
    command = [sys.executable, "-c", main, "tag", str(tmp_path / "documents"), "--tagger", "char_length_v1"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=bound, timeout=120)
    assert done.returncode == 1
    assert "x.jsonl.zst 'the line at byte 0 of the decompressed text': it unpacks to more than" in done.stderr
