"""What `mount` does around FUSE, with a stand-in for the library: the same on machines with FUSE and without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError, MissingExtra, StorageError
from feedmill.mounting import mount as module
from feedmill.mounting.mount import mount
from helpers.tars import make_shards


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mnt").mkdir()
    return tmp_path / "mnt"


@pytest.fixture
def tar(tmp_path: Path) -> str:
    return str(make_shards(tmp_path / "d", [3]) / "shards/shard_000.tar")


Fuse = Callable[..., None]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Fuse], None]:
    """Let `mount` find a library whose main loop is the given function, and a device."""

    def install(fuse: Fuse) -> None:
        library = ModuleType("mfusepy")
        library.FUSE = fuse  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mfusepy", library)
        (tmp_path / "fuse").touch()
        monkeypatch.setattr(module, "DEVICE", str(tmp_path / "fuse"))

    return install


class Broken:
    """A library that is installed and finds no libfuse, as its import says."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name == "mfusepy":
            raise OSError("Unable to find libfuse")
        return None


def test_the_files_are_served_read_only_while_the_library_runs(
    tar: str, place: Path, stand_in: Callable[[Fuse], None]
) -> None:
    served: dict[str, bytes] = {}
    asked: dict[str, Any] = {}

    def fuse(operations: Any, mountpoint: str, **options: Any) -> None:
        asked.update(options, mountpoint=mountpoint)
        handle = operations.opendir("/")
        for name, _, _ in operations.readdir_with_offset("/", 0, handle):
            if name not in (".", ".."):
                file = operations.open(f"/{name}", 0)
                served[name] = operations.read(f"/{name}", 1 << 20, 0, file)
                operations.release(f"/{name}", file)

    stand_in(fuse)
    steps: list[int] = []
    mount(tar, str(place), ready=lambda: steps.append(len(served)))
    assert served == {f"{s.key}.{part}": s.raw(part) for s in fm.open(tar, raw=True) for part in s}
    assert steps == [0]  # it is announced before the files appear
    assert (asked["mountpoint"], asked["ro"], asked["foreground"]) == (str(place), True, True)


@pytest.mark.parametrize("detach", [False, True])
def test_a_signal_ends_it_without_an_error_and_other_codes_are_errors(
    tar: str, place: Path, stand_in: Callable[[Fuse], None], detach: bool
) -> None:
    def ends(code: int) -> Fuse:
        def fuse(*_: Any, foreground: bool, **__: Any) -> None:
            assert foreground is not detach
            raise RuntimeError(code)

        return fuse

    stand_in(ends(8))
    mount(tar, str(place), detach=detach)
    stand_in(ends(1))
    with pytest.raises(StorageError, match="FUSE returned 1") as error:
        mount(tar, str(place), detach=detach)
    assert error.value.kind == "mount-failed"


def test_the_mount_point_is_looked_at_before_fuse(
    tar: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user got wrong is said on any machine, and not hidden behind what the machine lacks."""
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    (place / "x").touch()
    for folder in (tmp_path / "none", place):
        with pytest.raises(ConfigError) as error:
            mount(tar, str(folder))
        assert error.value.kind == "mount-failed"


@pytest.mark.parametrize("missing", ["package", "library", "device"])
def test_what_the_machine_lacks_is_an_error_with_its_fix(
    tar: str,
    place: Path,
    tmp_path: Path,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    stand_in: Callable[[Fuse], None],
) -> None:
    stand_in(lambda *_, **__: pytest.fail("nothing was to be mounted"))
    if missing == "package":
        monkeypatch.setitem(sys.modules, "mfusepy", None)
    elif missing == "library":
        monkeypatch.delitem(sys.modules, "mfusepy")
        monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    else:
        (tmp_path / "fuse").unlink()
    with pytest.raises(FeedmillError) as error:
        mount(tar, str(place))
    assert isinstance(error.value, MissingExtra if missing == "package" else StorageError)
    assert ("feedmill[mount]" if missing == "package" else "apt install fuse3") in str(error.value)
