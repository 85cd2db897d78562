"""What `forget` reports is all that holds a document, and its lists remove it from the next filter, file and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, NotFound
from feedmill.tracing.forget import forget
from helpers.lineage_data import build


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget")
    build(folder, 240)
    return folder


def kept_ids(root: Path) -> list[str]:
    """The ids that the filter kept, in the order of the token file."""
    import gzip

    files = sorted((root / "kept").glob("*.gz"))
    return [json.loads(line)["id"] for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_the_lists_remove_the_documents(root: Path, tmp_path: Path) -> None:
    ids = kept_ids(root)
    gone = [ids[3], ids[17]]
    paths = [root / "recipe.yaml", root / "tokens/web.ds", root / "kept"]
    report = forget(gone, paths, report=tmp_path / "gone", global_batch=4)
    assert [one.id for one in report.documents] == gone
    assert report.files[str(root / "tokens/web.pbin")] == report.files[str(root / "tokens/web.ds")] == [3, 17]
    for one in report.documents:
        seen = one.seen[str(root / "recipe.yaml")]
        assert seen["times"] >= 2 and seen["steps"] and f"{root}/attributes/quality" in str(one.document.attributes)
    # the recipe skips them, the token file is written without them, and so are the documents
    recipe = yaml.safe_load((root / "recipe.yaml").read_text())
    recipe["skip"] = [{"quarantine": str(tmp_path / "gone/skip-recipe.jsonl")}]
    (root / "skipping.yaml").write_text(yaml.safe_dump(recipe))
    assert {one["index"] for one in fm.trace(root / "skipping.yaml", document=3).facts["found"]} == {3}
    assert fm.trace(root / "skipping.yaml", document=3).facts["found"][0]["times"] == 0
    assert fm.trace(root / "skipping.yaml", document=4).facts["found"][0]["times"] > 0
    numbers = [int(line) for line in (tmp_path / "gone/drop-web.ds.txt").read_text().splitlines() if line[0] != "#"]
    fm.filter([str(root / "tokens/web.ds")], str(tmp_path / "less.ds"), drop=numbers)
    assert len(fm.open(tmp_path / "less.ds")) == len(ids) - 2
    with pytest.raises(ConfigError):
        forget(gone, paths, report=tmp_path / "gone")
    assert json.loads((tmp_path / "gone/report.json").read_text())["files"] == report.files


def test_exclusions_filter_the_raw_documents(root: Path, tmp_path: Path) -> None:
    gone = kept_ids(root)[5]
    forget(gone, root / "kept", report=tmp_path / "gone")
    stream = {
        "name": "less",
        "documents": [str(root / "documents/*")],
        "filter": yaml.safe_load((tmp_path / "gone/exclude.yaml").read_text()),
        "output": {"path": str(tmp_path / "less")},
    }
    report = fm.filter({"streams": [stream]}, workers=1, progress=False)
    assert report.streams[0].counts.kept == 239
    assert not (tmp_path / "gone/skip-recipe.jsonl").exists()  # no recipe was given


def test_bad_input_is_one_clear_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no raw file has a document with this id"):
        forget("nobody", root / "kept")
    with pytest.raises(ConfigError, match="no document was given"):
        forget([], root / "kept")
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "b"}\n')
    with pytest.raises(NotFound, match="no raw file"):
        forget("b", tmp_path / "a.jsonl")
    (tmp_path / "endless.yaml").write_text(f"blend: [{{path: {root / 'tokens/web.pbin'}}}]\n")
    with pytest.raises(ConfigError, match="endless"):
        forget(kept_ids(root)[0], tmp_path / "endless.yaml")


def test_the_command_prints_where_documents_are(root: Path, tmp_path: Path) -> None:
    one, two = kept_ids(root)[:2]
    (tmp_path / "ids.txt").write_text(f"{one}\n\n{two}\r\n")
    done = CliRunner().invoke(
        app, ["forget", f"@{tmp_path / 'ids.txt'}", str(root / "recipe.yaml"), "--global-batch", "4"]
    )
    assert done.exit_code == 0, done.output
    assert f"{one}: {root}/documents/" in done.stdout and "in steps" in done.stdout and "hold them" in done.stdout
    data = CliRunner().invoke(app, ["forget", f"{one},{two}", str(root / "recipe.yaml"), "--json"])
    assert [entry["id"] for entry in json.loads(data.stdout)["documents"]] == [one, two]
    bare = CliRunner().invoke(app, ["forget", str(tmp_path / "ids.txt"), str(root / "recipe.yaml")])
    assert bare.exit_code == 1 and f"pass @{tmp_path / 'ids.txt'} to search" in bare.output
    failed = CliRunner().invoke(app, ["trace", str(root / "recipe.yaml"), "--source-document", "nobody"])
    assert failed.exit_code == 1 and "no raw file" in failed.output
    shown = CliRunner().invoke(app, ["trace", str(root / "recipe.yaml"), "--document", "1", "--origins", "--show"])
    assert shown.exit_code == 0 and f'"id": "{two}"' in shown.stdout
