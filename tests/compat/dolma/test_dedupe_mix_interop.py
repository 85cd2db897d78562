"""Dolma itself beside Feedmill: filters and attributes go to and fro, and both mix the same.

Needs ``FEEDMILL_DOLMA_PYTHON``, a Python that has Dolma 1.2.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from helpers import warm
from helpers.document_folders import texts, write_documents
from helpers.dolma_runs import unpacked
from helpers.kills import command

PYTHON = os.environ.get("FEEDMILL_DOLMA_PYTHON")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not PYTHON, reason="FEEDMILL_DOLMA_PYTHON names no Python that has Dolma"),
]
OURS, THEIRS = "feedmill", "dolma"
UNITS = {
    "documents": {"documents": {"attribute_name": "dup", "key": "$.text"}},
    "paragraphs": {"paragraphs": {"attribute_name": "dup"}, "skip_empty": True},
    "ngrams": {
        "paragraphs": {
            "attribute_name": "dup",
            "by_ngram": {"ngram_length": 3, "stride": 2, "overlap_threshold": 0.3, "skip_short_paragraphs": True},
        }
    },
}


def run(tool, folder, verb, config, exact=True):
    (folder / "config.json").write_text(json.dumps(config))
    words = ["-c", "config.json", verb]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    if tool == OURS:
        words = command("compat", "dolma", *(["--exact"] if exact else []), *words)
    else:
        words = [str(Path(str(PYTHON)).with_name("dolma")), *words]
        environment.pop("PYTHONPATH", None)
    done = warm.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def dedupe(tool, folder, unit, documents, read_only=False, exact=True):
    bloom = {"file": "f.bin", "read_only": read_only, "estimated_doc_count": 2000, "desired_false_positive_rate": 1e-5}
    config = {"documents": [documents], "dedupe": {"name": "dup", **UNITS[unit]}, "bloom_filter": bloom}
    run(tool, folder, "dedupe", config, exact)


def make(root):
    write_documents(root / "a", texts(60), texts(30, seed=1))
    write_documents(root / "b", texts(50, seed=2), texts(40))
    return root


def rows(folder, pattern):
    return {str(p.relative_to(folder)): unpacked(p) for p in sorted(folder.glob(pattern)) if ".feedmill" not in str(p)}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("first", "second"), [(OURS, THEIRS), (THEIRS, OURS)])
def test_filters_go_to_and_fro(tmp_path, unit, first, second):
    """One tool fills a filter; both find the same in it, and fill it the same further on."""
    begin = make(tmp_path / "begin")
    dedupe(first, begin, unit, "a/documents/*", exact=False)
    for read_only in (True, False):
        sides = []
        for tool in (first, second):
            side = tmp_path / f"{tool}-{read_only}"
            shutil.copytree(begin, side)
            dedupe(tool, side, unit, "b/documents/*", read_only)
            sides.append((rows(side, "b/attributes/**/*.gz"), (side / "f.bin").read_bytes()))
        assert sides[0] == sides[1] and len(sides[0][0]) == 2
        assert any(b"[[" in data for data in sides[0][0].values())
        assert (sides[0][1] == (begin / "f.bin").read_bytes()) == read_only


@pytest.mark.parametrize("syntax", ["jsonpath", "jq"])
def test_dolma_mixes_what_we_found(tmp_path, syntax):
    outputs = []
    for tool in (OURS, THEIRS):
        side = make(tmp_path / tool)
        words = command("dedupe", "a/documents", "b/documents", "--by", "paragraphs", "--name", "dup")
        assert warm.run(words, cwd=side, capture_output=True).returncode == 0
        path = (
            "$.attributes.dup[?(@[1] > 40)]"
            if syntax == "jsonpath"
            else "[(.attributes.dup // [])[] | .[1] > 40] | any"
        )
        stream = {
            "name": "m",
            "documents": ["a/documents/*", "b/documents/*"],
            "attributes": ["dup"],
            "output": {"path": "mixed", "max_size_in_bytes": 1000},
            "filter": {"exclude": [path], "include": [], "syntax": syntax},
            "span_replacement": [{"span": "$.attributes.dup", "min_score": 0.5, "replacement": "[{}]"}],
        }
        run(tool, side, "mix", {"streams": [stream]})
        outputs.append(rows(side, "mixed/*.gz"))
    assert outputs[0] == outputs[1] and len(outputs[0]) > 1
    lines = b"".join(outputs[0].values()).split(b"\n")
    assert 60 < len(lines) < 180 and any(b'"text":"[' in line for line in lines)
