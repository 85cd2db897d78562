"""Pipelines: the page says what the manifest and `run --dry-run` say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.pipelines.history import read_manifest
from helpers.web_runs import make_pipeline, write_pipeline
from helpers.web_server import Site, serving


def test_steps_have_what_the_manifest_has(root: Path, site: Site) -> None:
    data = site.get("/crawl.yaml/pipeline.json").json
    manifest = read_manifest(str(root / "crawl.run.json"))
    assert [step["name"] for step in data["steps"]] == ["lengths", "tokens", "merge"]
    assert [step["state"] for step in data["steps"]] == ["up to date"] * 3 and data["current"] == 3
    for step, record in zip(data["steps"], manifest.steps, strict=True):
        for kind in ("inputs", "outputs"):
            files = {file["path"]: (file["bytes"], file["hash"]) for file in step[kind]["files"]}
            assert files == {path: (facts.size, facts.xxh3) for path, facts in getattr(record, kind).items()}
        assert (step["seconds"], step["feedmill"]) == (record.seconds, fm.__version__)
    assert {file["step"] for file in data["steps"][2]["inputs"]["files"]} == {"tokens"}
    assert data["steps"][1]["open"] == [{"name": "tokens.pbin", "view": "samples"}]
    page = site.get("/crawl.yaml/pipeline")
    assert 'href="/tokens.pbin/samples"' in page.text and manifest.steps[0].outputs
    assert next(iter(manifest.steps[0].outputs.values())).xxh3[:12] in page.text


def test_a_manifest_alone_is_an_older_run(site: Site) -> None:
    data = site.get("/before.run.json/pipeline.json").json
    assert data["alone"] and [step["state"] for step in data["steps"]] == ["recorded"] * 3
    assert "its pipeline is not open" in site.get("/before.run.json/pipeline").words


def test_states_follow_the_files(tmp_path: Path) -> None:
    path = make_pipeline(tmp_path)
    with serving(path) as site:

        def states() -> list[str]:
            return [step["state"] for step in site.get("/crawl.yaml/pipeline.json").json["steps"]]

        assert states() == ["up to date"] * 3
        (tmp_path / "crawl/twice.pbin").unlink()
        assert states() == ["up to date", "up to date", "must run"]
        write_pipeline(tmp_path, "sizes")
        assert states() == ["not run", "must run", "must run"]
        shutil.rmtree(tmp_path / "crawl/documents")  # the planning of the whole pipeline is an error then
        assert states() == ["not run", "must run", "must run"]
        assert "has no files" in site.get("/crawl.yaml/pipeline").words
        manifest = tmp_path / "crawl.run.json"
        data = json.loads(manifest.read_bytes())
        manifest.write_text(json.dumps({**data, "began": {"tokens": []}}))
        assert states()[1] == "interrupted"
        manifest.write_text("{")
        assert site.get("/crawl.yaml/pipeline").status == 500 and "corrupt" in site.get("/crawl.yaml/pipeline").words
        path.write_text("steps: []")
        assert site.get("/crawl.yaml/pipeline").status == 400


def test_a_pipeline_that_has_not_run(root: Path, tmp_path: Path) -> None:
    shutil.copyfile(root / "crawl.yaml", tmp_path / "p.yaml")
    with serving(tmp_path / "p.yaml") as site:
        assert "None has run" in site.get("/p.yaml/pipeline").words
        assert site.get("/").status == 200


@pytest.mark.parametrize(
    ("text", "error"),
    [("steps: []\n", ConfigError), ("steps: [{verb: dance}]\n", ConfigError), ("steps: 5\n", FeedmillError)],
)
def test_invalid_pipelines_are_errors_of_the_command(text: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(error), serving(tmp_path / "p.yaml"):
        pass
    (tmp_path / "p.run.json").write_text('{"version": 9, "steps": [], "pipeline": ""}')
    with pytest.raises(DataError, match="version 9"), serving(tmp_path / "p.run.json"):
        pass
