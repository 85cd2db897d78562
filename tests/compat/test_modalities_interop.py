"""Modalities itself reads what the verbs wrote: the same documents, windows and lines.

Needs an interpreter with Modalities, named by ``FEEDMILL_MODALITIES_PYTHON``. It is started once, since importing it
takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from feedmill.formats.tokens.pbin import open_pbin
from feedmill.storage import LocalStore
from feedmill.tokens.verbs.index import index
from feedmill.tokens.verbs.merge import merge
from feedmill.tokens.verbs.shuffle import shuffle

PEER = "FEEDMILL_MODALITIES_PYTHON"
GOLDEN = Path(__file__).parents[1] / "golden/modalities"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get(PEER), reason=f"{PEER} names no Python with modalities 0.5"),
]


def test_modalities_reads_the_same(tmp_path: Path) -> None:
    inputs = [str(GOLDEN / name) for name in ("main_2b.pbin", "nested_2b.pbin", "crlf_2b.pbin")]
    merge(inputs, f"{tmp_path}/merged.pbin")
    shuffle(inputs, f"{tmp_path}/shuffled.pbin", seed=5)
    merge([str(GOLDEN / "merged_2b.pbin")], f"{tmp_path}/repaired.pbin")
    (tmp_path / "a.jsonl").write_bytes((GOLDEN / "main.jsonl").read_bytes())
    index(f"{tmp_path}/a.jsonl")
    names = ("merged", "shuffled", "repaired")
    asked = [["documents", f"{tmp_path}/{name}.pbin"] for name in names]
    asked += [["windows", f"{tmp_path}/shuffled.pbin", 64], ["lines", f"{tmp_path}/a.jsonl", f"{tmp_path}/a.idx"]]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [os.environ[PEER], str(Path(__file__).with_name("modalities_reader.py"))]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *documents, windows, lines = json.loads(done.stdout.strip().splitlines()[-1])
    for name, found in zip(names, documents, strict=True):
        ours = open_pbin(LocalStore(tmp_path), f"{name}.pbin", name)
        assert found == [sample["input_ids"].tolist() for sample in ours.read_raw(range(len(ours)))]
    assert documents[0] == documents[2]
    assert sorted(documents[0]) == sorted(documents[1])
    row = [token for document in documents[1] for token in document]
    assert windows == [row[at : at + 65] for at in range(0, len(row) - 64, 64)]
    assert lines == [line.decode() for line in (GOLDEN / "main.jsonl").read_bytes().split(b"\n")[:-1]]
