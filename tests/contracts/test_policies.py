"""Every verb that has error policies: what `raise` and `skip` do, and that a further policy is one row of a table."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.errors import DataError, FeedmillError
from feedmill.jobs.policy import POLICIES, ErrorPolicy
from feedmill.tokens.verbs.index import index
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, loaded, write_lines


def texts(folder: Path, name: str = "bad.jsonl") -> None:
    (folder / "d/documents").mkdir(parents=True, exist_ok=True)
    write_lines(folder / "d/documents/good.jsonl", [{"id": str(i), "text": "words " * 9} for i in range(5)])
    (folder / "d/documents" / name).write_bytes(b'{"id": "x", "text": "a"}\n{"id": \n')


def tagged(folder: Path, policy: Any) -> int:
    texts(folder)
    report = tag([f"{folder}/d/documents/*"], ["char_length_v1"], on_error=policy, workers=1, progress=False)
    return len(report.failed)


def counted(folder: Path, policy: Any) -> int:
    (folder / "d/attributes/a").mkdir(parents=True)
    for name, data in (("good", b'{"id":"1","attributes":{"a__b":[[0,1,0.5]]}}\n'), ("bad", b"{\n")):
        (folder / f"d/attributes/a/{name}.jsonl.gz").write_bytes(gzip.compress(data))
    return len(stat([f"{folder}/d/attributes/a/*"], on_error=policy, workers=1, progress=False).failed)


def tokenized(folder: Path, policy: Any) -> int:
    texts(folder)
    options: Any = {"tokenizer": loaded(), "workers": 1, "eos": EOS, "on_error": policy}
    return tokenize([f"{folder}/d/documents"], folder / "x", **options).skipped


def indexed(folder: Path, policy: Any) -> int:
    (folder / "x.jsonl").write_bytes(b'{"text": "a"}\n{"text": \n')
    return index(str(folder / "x.jsonl"), on_error=policy, workers=1, progress=False).dropped


def prepared(folder: Path, policy: Any) -> int:
    for name in ("a", "b"):
        with tarfile.open(folder / f"{name}.tar", "w") as shard:
            for key in range(3):
                member = tarfile.TarInfo(f"{name}{key}.txt")
                member.size = 5
                shard.addfile(member, io.BytesIO(b"words"))
    (folder / "b.tar").write_bytes((folder / "b.tar").read_bytes()[:700])
    return len(fm.prepare(str(folder), on_error=policy, workers=1, progress=False).left_out)


def converted(folder: Path, policy: Any) -> int:
    (folder / "rows.jsonl").write_text("".join(json.dumps({"a": i}) + "\n" for i in range(4)) + "{\n")
    report = fm.convert(folder / "rows.jsonl", folder / "out", "parquet", on_error=policy, workers=1, progress=False)
    return report.skipped


VERBS: dict[str, Callable[[Path, Any], int]] = {
    "tag": tagged,
    "stat": counted,
    "tokenize": tokenized,
    "index": indexed,
    "prepare": prepared,
    "convert": converted,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("policy", ["raise", "skip", "tolerate"])
def test_policies(tmp_path: Path, verb: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[Any, ErrorPolicy] = POLICIES
    monkeypatch.setitem(table, "tolerate", ErrorPolicy(skips=True))
    if policy == "raise":
        with pytest.raises(DataError):
            VERBS[verb](tmp_path, policy)
    else:
        assert VERBS[verb](tmp_path, policy) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_word_that_is_no_policy_is_refused_by_name(tmp_path: Path, verb: str) -> None:
    with pytest.raises(FeedmillError, match="unknown error policy 'ignore'"):
        VERBS[verb](tmp_path, "ignore")
