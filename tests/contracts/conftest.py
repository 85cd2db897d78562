import shutil
from pathlib import Path

import pytest

from helpers.dry_runs import data
from helpers.engine_verbs import alone, inputs
from helpers.ray_cluster import cluster, connection, engine

__all__ = ["alone", "cluster", "connection", "engine", "inputs"]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of data that the commands of dry runs name; see `helpers.dry_runs`."""
    root = tmp_path_factory.mktemp("dry-runs")
    data(root)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a copy of the data, for a command that may change it."""
    shutil.copytree(template, tmp_path / "data")  # keeps times, which indices know
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache/feedmill"))
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data"
