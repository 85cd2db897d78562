"""Compressed streams: any content, several members, equal bytes, and damage that is named."""

from __future__ import annotations

import gzip
import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.documents import attribute_path, read_rows, rows_of, whole_lines, write_rows
from feedmill.storage import LocalStore
from feedmill.storage.codec import KINDS, compression, packed, unpacked, unzstd, zstd


def pack(data: bytes, kind: str, level: int | None = None) -> bytes:
    raw = io.BytesIO()
    with packed(raw, kind, level) as stream:
        stream.write(data)
    return raw.getvalue()


def unpack(data: bytes, kind: str) -> bytes:
    with unpacked(io.BytesIO(data), kind, file="x") as stream:
        return stream.read()


@given(st.binary(max_size=3000), st.sampled_from(KINDS))
def test_what_goes_in_comes_out(data: bytes, kind: str) -> None:
    assert unpack(pack(data, kind), kind) == data
    assert pack(data, kind) == pack(data, kind)
    assert unpack(pack(data, kind) + pack(data, kind), kind) == data * 2


def test_gzip_is_anyones_gzip() -> None:
    assert gzip.decompress(pack(b"text" * 999, "gz", 3)) == b"text" * 999
    assert unpack(gzip.compress(b"a", 9) + gzip.compress(b"b", 1), "gz") == b"ab"


@pytest.mark.parametrize("kind", ["gz", "zst", "bz2", "xz"])
@pytest.mark.parametrize(
    "harm", [lambda d: d[:-5], lambda d: d[: len(d) // 2], lambda d: b"\x80" + d, lambda d: b"\x80"]
)
def test_damage_is_named(kind: str, harm: object) -> None:
    data = harm(pack(bytes(range(256)) * 400, kind))  # type: ignore[operator]
    with pytest.raises(DataError, match="corrupt or truncated") as error:
        unpack(data, kind)
    assert (error.value.file, error.value.kind) == ("x", "bad-compression")


@pytest.mark.parametrize("kind", ["gz", "zst", "bz2", "xz"])
def test_damage_behind_the_first_member_is_named(kind: str) -> None:
    one = pack(b"text" * 99, kind)
    for second in (b"garbage", b"\n", bytes([one[0] ^ 1]) + one[1:], one[:-1], one[:3]):
        with pytest.raises(DataError, match="corrupt or truncated"):
            unpack(one + second, kind)


@pytest.mark.parametrize("kind", ["gz", "zst", "bz2", "xz"])
def test_another_content_than_the_name_says_is_no_damage(kind: str) -> None:
    others = {other: pack(b"text" * 99, other) for other in ("gz", "zst", "bz2", "xz") if other != kind}
    for found, data in {**others, "text": b'{"text": "a"}\n', "zip": b"PK\x03\x04" + bytes(40)}.items():
        with pytest.raises(DataError, match=f"the suffix says {kind}, but the file holds {found}. Rename it") as error:
            unpack(data, kind)
        assert error.value.kind == "other-compression"


def test_zstd_of_any_window_is_read() -> None:
    data = (bytes(range(256)) * 4096 + b"end") * 3
    options = {zstd.CompressionParameter.window_log: 31, zstd.CompressionParameter.enable_long_distance_matching: 1}
    stream = io.BytesIO()
    with zstd.open(stream, "wb", options=options) as out:  # in pieces: its size is not in the header
        for start in range(0, len(data), 1000):
            out.write(data[start : start + 1000])
    with pytest.raises(zstd.ZstdError, match="too much memory"):
        zstd.ZstdDecompressor().decompress(stream.getvalue())
    assert unpack(stream.getvalue(), "zst") == data and unzstd(stream.getvalue(), len(data)) == data


def test_zstd_with_a_dictionary_is_named() -> None:
    trained = zstd.ZstdDict(zstd.train_dict([b"some text %d" % n for n in range(2000)], 4000).dict_content)
    with pytest.raises(DataError, match="compressed with a dictionary") as error:
        unpack(zstd.compress(b"some text 7", zstd_dict=trained), "zst")
    assert error.value.kind == "other-compression"


def test_padding_between_streams_of_xz() -> None:
    one, two = lzma.compress(b"a"), lzma.compress(b"b" * 3_000_000)
    assert unpack(one + bytes(512) + two + bytes(2_000_000), "xz") == b"a" + b"b" * 3_000_000
    for zeros in (1, 6, 1 << 20 | 2):
        for end in (two, b""):
            with pytest.raises(DataError, match="zeros after a stream"):
                unpack(one + bytes(zeros) + end, "xz")


def test_levels_whose_bytes_differ_from_process_to_process_are_refused() -> None:
    for level in (1, 2):
        with pytest.raises(ConfigError, match=rf"level {level} of .* is not supported"):
            pack(b"x", "gz", level)
    assert pack(b"x" * 1000, "gz") == pack(b"x" * 1000, "gz", 0) != pack(b"x" * 1000, "gz", 3)


def test_unknown_kinds_and_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="'lz4' is unknown"):
        pack(b"", "lz4")
    with pytest.raises(ConfigError, match=r"level 9 of .* is not supported"):
        pack(b"", "gz", 9)


def test_the_name_tells() -> None:
    names = {
        "a.jsonl.gz": "gz",
        "a.gzip": "gz",
        "b.zst": "zst",
        "b.zstd": "zst",
        "d.bz2": "bz2",
        "d.xz": "xz",
        "c.jsonl": "",
        "gz": "",
    }
    assert {name: compression(name) for name in names} == names


@given(st.lists(st.binary(max_size=40).filter(lambda row: b"\n" not in row), max_size=30), st.booleans(), st.data())
def test_rows_are_split_at_newlines_only(rows: list[bytes], ended: bool, data: st.DataObject) -> None:
    text = b"\n".join(rows) + (b"\n" if ended and rows else b"")
    wanted = text.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    step = data.draw(st.integers(1, 50))

    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(step)

    assert [row for block in whole_lines(Dripping(text)) for row in rows_of(block)] == wanted


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_files_of_rows(tmp_path: Path, name: str) -> None:
    rows = ["{\u2028 {}".encode() * 9, b"", b"x\r", b"y" * 3_000_000]
    store = LocalStore(tmp_path)
    with write_rows(store, f"d/{name}") as append:
        append(rows[:1])
        append([b""])
        append([])
        append(rows[2:])
    seen: list[int] = []
    assert [row for block in read_rows(store, f"d/{name}", advance=seen.append) for row in block] == rows
    assert sum(seen) == (tmp_path / "d" / name).stat().st_size


def test_a_killed_writer_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_rows(LocalStore(tmp_path), "a.jsonl.gz") as append:
        append([b"x"])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_attributes_mirror_documents() -> None:
    assert attribute_path("v1/documents/documents/x.gz", "n") == "v1/attributes/n/documents/x.gz"
    for wrong in ("x.gz", "docs/x.gz", "documents"):
        with pytest.raises(ConfigError, match="no folder of the path is named 'documents'"):
            attribute_path(wrong, "n")


@pytest.mark.parametrize("door", ["open", "recipe", "list", "tag"])
def test_the_same_file_compressed_or_unpacked_is_named(tmp_path: Path, door: str):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": "1", "text": "a"}\n'))
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "1", "text": "a"}\n')
    for missing, there in (("a.jsonl", "a.jsonl.gz"), ("b.jsonl.zst", "b.jsonl"), ("a.jsonl.xz", "a.jsonl.gz")):
        path = str(tmp_path / missing)
        with pytest.raises(NotFound, match=f"there is '{there}' beside it. Give that name"):
            if door == "tag":
                fm.tag(path, "char_length_v1", output=str(tmp_path / "out"), progress=False)
            elif door == "recipe":
                fm.Recipe.parse({"source": {"path": path}, "epochs": 1}).plan()
            else:
                fm.open(path if door == "open" else [path, str(tmp_path / "b.jsonl")])
    with pytest.raises(NotFound, match=r"there is no such file.*Check the path"):
        fm.open(tmp_path / "c.jsonl")
