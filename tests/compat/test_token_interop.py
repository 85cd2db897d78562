"""datatrove and megatron-core read the files that Feedmill writes, and both read the same.

They run where FEEDMILL_DATATROVE_PYTHON names a Python that has datatrove and torch, and FEEDMILL_MEGATRON_PYTHON one
that has megatron-core.
"""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats.tokens.ds import open_ds, write_ds
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.storage import LocalStore
from helpers.nanoset_golden import NANOSETS, copy_into

READER = Path(__file__).with_name("token_reader.py")


def peer(tool: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    python = os.environ.get(f"FEEDMILL_{tool.upper()}_PYTHON")
    if not python:
        pytest.skip(f"FEEDMILL_{tool.upper()}_PYTHON names no Python with {tool}")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.environ.get(f"FEEDMILL_{tool.upper()}_PATH", "")
    asked = json.dumps([{"tool": tool, **request} for request in requests])
    ran = subprocess.run([python, READER], input=asked, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return list(json.loads(ran.stdout[ran.stdout.index("[{") :]))


def written(root: Path, size: int) -> Path:
    """Three `.ds` files in a folder: of golden documents, of nothing, and of two documents.

    None of them is empty: between two others such a document hides their border from datatrove's positions."""
    source, store = open_ds(LocalStore(NANOSETS / ("nt_eos" if size == 2 else "four_byte")), "", "x"), LocalStore(root)
    with write_ds(store, "b.ds", size, tokenizer_name="t") as writer:
        copy_into(source, writer)
    with write_ds(store, "a.ds", size, tokenizer_name="t"):
        pass
    with write_ds(store, "c.ds", size, tokenizer_name="t") as writer:
        writer.add(np.arange(300) % 7, np.array([100, 200]))
    return root


@pytest.mark.interop
@pytest.mark.parametrize("size", [2, 4])
def test_datatrove_reads_the_same(size: int, tmp_path: Path) -> None:
    folder = written(tmp_path, size)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"seq_len": 64}, {}),
        ({"seq_len": 64, "shuffle": True}, {"files": "nanotron"}),
        ({"seq_len": 31, "return_positions": True}, {"positions": True}),
        ({"seq_len": 31, "return_positions": True, "positions_from_eos_token_id": 0}, {"positions": True, "eos": 0}),
    ]
    asked = [{"path": str(folder), "options": {**theirs, "token_size": size}} for theirs, _ in cases]
    for (theirs, ours), found in zip(cases, peer("datatrove", asked), strict=True):
        samples = list(fm.open(folder, seq_len=theirs["seq_len"], **ours))
        assert found["tokens"] == [sample["input_ids"].tolist() for sample in samples]
        if "positions" in ours:
            assert found["positions"] == [sample["positions"].tolist() for sample in samples]


@pytest.mark.interop
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_core_reads_the_same(dtype: str, tmp_path: Path) -> None:
    source = open_ds(LocalStore(NANOSETS / ("nt_eos" if dtype == "uint16" else "four_byte")), "", "x")
    with write_megatron(LocalStore(tmp_path), "x", dtype) as writer:
        copy_into(source, writer)
    (found,) = peer("megatron", [{"path": str(tmp_path / "x"), "options": {}}])
    assert found["tokens"] == [sample["input_ids"].tolist() for sample in source]
    assert all(after - before == 1 for before, after in pairwise(found["documents"]))
    assert found["dtype"] == dtype
