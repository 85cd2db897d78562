"""webdataset itself reads what Feedmill wrote. Needs a Python with it: that of Energon has it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm

PEER = next((os.environ[n] for n in ("FEEDMILL_WEBDATASET_PYTHON", "FEEDMILL_ENERGON_PYTHON") if os.environ.get(n)), "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not PEER, reason="FEEDMILL_WEBDATASET_PYTHON names no Python with webdataset"),
]

_READER = """
import json, sys, webdataset as wds
rows = []
for sample in wds.WebDataset(sys.argv[1:], shardshuffle=False).decode():
    values = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in sample.items() if not k.startswith("__")}
    values = {k: [a.tolist() for a in v] if k == "ten" else v for k, v in values.items()}
    values = {k: {n: a.tolist() for n, a in v.items()} if k == "npz" else v for k, v in values.items()}
    rows.append({"__key__": sample["__key__"], **values})
print(json.dumps(rows))
"""


def test_webdataset_decodes_the_same_values(tmp_path: Path) -> None:
    rows = [
        {"__key__": f"{'d' * 120 if i == 2 else 'd'}/{i:03d}", "json": {"n": i, "ü": None}, "txt": f"日本 {i}",
         "cls": i, "npy": np.arange(i), "npz": {"a": np.ones(i), "b": np.eye(2)}, "ten": [np.arange(3)]}
        for i in range(8)
    ]  # fmt: skip
    fm.write(str(tmp_path / "d"), rows, max_shard_samples=3)
    shards = sorted(map(str, (tmp_path / "d").rglob("*.tar")))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([PEER, "-c", _READER, *shards], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for row, got in zip(rows, found, strict=True):
        wanted = {
            **row,
            "npy": row["npy"].tolist(),
            "npz": {name: array.tolist() for name, array in row["npz"].items()},
            "ten": [array.tolist() for array in row["ten"]],
        }
        assert got == wanted


_WRITER = """
import sys, webdataset as wds
with wds.ShardWriter(sys.argv[1] + "/data-%d.tar", maxcount=4, verbose=0) as writer:
    for i in range(10):
        writer.write({"__key__": f"k{i}", "txt": f"text {i}", "json": {"i": i}, "img1.bin": bytes(i)})
"""


def test_what_its_shard_writer_wrote_is_prepared_and_read(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PEER, "-c", _WRITER, str(tmp_path)], capture_output=True, env=env, check=True)
    report = fm.prepare(str(tmp_path), progress=False)
    assert (report.samples, report.shards) == (10, 3)
    for i, sample in enumerate(fm.open(str(tmp_path))):
        assert sample.key == f"k{i}" and sample["json"] == {"i": i} and sample["txt"] == f"text {i}"
        assert sample["img1.bin"] == bytes(i)
