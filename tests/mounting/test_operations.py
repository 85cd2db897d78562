"""The mounted file system, driven directly: names, attributes, bytes by offset, errors, many threads."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.energon.index import IndexRows, write_index
from feedmill.indexing.manifests import write_manifest
from feedmill.indexing.prepare import prepare
from feedmill.mounting.catalog import IndexCatalog
from feedmill.mounting.mount import Operations, operations
from feedmill.storage import LocalStore
from helpers.raw_samples import samples_of_tars
from helpers.tars import make_shards, sparse_tar, write_tar
from helpers.written_datasets import samples


def names(fs: Operations, path: str = "/", at_once: int = 1000) -> list[str]:
    """A folder as the kernel lists it: piece by piece, each piece from the last place that was taken."""
    handle, offset, out = fs.opendir(path), 0, []
    while True:
        taken = 0
        for name, kind, place in fs.readdir_with_offset(path, offset, handle):
            if taken == at_once:
                break  # was given, and not taken
            assert kind in (stat.S_IFDIR, stat.S_IFREG)
            out.append(name)
            offset, taken = place, taken + 1
        if not taken:
            fs.releasedir(path, handle)
            assert out[:2] == [".", ".."]
            return out[2:]


def read(fs: Operations, path: str, step: int = 1 << 20) -> bytes:
    handle = fs.open(path, os.O_RDONLY)
    size = fs.getattr(path)["st_size"]
    data = b"".join(fs.read(path, step, at, handle) for at in range(0, size + 1, step))
    fs.release(path, handle)
    return data


def tree(fs: Operations, path: str = "/") -> dict[str, bytes]:
    """Every file below a folder."""
    out: dict[str, bytes] = {}
    for name in names(fs, path):
        inner = f"{path.rstrip('/')}/{name}"
        if stat.S_ISDIR(fs.getattr(inner)["st_mode"]):
            out |= tree(fs, inner)
        else:
            out[inner] = read(fs, inner)
    return out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [*samples(40), {"__key__": "a/b/x", "txt": "1"}, {"__key__": "a/b/y", "txt": "2", "tar.gz": b"3"}]
    rows += [{"__key__": "a/z", "txt": "4"}, {"__key__": "a", "txt": "5"}, {"__key__": "a-", "txt": "6"}]
    fm.write(str(tmp_path / "d"), rows, max_shard_samples=15)
    return tmp_path / "d"


def expected(root: Path, name: Callable[[str, str], str]) -> dict[str, bytes]:
    return {f"/{name(s.key, part)}": s.raw(part) for s in fm.open(root, raw=True) for part in s}


def flat(key: str, part: str) -> str:
    return f"{key}.{part}"


def foldered(key: str, part: str) -> str:
    return f"{key}/{key.rpartition('/')[2]}.{part}"


@pytest.mark.parametrize(("sample_folders", "name"), [(False, flat), (True, foldered)])
def test_every_part_is_a_file(root: Path, sample_folders: bool, name: Callable[[str, str], str]) -> None:
    with operations(str(root), sample_folders=sample_folders) as fs:
        assert tree(fs) == expected(root, name)
        assert len(set(names(fs))) == len(names(fs))


@pytest.mark.parametrize("sample_folders", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_plain_tars_and_one_tar(tmp_path: Path, prepared: bool, sample_folders: bool) -> None:
    root = make_shards(tmp_path / "d", [3, 4])
    if prepared:
        prepare(str(root), progress=False)
    name = foldered if sample_folders else flat
    with operations(str(root), sample_folders=sample_folders) as fs:
        assert tree(fs) == expected(root, name)
    with operations(str(root / "shards/shard_001.tar"), sample_folders=sample_folders) as fs:
        assert len(tree(fs)) == 8


@pytest.mark.parametrize("sample_folders", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_tar_of_a_folder_shows_what_the_folder_held(tmp_path: Path, prepared: bool, sample_folders: bool) -> None:
    """As ``tar -C folder -cf x.tar .`` makes it: all keys begin with a dot and a slash."""
    files = [("./a.txt", b"1"), ("./b/c.txt", b"22"), ("./b/d.json", b"3"), ("./b.txt", b"4")]
    write_tar(tmp_path / "d/x.tar", files)
    if prepared:
        prepare(str(tmp_path / "d"), split_ratio="1,0,0", progress=False)
    with operations(str(tmp_path / "d"), sample_folders=sample_folders) as fs:
        if sample_folders:
            wanted = {"/a/a.txt": b"1", "/b/c/c.txt": b"22", "/b/d/d.json": b"3", "/b/b.txt": b"4"}
        else:
            wanted = {name[1:]: data for name, data in files}
        assert tree(fs) == wanted


@pytest.mark.parametrize("sample_folders", [False, True])
def test_keys_that_no_file_can_have_are_shown_by_others(tmp_path: Path, sample_folders: bool) -> None:
    keys = ["./a", "/b/c", "../d", "e//f", "e/./g", "e/h", "i", "/j"]
    write_tar(tmp_path / "d/x.tar", [(f"{key}.txt", key.encode()) for key in keys])
    shown = ["%2E/a", "%/b/c", "%2E%2E/d", "e/%/f", "e/%2E/g", "e/h", "i", "%/j"]
    with operations(str(tmp_path / "d"), sample_folders=sample_folders) as fs:
        name = foldered if sample_folders else flat
        found = tree(fs)
    assert found == {f"/{name(place, 'txt')}": key.encode() for place, key in zip(shown, keys, strict=True)}


@pytest.mark.parametrize("sample_folders", [False, True])
def test_lines_are_files(tmp_path: Path, sample_folders: bool) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n  {"a": 22}  \n')
    with operations(str(tmp_path / "x.jsonl"), sample_folders=sample_folders) as fs:
        name = foldered if sample_folders else flat
        assert tree(fs) == {f"/{name('0', 'json')}": b'{"a": 1}', f"/{name('1', 'json')}": b'{"a": 22}'}
        for path in ("/2.json", "/01.json", "/x.json", "/0.txt", "/9"):
            with pytest.raises(OSError, match="No such"):
                fs.getattr(path)


def test_golden_quirks_are_read_as_tarfile_reads_them(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden/energon/tar_quirks"
    tars = [str(path.relative_to(golden)) for path in sorted(golden.rglob("*.tar"))]
    if not tars:
        pytest.skip("no golden tars here")
    for name in tars:
        wanted = {f"/{s.key}.{p}": s.raw(p) for s in samples_of_tars(golden, [name], decode=None) for p in s}
        with operations(str(golden / name)) as fs:
            got = tree(fs)
        twice = expected(golden / name, flat)
        if "/cc.txt" in twice:  # two members of one name: by name one gets the first, the loader gives the last
            twice["/cc.txt"] = wanted["/cc.txt"] = b"first"
        got = {path.replace("/%2E/", "/./"): data for path, data in got.items()}
        assert got == twice and got.items() <= wanted.items()


@pytest.mark.parametrize("kind", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_files_are_whole(tmp_path: Path, kind: str) -> None:
    (tmp_path / "s.tar").write_bytes(sparse_tar(kind))
    with operations(str(tmp_path / "s.tar")) as fs:
        content = read(fs, "/k.bin")
    assert len(content) == 6000 and content[:1000] == bytes(1000)


def test_long_names_and_large_files_are_read_by_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = np.random.default_rng(0).bytes(3 << 20)
    files = [("x" * 180 + ".bin", big), ("y.bin", big[::-1])]
    for form, name in ((tarfile.PAX_FORMAT, "pax.tar"), (tarfile.GNU_FORMAT, "gnu.tar")):
        write_tar(tmp_path / name, files, form=form)
        with operations(str(tmp_path / name)) as fs:
            asked = []
            plain = LocalStore.read

            def counted(self: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
                asked.append(length)  # noqa: B023
                return plain(self, path, offset, length)  # noqa: B023

            monkeypatch.setattr(LocalStore, "read", counted)
            for path, data in files:
                handle = fs.open(f"/{path}", os.O_RDONLY)
                assert fs.read(f"/{path}", 1000, 1 << 20, handle) == data[1 << 20 : (1 << 20) + 1000]
                assert fs.read(f"/{path}", 1000, len(data) - 10, handle) == data[-10:]
                assert fs.read(f"/{path}", 1000, len(data) + 10, handle) == b""
            assert max(asked) <= 4096  # never the whole file
            monkeypatch.undo()


def test_attributes(root: Path) -> None:
    with operations(str(root)) as fs:
        top, file = fs.getattr("/"), fs.getattr("/s00003.bin")
        assert stat.S_ISDIR(top["st_mode"]) and stat.S_IMODE(top["st_mode"]) == 0o555
        assert stat.S_ISREG(file["st_mode"]) and file["st_size"] == 111 and stat.S_IMODE(file["st_mode"]) == 0o444
        assert fs.statfs("/")["f_bfree"] == 0 and fs.access("/s00003.bin", os.R_OK) == 0


def test_errors_have_their_numbers(root: Path) -> None:
    with operations(str(root)) as fs:
        cases: list[tuple[int, Callable[[], object]]] = [
            (errno.ENOENT, lambda: fs.getattr("/nope")),
            (errno.ENOENT, lambda: fs.getattr("/s00003.jpg")),
            (errno.ENOENT, lambda: fs.getattr("/s00003")),
            (errno.ENOENT, lambda: fs.getattr("/s00003.bin/x")),
            (errno.ENOENT, lambda: fs.open("/nope.txt", os.O_RDONLY)),
            (errno.ENOENT, lambda: fs.opendir("/nope")),
            (errno.ENOTDIR, lambda: fs.opendir("/s00003.bin")),
            (errno.EISDIR, lambda: fs.open("/a", os.O_RDONLY)),
            (errno.EROFS, lambda: fs.open("/s00003.bin", os.O_RDWR)),
            (errno.EROFS, lambda: fs.open("/new", os.O_WRONLY | os.O_CREAT)),
            (errno.EROFS, lambda: fs.access("/s00003.bin", os.W_OK)),
            (errno.EBADF, lambda: fs.read("/s00003.bin", 1, 0, 999)),
            (errno.EBADF, lambda: fs.readdir_with_offset("/", 0, 999)),
        ]
        for number, call in cases:
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == number


def test_an_index_out_of_date_gives_eio_and_not_other_bytes(root: Path) -> None:
    with operations(str(root)) as fs:
        shard = root / "shards/000000.tar"
        data, status = shard.read_bytes().replace(b"s00003.bin", b"x00003.bin"), shard.stat()
        shard.write_bytes(data)
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # damage, and no other shard in its place
        with pytest.raises(OSError) as error:
            fs.open("/s00003.bin", os.O_RDONLY)
        assert error.value.errno == errno.EIO
        assert read(fs, "/s00004.bin") == bytes([4]) * 148
        shard.write_bytes(data[:2000])
    with operations(str(root)) as fs, pytest.raises(OSError) as error:
        fs.open("/s00000.json", os.O_RDONLY)
    assert error.value.errno == errno.EIO


DAMAGE: dict[str, str | None] = {
    "page": None,
    "column": "ALTER TABLE samples RENAME COLUMN sample_key TO renamed",
    "offsets": "UPDATE sample_parts SET content_byte_offset = 'x'",
    "sizes": "UPDATE sample_parts SET content_byte_size = NULL",
    "shards": "UPDATE samples SET tar_file_id = 77; UPDATE sample_parts SET tar_file_id = 77",
    "samples": "UPDATE samples SET sample_index = 777; UPDATE sample_parts SET sample_index = 777",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_an_error_of_ours_and_gives_eio(root: Path, damage: str) -> None:
    database = root / ".nv-meta" / "index.sqlite"
    sql = DAMAGE[damage]
    if sql is None:
        raw = bytearray(database.read_bytes())
        for page in range(4096, len(raw), 4096):  # but the first, with the schema
            raw[page : page + 4096] = bytes(4096)
        database.unlink()
        database.write_bytes(raw)
    else:
        with sqlite3.connect(database) as connection:
            connection.executescript(sql)
    with operations(str(root)) as fs:
        with pytest.raises(OSError) as error:
            fs.open("/s00003.bin", os.O_RDONLY)
        assert error.value.errno == errno.EIO
        if damage in ("page", "column"):  # what is not read at all
            for call in (lambda: names(fs), lambda: fs.getattr("/s00003.bin"), lambda: fs.opendir("/a")):
                with pytest.raises(OSError) as error:
                    call()
                assert error.value.errno == errno.EIO
            with pytest.raises(DataError, match="the index cannot be read") as told:
                list(IndexCatalog(database, False).children(""))
            assert told.value.file == str(database)


def test_keys_out_of_order_end_a_listing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = IndexCatalog(root / ".nv-meta" / "index.sqlite", True)
    monkeypatch.setattr(catalog, "_ask", lambda *_: [("a0",)])
    with pytest.raises(DataError, match="out of order"):
        list(catalog.children(""))


@pytest.mark.parametrize("at_once", [1, 2, 7, 1000])
def test_a_listing_goes_on_where_it_stopped(root: Path, at_once: int) -> None:
    with operations(str(root)) as fs:
        assert names(fs, "/", at_once) == names(fs)
        handle = fs.opendir("/")
        first = [name for name, _, _ in fs.readdir_with_offset("/", 0, handle)]
        again = [name for name, _, _ in fs.readdir_with_offset("/", 0, handle)]  # rewinddir
        behind = [name for name, _, _ in fs.readdir_with_offset("/", 5, handle)]  # seekdir
        assert first == again and behind == first[5:]


def test_many_threads_read_at_once(root: Path) -> None:
    with operations(str(root)) as fs:
        wanted = expected(root, flat)
        jobs = [path for path in wanted for _ in range(5)]
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda path: read(fs, path, 64), jobs)) == [wanted[path] for path in jobs]
            lists = list(pool.map(lambda _: names(fs, "/", 3), range(16)))
        assert all(found == lists[0] for found in lists) and not fs._files and not fs._listings


def test_a_large_folder_is_listed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 9_000
    number = np.arange(count)
    zeros = np.zeros(count, np.int64)
    rows = IndexRows(zeros, number, number * 1024, zeros + 1024, [f"k{i:06d}" for i in range(count)],
                     zeros, number, number * 1024 + 512, zeros + 5, ["txt"] * count)  # fmt: skip
    write_index(tmp_path / "index.sqlite", rows)
    catalog = IndexCatalog(tmp_path / "index.sqlite", False)
    asked = []
    assert catalog.is_folder("")
    assert catalog.file("nothing.txt") is None
    catalog._idle[0].set_trace_callback(asked.append)
    listing: Iterator[object] = catalog.children("")
    for _ in range(10):
        next(listing)
    assert len(asked) == 2  # one page of keys, one of their files
    assert sum(1 for _ in listing) == count - 10
    found = catalog.file("k008999.txt")
    assert found is not None and (found.size, found.sample) == (5, 8_999)


def test_what_cannot_be_mounted(tmp_path: Path) -> None:
    from feedmill.mounting.mount import mount

    make_shards(tmp_path / "d", [2])
    make_shards(tmp_path / "d", [2], folder="again")
    with pytest.raises(DataError) as duplicate, operations(str(tmp_path / "d")):
        pass
    assert duplicate.value.kind == "duplicate-key"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    for place in ("none", "full"):
        with pytest.raises(ConfigError):
            mount(str(tmp_path / "d/shards/shard_000.tar"), str(tmp_path / place))


def test_shards_of_a_manifest(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 3])
    write_manifest(str(root), progress=False)
    (root / "manifest.jsonl").write_text((root / "manifest.jsonl").read_text().splitlines(True)[1])
    listed = fm.open(root, raw=True, decode=None)
    wanted = {f"/{sample.key}.{part}": sample.raw(part) for sample in listed for part in sample}
    with operations(str(root)) as fs:
        assert tree(fs) == wanted
