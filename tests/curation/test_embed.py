"""Vectors of documents: those of the model, row by row, the same for any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.curation import embed as embedding
from feedmill.curation.embed import embed
from feedmill.errors import ConfigError, DataError, EmptyResult
from helpers.document_datasets import document, write_documents

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
GOLDEN = Path(__file__).parents[1] / "golden/models"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture
def web(tmp_path: Path) -> Path:
    for part in range(3):
        rows = [document(100 * part + k, text) for k, text in enumerate(EXPECTED["texts"] * 40)]
        write_documents(tmp_path / f"documents/x/{part}.jsonl.gz", rows)
    return tmp_path


def run(web: Path, **options: Any) -> Any:
    return embed([f"{web}/documents"], model=f"{GOLDEN}/static", progress=False, **options)


def test_vectors_equal_those_of_the_package_and_are_kept(web: Path) -> None:
    report = run(web)
    assert (report.name, report.files, report.rows, report.dimension, report.reused) == ("static", 3, 720, 8, 0)
    assert report.model["documents"] == 720 and report.model["empty"] == 240
    found = np.load(web / "embeddings/static/x/1.jsonl.gz.npy")
    assert np.abs(found - np.array(EXPECTED["static"]["vectors"] * 40)).max() < 1e-6 and found.dtype == np.float32
    assert run(web).reused == 3
    write_documents(web / "documents/x/1.jsonl.gz", [document(1, "rain")])
    assert (run(web).reused, run(web).reused, run(web, overwrite=True).reused) == (2, 3, 0)
    assert len(np.load(web / "embeddings/static/x/1.jsonl.gz.npy")) == 1
    record = json.loads((web / "embeddings/.feedmill/mix-static/x/1.jsonl.gz.npy.json").read_text())
    assert (
        record["input"]["path"].endswith("documents/x/1.jsonl.gz") and "model.safetensors" in record["options"]["model"]
    )


def test_bytes_do_not_depend_on_workers_or_on_the_split_of_a_file(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(web, workers=1)
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1)
    run(web, workers=2, output=f"{web}/split")
    for path in sorted((web / "embeddings/static/x").iterdir()):
        assert path.read_bytes() == (web / "split/x" / path.name).read_bytes()


def test_parquet_has_the_ids(web: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run(web)
    run(web, to="parquet", name="p")
    table = parquet.read_table(web / "embeddings/p/x/2.jsonl.gz.parquet")
    assert table["id"].to_pylist()[:2] == ['"d200"', '"d201"']
    values = np.array(table["embedding"].to_pylist(), np.float32)
    assert np.array_equal(values, np.load(web / "embeddings/static/x/2.jsonl.gz.npy"))


def test_a_failed_file_leaves_nothing_and_the_next_run_goes_on(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = embedding.embed_file, list[str]()

    def killed(task: Any, workers: int = 1) -> Any:
        calls.append(task.path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(task, workers)

    monkeypatch.setattr(embedding, "embed_file", killed)
    with pytest.raises(KeyboardInterrupt):
        run(web, workers=1)
    monkeypatch.setattr(embedding, "embed_file", real)
    assert len(list((web / "embeddings").rglob("*.npy"))) == 2 and run(web, workers=1).reused == 2
    (web / "documents/x/9.jsonl").write_text('{"id": "a", "text": "cat"}\n{"text": "cat"}\n')
    with pytest.raises(DataError, match="no 'id'"):
        run(web)
    assert not (web / "embeddings/static/x/9.jsonl.npy").exists()


def test_what_cannot_be_embedded(web: Path, tmp_path: Path) -> None:
    fasttext = GOLDEN.parent / "dolma/tag/models/tiny.bin"
    with pytest.raises(ConfigError, match="makes no vectors"):
        embed([f"{web}/documents"], model=str(fasttext), progress=False)
    with pytest.raises(ConfigError, match="unknown form"):
        run(web, to="csv")
    assert run(web, dry_run=True).dry_run is not None and not (web / "embeddings").exists()
    (tmp_path / "none/documents").mkdir(parents=True)
    (tmp_path / "none/documents/a.jsonl").write_text("")
    with pytest.raises(EmptyResult):
        embed([f"{tmp_path}/none/documents"], model=f"{GOLDEN}/static", progress=False)


def test_the_next_command_compares_the_vectors_that_lie_beside_the_documents(web: Path) -> None:
    words = ["documents", "embed", f"{web}/documents", "--model", f"{GOLDEN}/static"]
    done = CliRunner().invoke(app, words)
    assert done.stderr.endswith(f"next: feedmill dedupe {web}/documents --near --by embeddings --embeddings static\n")
    assert "next:" not in CliRunner().invoke(app, [*words, "--output", f"{web}/vectors"]).stderr
    done = CliRunner().invoke(app, ["filter", str(web), f"{web}/kept", "--preset", "gopher"])
    assert "skipped: no documents" not in done.stderr
