"""Conversions that are killed: the same command finishes them, and the result is as undisturbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from feedmill.errors import ConfigError, FeedmillError
from helpers.conversion_sources import sample_set, tokens, tree
from helpers.durations import slow_but
from helpers.kills import finish, kill_at_random, kill_everywhere, moments, run_until_killed

WORK = {
    "webdataset": ("source", "out", "--to", "webdataset", "--max-shard-samples", 40),
    "vla": ("source", "out", "--to", "vla", "--max-shard-samples", 40),
    "mds": ("source", "out", "--to", "mds", "--max-shard-samples", 40),
    "npz": ("source", "out", "--to", "npz", "--max-shard-samples", 40),
    "parquet": ("source", "out.parquet", "--to", "parquet", "--max-shard-samples", 40),
    "jsonl": ("source", "out.jsonl", "--to", "jsonl", "--fields", "txt,json", "--max-shard-samples", 40),
    "rows": ("rows", "out", "--to", "parquet"),
    "lines": ("rows", "out.jsonl.gz", "--to", "jsonl.gz"),
    "tokens": ("tokens", "out", "--to", "megatron"),
    "sequences": ("tokens", "out", "--to", "vla-text", "--seq-len", 15, "--allow-loss"),
}


def make(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    {"rows": tree, "lines": tree, "tokens": tokens, "sequences": tokens}.get(name, sample_set)(
        folder / {"lines": "rows", "sequences": "tokens"}.get(name, name if name in ("rows", "tokens") else "source")
    )


def words(name: str) -> list[str]:
    return [str(word) for word in ("convert", *WORK[name], "--workers", 1)]


@pytest.mark.parametrize(("name", "moment"), [("webdataset", 9), ("parquet", 5), ("rows", 3), ("tokens", 6)])
def test_killed_and_finished(tmp_path: Path, name: str, moment: int) -> None:
    from helpers.kills import contents

    for place in ("calm", "killed"):
        make(name, tmp_path / place)
    finish(words(name), tmp_path / "calm")
    for _ in range(2):
        assert run_until_killed(moment, words(name), tmp_path / "killed")
        moment = 3
    printed = finish(words(name), tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert "finished earlier" in printed
    left = [p.name for p in (tmp_path / "killed").rglob("*") if "feedmill-tmp" in p.name or p.suffix == ".hashes"]
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_killed_before_every_file(tmp_path: Path, name: str) -> None:
    kill_everywhere(words(name), lambda folder: make(name, folder), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_killed_twenty_times(tmp_path: Path, name: str) -> None:
    assert kill_at_random([*words(name)[:-1], "2"], lambda folder: make(name, folder), tmp_path, 20) > 1


def test_other_work_does_not_go_on_with_it(tmp_path: Path) -> None:
    import feedmill as fm

    make("webdataset", tmp_path / "w")
    assert run_until_killed(7, words("webdataset"), tmp_path / "w")
    source, out = tmp_path / "w/source", tmp_path / "w/out"
    with pytest.raises(ConfigError) as error:
        fm.convert(source, out, "mds", progress=False)
    assert error.value.kind == "unfinished-job"
    fm.convert(source, out, "mds", overwrite=True, workers=1, progress=False)
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [
        "convert.json",
        "index.json",
        "shard.00000.mds",
        "shard.00000.mds.lineage",
    ]


AFTER = {  # what is killed, and before which file: an output without its note, parts of one, what joins them, the end
    "webdataset": (4, 11, 14),
    "vla": (2, 6),
    "mds": (2, 6),
    "rows": (2, 4),
    "tokens": (3, 6),
    "sequences": (2, 3),
}


@pytest.mark.parametrize(("name", "moment"), [(name, moment) for name, moments in AFTER.items() for moment in moments])
def test_other_work_can_begin_wherever_it_was_killed(tmp_path: Path, name: str, moment: int) -> None:
    import feedmill as fm
    from helpers.conversion_sources import files

    make(name, tmp_path / "w")
    assert run_until_killed(moment, words(name), tmp_path / "w")
    source = sample_set(tmp_path / "other", 50)
    for place in ("w/out", "w/calm"):
        fm.convert(source, tmp_path / place, "mds", overwrite=True, workers=1, progress=False)
    assert files(tmp_path / "w/out") == files(tmp_path / "w/calm")


def test_a_source_that_changed_is_noticed(tmp_path: Path) -> None:
    import feedmill as fm
    from feedmill.writing.write import write

    make("webdataset", tmp_path / "w")
    assert run_until_killed(7, words("webdataset"), tmp_path / "w")
    write(str(tmp_path / "w/source"), [{"__key__": "a", "txt": "b"}], overwrite=True, progress=False)
    with pytest.raises(FeedmillError) as error:
        fm.convert(tmp_path / "w/source", tmp_path / "w/out", "webdataset", max_shard_samples=40, progress=False)
    assert error.value.kind == "unfinished-job"


@moments(3, range(0, 60, 3), least=2)
@pytest.mark.parametrize(
    "name", slow_but(["webdataset", "parquet", "rows", "lines", "tokens", "sequences"], "webdataset", "rows", "lines")
)
def test_a_result_that_is_replaced_stays_until_the_new_one_is_whole(
    tmp_path: Path, name: str, moments: Sequence[int], least: int
) -> None:
    from helpers.conversion_sources import files

    out = str(WORK[name][1])
    make(name, tmp_path / "calm")
    finish(words(name), tmp_path / "calm")

    def begun(folder: Path) -> dict[str, bytes]:
        make(name, folder)
        other = sample_set(folder / "other", 50)
        to = [*words(name)[3:5]] if name in ("webdataset",) else ["--to", "mds"]
        if out.endswith(".parquet"):
            to = ["--to", "parquet"]
        if out.endswith(".gz"):
            (folder / out).write_bytes(b"mine")
        else:
            finish(["convert", str(other), out, *to, "--workers", 1], folder)
        return result(folder)

    def result(folder: Path) -> dict[str, bytes]:
        """What is at the destination, without notes and the proof (which tells one copy of the source from another)."""
        whole = files(folder / out) if (folder / out).is_dir() else {out: (folder / out).read_bytes()}
        return {path: data for path, data in whole.items() if ".feedmill" not in path}

    old, kept = begun(tmp_path / "at"), 0
    for moment in moments:
        if not run_until_killed(moment, [*words(name), "--overwrite"], tmp_path / "at"):
            break
        now = result(tmp_path / "at")
        kept += now == old
        assert now.keys() <= old.keys() | result(tmp_path / "calm").keys()
    else:
        finish([*words(name), "--overwrite"], tmp_path / "at")
    assert result(tmp_path / "at") == result(tmp_path / "calm") and kept >= least
    left = [path.name for path in (tmp_path / "at").rglob("*") if ".feedmill-" in path.name]
    assert not left


def test_a_result_is_put_in_place_by_the_next_command_where_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import feedmill as fm
    from helpers.conversion_sources import files

    monkeypatch.chdir(tmp_path)
    sample_set(tmp_path / "source", 90)
    other = sample_set(tmp_path / "other", 50)
    for moment in range(60):
        fm.convert(other, tmp_path / "out", "webdataset", progress=False, overwrite=True)
        again = ["convert", "source", "out", "--to", "mds", "--overwrite", "--workers", "1"]
        killed = run_until_killed(moment, again, tmp_path)
        job = tmp_path / "out/.feedmill-work/job.json"
        half = killed and job.exists() and b'"half":true' in job.read_bytes()
        if half and not (tmp_path / "out/index.json").exists():
            break
    report = fm.convert("source", "out", "mds", overwrite=True, workers=1, progress=False)
    assert (report.samples, report.resumed) == (90, 1)  # it was whole: nothing is done twice
    fm.convert("source", "calm", "mds", progress=False)
    assert files(tmp_path / "out") == files(tmp_path / "calm")


def test_an_output_that_is_not_what_was_meant_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import feedmill as fm
    from feedmill.converting.targets import shards

    source = sample_set(tmp_path / "source", 50)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "read_digest", lambda *_: b"")
        with pytest.raises(FeedmillError) as error:
            fm.convert(source, tmp_path / "out", "mds", workers=1, progress=False)
        assert error.value.kind == "verification-failed"
    assert fm.convert(source, tmp_path / "out", "mds", workers=1, progress=False).resumed == 0
