"""Dolma's own code beside ours: the same order of documents for the same chance, the same summaries.

Needs ``FEEDMILL_DOLMA_PYTHON``, a Python that has Dolma 1.2.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helpers.dolma_golden import DOLMA, dolma, inputs, plain

PYTHON = os.environ.get("FEEDMILL_DOLMA_PYTHON")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not PYTHON, reason="FEEDMILL_DOLMA_PYTHON names no Python that has Dolma"),
]
FILES = sorted(str(path.relative_to(DOLMA)) for path in DOLMA.glob("data/documents/**/*.gz"))


def theirs(folder: Path, *words: object) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [str(PYTHON), *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: plain(path) for path in folder.iterdir() if path.name.endswith((".npy", ".csv.gz"))}


@pytest.mark.parametrize(("ring", "batch", "limit"), [(8, 10_000, 100_000), (2, 7, 900), (3, 5, 500), (1, 4, 100_000)])
def test_the_order_is_dolmas(
    ring: int, batch: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = inputs(tmp_path, "data/documents", "tokenizer")
    tokenizer = "tokenizer/tokenizer.json"
    writer = Path(__file__).with_name("dolma_writer.py")
    (folder / "theirs").mkdir()
    theirs(folder, writer, 5, "theirs", ring, batch, limit, tokenizer, *FILES)
    words = ["tokens", "--documents", *FILES, "--destination", "ours", "--seed", 5, "--ring_size", ring]
    words += ["--batch_size", batch, "--max_size", limit]
    words += ["--tokenizer.name_or_path", tokenizer, "--tokenizer.eos_token_id", 2]
    done = dolma(folder, *words, monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    assert kept(folder / "ours") == kept(folder / "theirs")


def test_summaries_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = inputs(tmp_path, "data/attributes/exp-1")
    words = [
        "documents",
        "stat",
        "--attributes",
        "data/attributes/exp-1/web/part-000.jsonl.gz",
        "--bins",
        7,
        "--report",
    ]
    theirs(folder, "-m", "dolma.cli", *words, "theirs")
    assert dolma(folder, "--exact", *words, "ours", monkeypatch=monkeypatch).exit_code == 0
    assert plain(folder / "ours/summaries.jsonl.gz") == plain(folder / "theirs/summaries.jsonl.gz")
