"""Datasets and recipes that the pages show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.web_data import make_documents, make_pictures, make_tokens
from helpers.web_runs import make_pipeline, make_telemetry
from helpers.web_server import Site, serving


@pytest.fixture(scope="session", autouse=True)
def _patient() -> Iterator[None]:
    """Pages wait for what is made in the background: tests read it at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedmill.web.results.PATIENCE", 60.0)
        yield


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    make_pictures(folder / "pages")
    make_tokens(folder / "text")
    make_documents(folder / "corpus")
    (folder / "mix.yaml").write_text(
        "seed: 1\nsamples: 4000\nblend:\n"
        "  - {path: pages, split: train, weight: 0.7, shuffle: global}\n"
        "  - {path: text/prose.jsonl, weight: 0.3, shuffle: global}\n"
    )
    make_pipeline(folder)
    make_telemetry(folder / "run")
    (folder / "other.yaml").write_text((folder / "mix.yaml").read_text().replace("weight: 0.7", "weight: 0.6"))
    rows = [(step, 8 / (1 + step / 20) + (step == 60) * 3) for step in range(250)]
    (folder / "loss.csv").write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in rows))
    return folder


@pytest.fixture(scope="session")
def site(root: Path) -> Iterator[Site]:
    paths = [
        root / "pages",
        root / "text/prose.jsonl",
        root / "text/prose.pbin",
        root / "corpus/documents",
        root / "mix.yaml",
        root / "text/packed.yaml",
        root / "crawl.yaml",
        root / "before.run.json",
        root / "crawl/tokens.pbin",
        root / "other.yaml",
        root / "run/loading-{rank}.jsonl",
    ]
    with serving(*paths, loss=str(root / "loss.csv")) as found:
        yield found
