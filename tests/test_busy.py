"""Two processes that would write one thing: the second is refused, and the first is not disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import FeedmillError
from feedmill.indexing.prepare import prepare
from feedmill.indexing.repair import repair
from feedmill.jobs.work import alone
from feedmill.jobs.work_folder import FOLDER
from feedmill.storage import LocalStore
from feedmill.storage.locks import FileLock
from test_links import VERBS

LOCKS = {
    "prepare": f"d/{FOLDER}/lock",
    "prepare again": f"d/{FOLDER}/lock",
    "prepare jsonl": ".a.jsonl.feedmill-work/lock",
    "repair": f"d/{FOLDER}/lock",
    "prepare-media": f"d/{FOLDER}/lock",
    "append": f"d/{FOLDER}/lock",
    "delete": f"d/{FOLDER}/lock",
    "add-parts": f"d/{FOLDER}/lock",
    "reshard": f"e/{FOLDER}/lock",
    "convert": "e/.feedmill-work/lock",
    "convert to a file": ".e.jsonl.feedmill-work/lock",
    "tokenize": ".o.feedmill-work/lock",
    "tag": ".feedmill/mix-attributes/e/part-0.jsonl.gz.feedmill-lock",
    "dedupe": "attributes/dup_documents/.feedmill-work/lock",
    "dedupe --bloom": "f.bin.feedmill-lock",
    "merge": ".o.pbin.feedmill-work/lock",
    "shuffle": ".o.pbin.feedmill-work/lock",
    "split": ".o-{part}.pbin.feedmill-work/lock",
    "filter": ".o.pbin.feedmill-work/lock",
    "filter lines": ".o.jsonl.feedmill-work/lock",
    "mix": ".feedmill/mix-mixed/m-0000.jsonl.gz.feedmill-lock",
}


@pytest.mark.parametrize("verb", LOCKS)
def test_the_second_of_two_is_refused(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words = VERBS[verb]
    make(tmp_path)
    lock = tmp_path / LOCKS[verb]
    lock.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("feedmill.storage.local._PATIENCE", 0.05)
    monkeypatch.setattr("feedmill.jobs.work._PATIENCE", 0.05)
    monkeypatch.setattr("feedmill.curation.dedupe.bloomed.PATIENCE", 0.05)
    with FileLock(lock):  # of another descriptor, which is as good as of another process
        done = CliRunner().invoke(app, words, prog_name="feedmill")
        assert done.exit_code == 1, done.output
        assert "another process is" in done.output and "Wait until it has ended, or stop it." in done.output
        assert lock.exists()
    assert CliRunner().invoke(app, words, prog_name="feedmill").exit_code == 0
    assert verb in ("append",) or not lock.exists()


def test_a_lock_leaves_nothing_and_makes_no_folder_that_is_not_there(tmp_path: Path) -> None:
    with alone(LocalStore(tmp_path / "none")):
        pass
    assert not (tmp_path / "none").exists()
    (tmp_path / "d").mkdir()
    with alone(LocalStore(tmp_path / "d")), alone(LocalStore(tmp_path / "d")):
        assert (tmp_path / "d" / FOLDER / "lock").exists()
    assert list((tmp_path / "d").iterdir()) == []


def test_nothing_is_prepared_where_a_change_in_place_cannot_be_finished(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "d"), [{"__key__": "a", "txt": "a"}], progress=False)
    LocalStore(tmp_path / "d" / FOLDER).write_bytes(
        "job.json", b'{"version": 1, "identity": {"verb": "delete"}, "half": true}'
    )
    for act in (prepare, repair):
        with pytest.raises(FeedmillError, match="journal of an interrupted run is corrupt") as caught:
            act(str(tmp_path / "d"), progress=False)
        assert caught.value.kind == "bad-job"
    assert (tmp_path / "d" / FOLDER / "job.json").exists()
