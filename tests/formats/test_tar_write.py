"""Tars written in bulk: what Python's `tarfile` and our own scan read is what went in."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.formats.tar.write import END, LONGEST_NAME, Members, encode_name
from feedmill.kernels.files import tar

COMPONENT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/."), min_size=1, max_size=60)
NAME = st.builds(lambda folders, name, part: "/".join([*folders, f"{name}.{part}"]),
                 st.lists(COMPONENT, max_size=4), COMPONENT, st.sampled_from(["txt", "a.b", "jpg"]))  # fmt: skip


def written(files: list[tuple[str, bytes]]) -> tuple[bytes, Members]:
    members = Members([encode_name(name) for name, _ in files], [len(content) for _, content in files])
    return b"".join(members.pieces([content for _, content in files])) + END, members


@given(st.lists(st.tuples(NAME, st.binary(max_size=1100)), max_size=8))
def test_every_reader_reads_what_was_written(files: list[tuple[str, bytes]]) -> None:
    raw, members = written(files)
    assert len(raw) == int(members.starts[-1]) + 1024
    with tarfile.open(fileobj=io.BytesIO(raw), encoding="utf-8") as archive:
        infos = archive.getmembers()
        assert [info.name for info in infos] == [name for name, _ in files]
        assert [archive.extractfile(info).read() for info in infos] == [content for _, content in files]
        assert [info.offset for info in infos] == members.starts[:-1].tolist()
        assert [info.offset_data for info in infos] == members.data.tolist()
    walked = list(tar.walk(raw))
    assert [(m.name, m.start, m.data, m.size) for m in walked] == [
        (name, start, data, len(content))
        for (name, content), start, data in zip(files, members.starts[:-1].tolist(), members.data.tolist(), strict=True)
    ]
    if files:
        found = tar.scan(np.frombuffer(raw, np.uint8))
        assert found.problem is None and found.closed


def test_headers_are_those_of_tarfile() -> None:
    info = tarfile.TarInfo("folder/0001.jpg")
    info.size, info.mode, info.mtime = 5, 0o444, 0
    want = info.tobuf(tarfile.USTAR_FORMAT)
    assert written([("folder/0001.jpg", b"12345")])[0][:512] == want


def test_short_names_take_one_header_and_long_ones_what_they_need() -> None:
    short, _ = written([("a" * 96 + ".txt", b"")])
    cut, _ = written([("d" * 80 + "/" + "a" * 96 + ".txt", b"")])
    long, _ = written([("a" * 97 + ".txt", b"")])
    assert (len(short), len(cut), len(long)) == (512 + 1024, 512 + 1024, 3 * 512 + 1024)


def test_a_content_of_8_gib_has_its_size_in_a_pax_record() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 9 << 30

    members = Members([b"a.bin"], [9 << 30])
    head = b"".join(members.pieces([Huge()])[:2])
    assert len(head) == 1536 and b"size=9663676416\n" in head
    found = tarfile.TarFile(fileobj=io.BytesIO(head)).next()
    assert found is not None and found.size == 9 << 30
    assert members.starts.tolist() == [0, 1536 + (9 << 30)]


@pytest.mark.parametrize("name", ["a\0.txt", "x" * (LONGEST_NAME + 1), "\ud800.txt"])
def test_names_that_a_tar_should_not_have(name: str) -> None:
    with pytest.raises(DataError) as error:
        encode_name(name)
    assert error.value.kind == "bad-name"
    str(error.value).encode()
