"""The header walk against Python's `tarfile`, and the compiled scan against the walk."""

from __future__ import annotations

import io
import re
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.kernels.files import tar
from helpers.durations import examples
from helpers.tars import sparse_tar, tar_bytes

NAME = st.text(st.sampled_from("ab.c_/é0 日"), min_size=1, max_size=30).map(lambda s: s.strip("/") or "x")
LONG = st.builds(lambda s, n: ("d/" * n) + s * 8 + ".txt", st.text("xyzü", min_size=1, max_size=30), st.integers(0, 60))
MEMBER = st.tuples(
    st.one_of(NAME, NAME.map(lambda s: s + ".jpg"), LONG, st.sampled_from(["__m__/a.t", "k.a", "k.b", ".h", "._k.a"])),
    st.binary(max_size=1500),
    st.sampled_from([tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE,
                     tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
)  # fmt: skip
FORM = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def archive(members: list, form: int, mtime: float) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as target:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            if kind == tarfile.AREGTYPE and len(name.encode()) >= 100:
                kind = tarfile.REGTYPE  # tarfile judges it by the cut name in the header, we by the whole name
            info.type, info.mtime = kind, mtime
            regular = kind in tarfile.REGULAR_TYPES
            info.size = len(data) if regular else 0
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = name[:50] or "x"
            try:
                target.addfile(info, io.BytesIO(data) if regular else None)
            except ValueError:  # a name that ustar cannot hold
                continue
    return out.getvalue()


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def same(a: tar.ShardScan, b: tar.ShardScan) -> None:
    assert a.keys == b.keys
    assert a.parts == b.parts
    for name in ("starts", "sample", "data", "sizes"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.closed == b.closed
    assert (a.special, a.hidden) == (b.special, b.hidden)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(MEMBER, max_size=12), FORM, st.sampled_from([0, 1.5]))
def test_walk_equals_tarfile_and_compiled_equals_walk(members: list, form: int, mtime: float) -> None:
    data = archive(members, form, mtime)
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        wanted = [(m.offset, m.offset_data, m.size, m.isreg(), not (m.isreg() or m.isdir())) for m in source]
        names = [m.name.rstrip("/") for m in source]
        end = source.offset
    found = list(tar.walk(data))
    assert [(m.start, m.data, m.size, m.regular, m.special) for m in found] == wanted
    assert [m.name.rstrip("/") for m in found] == names
    reference = tar.scan_reference(as_array(data))
    assert reference.problem is None
    assert reference.starts[-1] == end
    assert reference.special == sum(m.special and tar.sample_name(m.name) is not None for m in found)
    compiled = tar.scan_compiled(as_array(data))
    if compiled is None:  # a folder's name of 100 bytes: ustar keeps all of it as the prefix of an empty name
        assert any(data[m.start] == 0 for m in found)
    else:
        same(reference, compiled)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(MEMBER, min_size=1, max_size=6), FORM, st.data())
def test_damage_is_found_or_harmless_and_never_crashes(members: list, form: int, data: st.DataObject) -> None:
    raw = archive(members, form, 1.5)
    whole = tar.scan_reference(as_array(raw))
    if data.draw(st.booleans()):
        broken = raw[: data.draw(st.integers(1, len(raw) - 1))]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        broken = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    found = tar.scan_reference(as_array(broken))
    compiled = tar.scan_compiled(as_array(broken))
    if compiled is not None:
        same(found, compiled)
    if found.problem is None and found.closed and len(broken) == len(raw) and form == tarfile.USTAR_FORMAT:
        # a flipped bit in content, padding or an extension is the hash's business; headers must be unharmed
        assert found.keys == whole.keys
    if found.problem is not None:
        assert found.problem.kind in ("bad-header", "truncated")
        if form == tarfile.USTAR_FORMAT:
            assert found.keys == whole.keys[: len(found.keys)]


@pytest.mark.parametrize("cut", range(1, 3072, 97))
def test_a_cut_tar_says_where(cut: int) -> None:
    raw = tar_bytes([("a.txt", b"1" * 600), ("b.txt", b"2" * 600)])[:3072]
    found = tar.scan(as_array(raw[:cut]))
    whole = sum(cut >= end for end in (1536, 3072))
    assert found.keys == ["a", "b"][:whole]
    if cut != 1536:
        assert found.problem is not None
        assert found.problem.offset is not None
        assert "truncated" in str(found.problem)
    assert not found.closed


def test_global_pax_header_holds_for_what_follows() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as target:
        target.addfile(tarfile.TarInfo("a.txt"))
    data = out.getvalue()
    assert tar.scan_compiled(as_array(data)) is None  # left to the reference
    assert tar.scan(as_array(data)).keys == ["a"]


@pytest.mark.parametrize("kind", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_members_are_expanded_as_tarfile_does(kind: str) -> None:
    data = sparse_tar(kind)
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        wanted = source.extractfile(source.getmembers()[0]).read()  # type: ignore[union-attr]
    (member,) = tar.walk(data)
    assert member.name == "k.bin"
    assert tar.expand(data, member) == wanted == bytes(1000) + b"AAAA" + bytes(3996) + b"BBB" + bytes(997)
    assert tar.scan(as_array(data)).keys == ["k"]


def pax_tar(records: dict[str, str], data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        info = tarfile.TarInfo("k.bin")
        info.size, info.pax_headers = len(data), records
        target.addfile(info, io.BytesIO(data))
    return out.getvalue()


MAP_FIRST = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"}


@pytest.mark.parametrize(
    ("records", "data", "kind"),
    [
        ({"size": "9" * 5000}, b"abc", "bad-header"),
        ({"GNU.sparse.map": "0,3", "GNU.sparse.size": "9" * 19}, b"abc", "bad-header"),
        ({"GNU.sparse.map": "200,3", "GNU.sparse.size": "100"}, b"abc", "bad-header"),
        ({"GNU.sparse.map": "0,9000", "GNU.sparse.size": "10000"}, b"abc", "bad-header"),
        ({"GNU.sparse.map": "0,3,7", "GNU.sparse.size": "10"}, b"abc", "bad-header"),
        (MAP_FIRST, b"1\n90\n20\n".ljust(1024), "bad-header"),
        (MAP_FIRST, bytes(8 << 20), "bad-header"),  # these two took time with the square of what follows
        (MAP_FIRST, b"9999999\n" + b"1\n" * (2 << 20), "truncated"),
    ],
)
def test_damaged_maps_of_sparse_members_are_told(records: dict[str, str], data: bytes, kind: str) -> None:
    found = tar.scan(as_array(pax_tar(records, data)))
    assert found.keys == [] and found.problem is not None and found.problem.kind == kind


def test_a_sparse_member_that_no_memory_holds() -> None:
    archived = pax_tar({"GNU.sparse.map": "0,3", "GNU.sparse.size": str(1 << 62)}, b"abc")
    (member,) = tar.walk(archived)
    with pytest.raises(DataError, match="its numbers are wrong") as caught:
        tar.expand(archived, member)
    assert caught.value.record == "k.bin"


def test_a_map_of_many_blocks() -> None:
    pieces = [(1000 * i, 3) for i in range(2000)]
    head = b"".join([b"%d\n" % len(pieces), *(b"%d\n%d\n" % piece for piece in pieces)])
    data = head.ljust(-(-len(head) // 512) * 512, b"\0") + b"abc" * len(pieces)
    archived = pax_tar({**MAP_FIRST, "GNU.sparse.realsize": "2000000"}, data)
    (member,) = tar.walk(archived)
    assert tar.expand(archived, member) == (b"abc" + bytes(997)) * 2000


def test_base_256_sizes() -> None:
    data = bytearray(tar_bytes([("a.txt", b"12345")]))
    data[124:136] = b"\x80" + (5).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()
    found = tar.scan_compiled(as_array(bytes(data)))
    assert found is not None
    assert found.sizes.tolist() == [5]
    same(tar.scan_reference(as_array(bytes(data))), found)


def test_signed_checksums_of_old_writers_are_accepted() -> None:
    data = bytearray(tar_bytes([("é.txt", b"1")], form=tarfile.GNU_FORMAT))
    data[148:156] = b" " * 8
    signed = sum(b - 256 if b > 127 else b for b in data[:512])
    data[148:156] = f"{signed:06o}\0 ".encode()
    found = tar.scan_compiled(as_array(bytes(data)))
    assert found is not None
    same(tar.scan_reference(as_array(bytes(data))), found)


def with_field(data: bytes, at: int, field: bytes) -> bytes:
    """A tar whose header fields from byte `at` on are these, with the right checksum."""
    header = bytearray(data)
    header[at : at + len(field)] = field
    low = at // tar.BLOCK * tar.BLOCK
    if not low + 148 <= at < low + 156:
        header[low + 148 : low + 156] = b" " * 8
        header[low + 148 : low + 156] = f"{sum(header[low : low + 512]):06o}\0 ".encode()
    return bytes(header)


PLAIN = tar_bytes([("a.txt", b"12345"), ("b.txt", b"1")])
CHECKSUM = int(PLAIN[148:154], 8)


@pytest.mark.parametrize(
    "data",
    [
        with_field(tar_bytes([("a.txt", b"")]), 124, b"0000000 000\0"),
        with_field(PLAIN, 124, b"5          8"),
        with_field(PLAIN, 148, b"\x80" + CHECKSUM.to_bytes(7, "big")),
        with_field(PLAIN, 148, b"%06o 7" % CHECKSUM),
    ],
    ids=["a gap", "no digit", "base 256 checksum", "two checksums"],
)
def test_odd_numbers_in_headers_are_as_bad_as_the_walk_says(data: bytes) -> None:
    reference, found = tar.scan_reference(as_array(data)), tar.scan(as_array(data))
    same(reference, found)
    assert reference.problem is not None and found.problem is not None
    assert found.problem.offset == reference.problem.offset


def test_an_empty_path_of_a_pax_header_leaves_the_name_as_it_is() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        info = tarfile.TarInfo("k.txt")
        info.pax_headers = {"path": ""}
        target.addfile(info)
    data = as_array(out.getvalue())
    assert tar.scan(data).keys == tar.scan_reference(data).keys == ["k"]


def test_a_path_and_a_long_name_before_one_member() -> None:
    paths = archive([("p" * 120 + ".pax", b"", tarfile.REGTYPE)], tarfile.PAX_FORMAT, 0)
    longs = archive([("l" * 120 + ".gnu", b"", tarfile.REGTYPE)], tarfile.GNU_FORMAT, 0)
    for data in (paths[:1024] + longs, longs[:1024] + paths):
        reference = tar.scan_reference(as_array(data))
        same(reference, tar.scan(as_array(data)))
        assert reference.parts == ["pax"]


NAMES = [
    ("a.txt", ("a", "txt")),
    ("a/b.c/d.tar.gz", ("a/b.c/d", "tar.gz")),
    ("d/.hidden.txt", ("d/", "hidden.txt")),
    ("name.", ("name", "")),
    (".top", None),
    ("noext", None),
    ("dir.x/noext", None),
    ("__x__/a.txt", None),
    ("__x__.txt", ("__x__", "txt")),
    ("___.txt", ("___", "txt")),
    ("./a.txt", ("./a", "txt")),
    ("a/__x__/k.txt", ("a/__x__/k", "txt")),
]


@pytest.mark.parametrize(("name", "wanted"), NAMES)
def test_sample_names(name: str, wanted: tuple[str, str] | None) -> None:
    assert tar.sample_name(name) == wanted
    found = tar.scan_compiled(as_array(tar_bytes([(name, b"x")])))
    assert found is not None
    assert list(zip(found.keys, found.parts, strict=True)) == ([wanted] if wanted else [])


@settings(max_examples=examples(200), deadline=None)
@given(st.text("_a/.", min_size=1, max_size=12))
def test_sample_names_follow_the_written_rules(name: str) -> None:
    last = name.rpartition("/")[2]
    skipped = "." not in last or (name.startswith(".") and "/" not in name) or re.match(r"__[^/]*__(/|$)", name)
    found = tar.sample_name(name)
    assert (found is None) == bool(skipped)
    if found:
        assert ".".join(found) == name
        assert "." not in found[0].rpartition("/")[2]


def test_errors_name_the_member() -> None:
    raw = tar_bytes([("a.txt", b"1" * 600)])[:700]
    with pytest.raises(DataError, match=r"'a.txt' at byte 0: the archive is truncated inside this member"):
        list(tar.walk(raw))
