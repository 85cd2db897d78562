"""Runs of Dolma 1.2.1 kept in ``golden/dolma``, replayed against its commands here."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app

DOLMA = Path(__file__).parents[1] / "golden" / "dolma"
RUNS: dict[str, dict[str, Any]] = {
    run["name"]: run for run in json.loads((DOLMA / "expected.json").read_text())["runs"]
}


def inputs(folder: Path, *names: str) -> Path:
    """A folder with copies of these parts of the golden data."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (DOLMA / name).is_dir() else shutil.copy)(DOLMA / name, target)
    return folder


def dolma(folder: Path, *words: object, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run ``feedmill compat dolma WORDS`` in a folder."""
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, ["compat", "dolma", *map(str, words)])


def plain(path: Path) -> bytes:
    """The bytes of a file, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def token_records(folder: Path, dtype: str = "<u2") -> list[tuple[str, str, int, tuple[int, ...]]]:
    """Id, src, loc and tokens of every document of a folder, file after file."""
    import csv
    import io

    found = []
    for path in sorted(folder.glob("*.npy")):
        tokens = np.fromfile(path, dtype)
        text = plain(path.with_name(path.name.removesuffix(".npy") + ".csv.gz")).decode()
        for start, end, key, src, loc in csv.reader(io.StringIO(text, newline="")):
            found.append((key, src, int(loc), tuple(tokens[int(start) : int(end)].tolist())))
    return found
