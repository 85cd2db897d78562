"""Writing to an object store, and going on after an error there."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.writing.append import append
from feedmill.writing.delete import delete
from feedmill.writing.reshard import reshard
from helpers.stores import s3_bucket, s3_server  # noqa: F401
from helpers.written_datasets import Broken, breaking, contents, samples


@pytest.fixture
def bucket(s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return s3_bucket


def test_object_stores_are_written_too(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fm.write(str(tmp_path / "d"), samples(60), max_shard_samples=20)
    with pytest.raises(Broken):
        fm.write(f"{bucket}/d", breaking(64), max_shard_samples=20)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache of another machine"))
    report = fm.write(f"{bucket}/d", samples(64), max_shard_samples=20)
    assert (report.reused, report.shards) == (3, 4)
    append(f"{bucket}/d", [str(tmp_path / "d")], prefix="more/", workers=1)
    reshard(f"{bucket}/d", f"{bucket}/e", max_shard_samples=50, workers=1)
    assert contents(f"{bucket}/e") == contents(f"{bucket}/d") and len(contents(f"{bucket}/e")) == 124
    with pytest.raises(ConfigError) as error:
        delete(f"{bucket}/d", ["s00001"])
    assert error.value.kind == "unsupported"
