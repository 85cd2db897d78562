"""Re-sharding where source and destination are one place, by whatever name: nothing is deleted that will be read."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tar.wids import write_wids
from feedmill.storage import open_store
from feedmill.writing.reshard import reshard
from helpers.tars import make_shards
from helpers.written_datasets import files, samples


def test_a_data_set_is_not_replaced_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "d"
    fm.write(str(root), samples(20), progress=False)
    write_wids(open_store(str(root)), ["shards/000000.tar"], "wids.json")
    (tmp_path / "link").symlink_to(root)
    before = files(root)
    names = (f"file://{root}", f"{root}/", f"{tmp_path}/link", f"{root}/shards/000000.tar", f"{root}/wids.json")
    for source in (*names, f"{root}/shards/{{000000..000000}}.tar", f"file://{root}/shards/000000.tar"):
        with pytest.raises(ConfigError):
            reshard(source, str(root), max_shard_samples=5, overwrite=True, workers=1)
        assert files(root) == before, source


def test_a_folder_in_the_source_is_refused(tmp_path: Path) -> None:
    make_shards(tmp_path / "plain", [3, 4])  # killed, the new tars would be among those that are read
    with pytest.raises(ConfigError, match="into itself"):
        reshard(str(tmp_path / "plain"), str(tmp_path / "plain/new"), max_shard_samples=2, workers=1)
    assert not (tmp_path / "plain/new").exists()
