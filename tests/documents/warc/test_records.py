"""Dividing archives into records: any compression, and whatever is wrong with them."""

from __future__ import annotations

import gzip
import io
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedmill.documents.find import find_documents
from feedmill.documents.warc.find import find_archives, stem
from feedmill.documents.warc.records import Fault, Record, blocks
from feedmill.documents.warc.stored import chunks
from feedmill.errors import ConfigError, NotFound
from helpers.web_archives import archive, html, pages, record, response

KINDS = ("response",)


def read(data: bytes, largest: int = 1 << 20) -> tuple[list[Record], list[Fault], Counter[str]]:
    found, faults, skipped = list[Record](), list[Fault](), Counter[str]()
    for block in blocks(chunks(io.BytesIO(data), "x"), KINDS, largest):
        found += [item for item in block.items if isinstance(item, Record)]
        faults += [item for item in block.items if isinstance(item, Fault)]
        skipped.update(block.skipped)
    return found, faults, skipped


def urls(records: list[Record]) -> list[str]:
    return [one.data.split(b"WARC-Target-URI: ")[1].split(b"\r\n")[0].decode() for one in records]


def page(k: int) -> bytes:
    return response(f"http://x.example/{k}", html("Some text."))


def gz(*records: bytes) -> list[bytes]:
    return [gzip.compress(one, mtime=0) for one in records]


def test_the_records_of_any_compression_are_the_same() -> None:
    zstd = pytest.importorskip("backports.zstd")
    plain = pages(40)
    whole = b"".join(plain)
    wanted = read(whole)
    assert len(wanted[0]) == 41 and not wanted[1] and wanted[2] == {"request": 40}
    assert [one.data for one in wanted[0][1:]] == [one[:-4] for one in plain[2::2]]
    for data in (
        b"".join(gz(*plain)),
        gzip.compress(whole),
        zstd.compress(whole),
        b"".join(gz(whole[:999], whole[999:])),
    ):
        found = read(data)
        assert [(r.number, r.position, r.data) for r in found[0]] == [(r.number, r.position, r.data) for r in wanted[0]]
        assert found[1:] == wanted[1:]


def test_the_offset_is_that_of_the_gzip_member() -> None:
    members = gz(*(page(k) for k in range(5)))
    starts = [sum(map(len, members[:k])) for k in range(5)]
    found, _, _ = read(b"".join(members))
    assert [one.offset for one in found] == starts
    data = b"".join(members)
    for one in found:
        assert gzip.decompress(data[one.offset :]).startswith(one.data)


@pytest.mark.parametrize(
    ("damage", "kept", "what"),
    [
        (lambda m: b"".join(m)[:-30], [0, 1, 2], "ends within a gzip member"),
        (lambda m: m[0] + m[1][:40] + bytes([m[1][40] ^ 255]) + m[1][41:] + m[2] + m[3], [0, 2, 3], "is corrupt"),
        (lambda m: m[0] + m[1][:-6] + b"\0\0" + m[1][-4:] + m[2] + m[3], [0, 2, 3], "is corrupt"),
        (lambda m: m[0] + b"junk" * 9 + m[1] + m[2] + m[3], [0, 1, 2, 3], "is corrupt"),
        (lambda m: m[0] + m[1][: len(m[1]) // 2] + m[2] + m[3], [0, 2, 3], "is corrupt"),
        (lambda m: m[0] + gzip.compress(b"no record") + m[1] + m[2] + m[3], [0, 1, 2, 3], "not a WARC record"),
        (lambda m: m[0] + m[1] + m[2] + m[3] + b"\0" * 512, [0, 1, 2, 3], ""),
    ],
)
def test_behind_corrupt_members_reading_continues(damage, kept, what) -> None:  # type: ignore[no-untyped-def]
    found, faults, _ = read(damage(gz(*(page(k) for k in range(4)))))
    assert urls(found) == [f"http://x.example/{k}" for k in kept]
    assert len(faults) == bool(what) and all(what in fault.what for fault in faults)


def test_a_gzip_file_inside_a_record_is_no_member() -> None:
    inner = b"".join(gz(page(7), page(8)))
    stored = gzip.compress(response("http://x.example/crawl.warc.gz", inner, "application/gzip"), 0)
    found, faults, _ = read(stored + gz(page(1))[0])
    assert urls(found) == ["http://x.example/crawl.warc.gz", "http://x.example/1"] and not faults


def longer(data: bytes) -> bytes:
    return data.replace(b"Content-Length: ", b"Content-Length: 9", 1)


@pytest.mark.parametrize(
    ("records", "kept", "what"),
    [
        ([longer(page(0)), page(1), page(2)], [1, 2], "truncated"),
        ([page(0), page(1)[:-60]], [0], "truncated"),
        ([page(0).replace(b"Content-Length: ", b"Content-Length: -"), page(1)], [1], "no valid Content-Length"),
        ([page(0).replace(b"Content-Length", b"Content-Width"), page(1)], [1], "no valid Content-Length"),
        ([b"something else\r\n", page(1)], [1], "not a WARC record"),
        ([page(0), b"WARC/1.0\r\nContent-Length: 5\r\n"], [0], "has no end"),
        ([page(0), response("http://big.example", b"x" * (2 << 20)), page(1)], [0, 1], "larger than 1,048,576 bytes"),
    ],
)
def test_faults_of_records_are_named_and_the_others_read(records: list[bytes], kept: list[int], what: str) -> None:
    found, faults, _ = read(b"".join(records))
    assert urls(found) == [f"http://x.example/{k}" for k in kept]
    assert len(faults) == 1 and what in faults[0].what


def test_a_wrong_length_in_a_gzip_member_does_not_cover_the_next() -> None:
    found, faults, _ = read(b"".join(gz(longer(page(0)), page(1), page(2))))
    assert urls(found) == ["http://x.example/1", "http://x.example/2"]
    assert faults == [Fault(0, "its length is wrong: another record begins within it", "http://x.example/0")]


def test_memory_is_not_taken_for_records_that_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    data = gzip.compress(record("request", b"\0" * (64 << 20), "http://a.example") + page(1), 1)
    tracemalloc.start()
    found, faults, skipped = read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert urls(found) == ["http://x.example/1"] and not faults and skipped == {"request": 1}
    assert peak < 16 << 20


def test_what_is_no_archive_is_one_fault_and_nothing_is_none() -> None:
    assert read(b"") == ([], [], Counter())
    assert read(b"<html>" * 999)[1] == [Fault(0, "this is not a WARC record")]
    assert read(gzip.compress(b"text " * 999))[1] == [Fault(0, "this is not a WARC record")]


@given(st.binary(max_size=60), st.integers(0, 2000), st.booleans())
@example(b"\x04", 1314, True)  # the flag of an extra field, which would contain the other records
def test_any_damage_loses_at_most_its_neighbors(junk: bytes, at: int, packed: bool) -> None:
    records = [page(k) for k in range(6)]
    data = b"".join(gz(*records)) if packed else b"".join(records)
    at %= len(data)
    found, faults, _ = read(data[:at] + junk + data[at + len(junk) :])
    intact = [one for one in found if any(one.data == whole[:-4] for whole in records)]
    assert len(intact) >= 3
    assert len(found) + len(faults) >= 5


def test_folders_patterns_and_names_are_found(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name in ("a.warc.gz", "b.warc", "deep/c.wet.gz", "notes.txt", ".hidden.warc", "d.warc.zst"):
        archive(tmp_path / name, pages(1))
    names = [file.path for file in find_archives(str(tmp_path))]
    assert names == ["a.warc.gz", "b.warc", "d.warc.zst", "deep/c.wet.gz"]
    assert [file.path for file in find_archives(f"{tmp_path}/*.txt")] == ["notes.txt"]
    assert [file.path for file in find_archives(f"{tmp_path}/deep/c.wet.gz")] == ["c.wet.gz"]
    assert [stem(name) for name in names] == ["a", "b", "d", "deep/c"]
    with pytest.raises(ConfigError, match="feedmill documents extract"):
        find_documents([f"{tmp_path}/a.warc.gz"])
    with pytest.raises(NotFound, match="no such file"):
        find_archives(f"{tmp_path}/nothing")
    with pytest.raises(NotFound, match="no web archives match"):
        find_archives(f"{tmp_path}/*.arc")
