"""The golden runs of Dolma 1.2.1, through ``feedmill compat dolma --exact`` as far as its commands are ours."""

import os
import sys

import pytest

from feedmill.compat.dolma import dedupe, mix
from feedmill.errors import FeedmillError
from feedmill.storage import LocalStore
from helpers.dolma_runs import RUNS, begin, differences, names
from helpers.durations import slow_but

COMMANDS = {"dedupe": dedupe.dedupe, "mix": mix.mix}


def play(name, folder, exact, processes=None):
    words = begin(name, folder)
    os.chdir(folder)
    extra = [] if processes is None else ["--processes", str(processes)]
    COMMANDS[words[2]](extra, words[1], exact)


@pytest.mark.parametrize("name", names("dedupe_", "mix_"))
def test_exact(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if RUNS[name]["returncode"]:
        with pytest.raises(FeedmillError):
            play(name, tmp_path, exact=True)
        written = [p for p in (tmp_path / "mixed").rglob("*") if p.parent.name == "sem_err" or "wrong" in p.name]
        assert not [p for p in written if p.is_file() and not p.name.endswith(".tmp")]
        return
    play(name, tmp_path, exact=True)
    assert not differences(name, tmp_path)


# The last two have spans of no length, which Dolma makes text of.
MENDED = ("dedupe_para_minwords", "mix_sem_spans", "mix_alignment_tolerated", "mix_spans", "mix_spans_and_filter")


# The others have one process: to start three takes longer than what they do.
POOLED = ("dedupe_para", "dedupe_docs", "dedupe_ngram", "mix_multi_stream", "mix_shards")


SAME = [n for n in names("dedupe_", "mix_") if n not in MENDED and not RUNS[n]["returncode"]]


@pytest.mark.parametrize("name", slow_but(SAME, *POOLED, *SAME[::3]))
def test_mended_is_the_same_where_nothing_was_wrong(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    play(name, tmp_path, exact=False, processes=3 if name in POOLED else 1)
    assert not differences(name, tmp_path)


def test_min_words_count_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    play("dedupe_para_minwords", tmp_path, exact=False)
    found = differences("dedupe_para_minwords", tmp_path)
    assert found and any("dup_mw" in one or "bloomwork" in one for one in found)


def test_a_rerun_changes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    play("dedupe_para", tmp_path, exact=False)
    dedupe.dedupe([], "configs/dedupe_para.json", False)
    assert "nothing to do" in capsys.readouterr().out
    assert not differences("dedupe_para", tmp_path)


def test_missing_attributes_are_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FeedmillError, match=r"attributes have 1 rows|no attributes|more rows") as caught:
        play("mix_alignment_tolerated", tmp_path, exact=False)
    assert caught.value.kind in ("no-such-attribute", "misaligned-attributes")
    left = [p for p in (tmp_path / "mixed/align").rglob("*") if p.is_file()] if sys.platform else []
    assert left == []


def test_options_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    LocalStore(tmp_path).write_bytes("d/documents/a.jsonl", b'{"id":1,"text":"x\\nx"}\n')
    dedupe.dedupe(
        ["--documents", "d/documents/*", "--dedupe.paragraphs.attribute_name", "dup", "--bloom_filter.file", "f.bin",
         "--no-bloom_filter.read_only", "--bloom_filter.estimated_doc_count", "100",
         "--bloom_filter.desired_false_positive_rate", "1e-6", "--dryrun"],
        None, False,
    )  # fmt: skip
    assert "estimated_doc_count: 100" in capsys.readouterr().out
    assert not (tmp_path / "f.bin").exists()
