"""Energon's paths: local files, buckets through profiles of rclone, and datasets of `dss://`."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.compat.energon.epathlib import DEFAULT_PROFILE_NAME, EPath
from feedmill.errors import ConfigError


@pytest.fixture(params=["local", "bucket"])
def folder(request, tmp_path, monkeypatch) -> EPath:
    if request.param == "local":
        return EPath(tmp_path / "data")
    bucket = request.getfixturevalue("s3_bucket").removeprefix("s3://")
    conf = tmp_path / "rclone"
    conf.mkdir()
    (conf / "rclone.conf").write_text(
        f"[lab]\ntype = s3\naccess_key_id = {os.environ['AWS_ACCESS_KEY_ID']}\n"
        f"secret_access_key = {os.environ['AWS_SECRET_ACCESS_KEY']}\nregion = us-east-1\n"
        f"endpoint = {os.environ['AWS_ENDPOINT_URL']}\n"
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MSC_CONFIG", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    return EPath(f"msc://lab/{bucket}/data")


def test_files_are_written_read_listed_copied_and_moved(folder, tmp_path):
    for name in ("a.txt", "sub/b.txt", "sub/c.bin", ".nv-meta/x.txt"):
        (folder / name).write_text(name)
    assert [path.relative_to(folder) for path in folder.walk()] == [".nv-meta/x.txt", "a.txt", "sub/b.txt", "sub/c.bin"]
    visible = [path.relative_to(folder) for path in folder.glob("**/*.txt")]
    assert [name for name in visible if "nv-meta" not in name] == ["a.txt", "sub/b.txt"]
    assert [str(path) for path in folder.glob("s*/[ab].txt")] == [f"{folder}/sub/b.txt"]
    assert list(folder.glob("none/*")) == []
    with (folder / "sub/c.bin").open("rb") as file:
        assert file.read(3) == b"sub" and file.seek(4) == 4 and file.read() == b"c.bin"
    with (folder / "a.txt").open() as text, (folder / "a.txt").open(prefetch_file=True) as whole:
        assert text.read() == whole.read() == "a.txt"
    (folder / "sub").copy(EPath(tmp_path / "copied"))
    assert (tmp_path / "copied/c.bin").read_bytes() == b"sub/c.bin"
    (folder / "a.txt").move(folder / "d.txt")
    assert (folder / "d.txt").read_text() == "a.txt" and not (folder / "a.txt").is_file()
    (folder / "sub").move(folder / "moved")
    assert not list(folder.glob("sub/*")) and (folder / "moved/b.txt").is_file()


def test_metadata_and_missing_files(folder):
    path = folder / "x/data.bin"
    with path.open("wb") as file:
        assert file.write(b"12345") == 5 and file.tell() == 5
    assert path.is_file() and not path.is_dir() and (folder / "x").is_dir() and not (folder / "x").is_file()
    status = path.stat()
    assert (path.size(), status.content_length, status.type) == (5, 5, "file")
    assert timedelta(0) <= datetime.now(UTC) - status.last_modified + timedelta(seconds=2) < timedelta(minutes=5)
    assert (folder / "x").stat().type == "directory"
    path.unlink()
    assert not path.is_file()
    for action in (path.unlink, path.read_bytes, path.open, path.size, path.stat):
        with pytest.raises(FileNotFoundError):
            action()
    with pytest.raises(FileNotFoundError):
        list((folder / "nothing").walk())
    with pytest.raises(ValueError, match="invalid mode"):
        path.open("a")


def test_an_error_while_writing_leaves_nothing(folder):
    for mode, data in (("w", "half"), ("wb", b"half")):
        with pytest.raises(KeyError), (folder / "x").open(mode) as file:
            file.write(data)
            raise KeyError
    assert not (folder / "x").is_file()
    file = (folder / "x").open("w")
    file.write("ü")
    file.close()
    assert (folder / "x").read_bytes() == b"\xc3\xbc"


def test_a_bucket_is_a_folder(folder):
    (folder / "a").write_text("a")
    assert folder.parent.is_dir() and not folder.parent.is_file()
    assert pickle.loads(pickle.dumps(folder)) == folder and folder.is_local() == (folder.profile == "__filesystem__")


@pytest.mark.parametrize(
    ("given", "text", "profile", "name", "parent"),
    [
        ("/a/../b/./c.tar", "/b/c.tar", "__filesystem__", "c.tar", "/b"),
        ("file:///a/b", "/a/b", "__filesystem__", "b", "/a"),
        (f"msc://{DEFAULT_PROFILE_NAME}/etc/hosts", "/etc/hosts", "__filesystem__", "hosts", "/etc"),
        ("msc://p/b/x/../y/", "msc://p/b/y", "p", "y", "msc://p/b"),
        ("s3://b/x", "s3://b/x", "b", "x", "s3://b"),
        ("s3://b", "s3://b", "b", "", "s3://b"),
        ("/", "/", "__filesystem__", "", "/"),
        ("dss://charts@v0/images/0.jpg", "dss://charts@v0/images/0.jpg", "dss", "0.jpg", "dss://charts@v0/images"),
    ],
)
def test_parts_of_a_path(given, text, profile, name, parent):
    path = EPath(given)
    assert (str(path), path.url, path.profile, path.name, str(path.parent)) == (text, text, profile, name, parent)
    assert repr(path) == f"EPath({text!r})" and EPath(path) is path and os.fspath(path) == text


def test_joining_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert EPath("x") == str(tmp_path / "x") and EPath(Path("x")) == EPath("x")
    path = EPath("msc://p/b/c")
    assert str(path / "../d") == "msc://p/b/d" and path / "/e" == "/e" and path / EPath("s3://f/g") == "s3://f/g"
    assert str(path.with_suffix(".txt")) == "msc://p/b/c.txt" and path.relative_to(EPath("msc://p/b")) == "c"
    assert EPath("dss://charts@v0/x").display_name == "charts@v0" and path.display_name == "c"
    with pytest.raises(ValueError, match="leads above its root"):
        path / "../../../x"
    with pytest.raises(ValueError, match="not local"):
        EPath("s3://b/x").local_path()
    with pytest.raises(AssertionError, match="different profiles"):
        path.relative_to(EPath("msc://q/b"))
    with pytest.warns(DeprecationWarning, match="rclone:// is deprecated"):
        assert EPath("rclone://p/b") == "msc://p/b"


def test_datasets_of_a_dataset_service(tmp_path, monkeypatch):
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    (tmp_path / "charts/v0/images").mkdir(parents=True)
    (tmp_path / "charts/v0/images/0.jpg").write_bytes(b"jpg")
    root = EPath("dss://charts@v0")
    assert [str(path) for path in root.walk()] == ["dss://charts@v0/images/0.jpg"]
    assert root.local_path() == tmp_path / "charts/v0" and root.is_dir() and root.is_local()
    (tmp_path / "texts/v1").mkdir(parents=True)
    (tmp_path / "texts/v1/a.jsonl").write_text('{"text": "x"}\n')
    assert len(fm.open("dss://texts@v1/a.jsonl")) == 1
    for wrong in ("dss://charts", "dss://@v0", "dss://charts@"):
        with pytest.raises(AssertionError, match="version"):
            EPath(wrong)
        with pytest.raises(ConfigError, match="has no version"):
            fm.open(wrong)
    monkeypatch.delenv("NVDATASET_CACHE_DIR")
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR is not set"):
        root.is_dir()
