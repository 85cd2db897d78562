"""Telemetry: the page says what the reports of a loader say, over a time, with restarts, stale or cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import DataError, NotFound
from feedmill.web import logs
from feedmill.web.logs import is_telemetry, read_telemetry
from helpers.web_runs import make_telemetry, reports
from helpers.web_server import Site, serving


def lanes(site: Site, query: str = "") -> dict[int, dict]:  # type: ignore[type-arg]
    name = next(iter(site.get("/index.json").json["things"]))["name"]
    return {lane["rank"]: lane for lane in site.get(f"/{name}/loader.json{query}").json["lanes"]}


def test_figures_are_those_of_the_reports(tmp_path: Path) -> None:
    path = make_telemetry(tmp_path / "run")
    first, *_, before, last = [json.loads(line) for line in reports(2)]
    with serving(path) as site:
        found = lanes(site)[2]
        waited, step = (last[name] - before[name] for name in ("wait_seconds", "step_seconds"))
        assert found["batches"] == 20 and found["waiting"] == pytest.approx(waited / step, rel=1e-4)
        read = next(block["width"] for block in found["blocks"] if block["stage"] == "read")
        assert read == pytest.approx(100 * (last["wait_read_seconds"] - before["wait_read_seconds"]) / step, rel=1e-3)
        assert found["made"]["read"] == pytest.approx(1000 * (last["read_seconds"] - before["read_seconds"]) / 20)
        whole = lanes(site, "?over=all")[2]
        assert whole["batches"] == last["batches"] and whole["wait_seconds"] == pytest.approx(last["wait_seconds"])
        assert whole["position"] == last["position"] and first["batches"] == 20
        data = site.get("/loading-rank.jsonl/loader.json?over=all").json
        assert (data["ranks"], data["every"], data["state"]) == (4, 10.0, "live")
        worst = data["chart"]["plot"]["series"][-1]
        assert worst["name"] == "slowest rank" and max(worst["values"]) == pytest.approx(24.0, abs=0.5)


def test_a_restart_adds_to_what_was_before(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    old, new = reports(0, 10, ago=1000), reports(0, 5)
    file.write_bytes(b"".join(old + new))
    with serving(file) as site:
        found = lanes(site, "?over=all")[0]
        assert found["restarts"] == 1 and found["batches"] == 20 * 15
        assert lanes(site, "?over=10")[0]["batches"] == 20 * 5  # the report before the restart is the base


def test_all_ranks_in_one_file_and_a_line_that_is_not_whole(tmp_path: Path) -> None:
    lines = [line for pair in zip(reports(0), reports(1), strict=True) for line in pair]
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines)[:-40])
    found = read_telemetry(str(tmp_path / "x.jsonl"))
    assert [(one.rank, len(one.times), one.skipped) for one in found] == [(0, 40, 1), (1, 39, 1)]


def test_stale_and_silent(tmp_path: Path) -> None:
    path = make_telemetry(tmp_path / "run", ago=500)
    with serving(path) as site:
        page = site.get("/loading-rank.jsonl/loader")
        assert "The telemetry is stale" in page.words and "data-refresh" not in page.text
        (tmp_path / "run/loading-3.jsonl").write_bytes(b"".join(reports(3)))
        page = site.get("/loading-rank.jsonl/loader")
        assert "No new report from rank 0, 1, 2" in page.words and 'data-refresh="5000"' in page.text
        assert site.get("/loading-rank.jsonl/loader?rank=3").status == 200
        assert site.get("/loading-rank.jsonl/loader?rank=9").status == 400
        for file in (tmp_path / "run").iterdir():
            file.unlink()
        assert site.get("/loading-rank.jsonl/loader").status == 404


def test_of_long_files_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_BUDGET", 20_000)
    monkeypatch.setattr(logs, "_LEAST", 10_000)
    path = make_telemetry(tmp_path / "run", ranks=2)
    series = read_telemetry(str(path))
    assert all(one.cut > 0 and 3 < len(one.times) < 15 for one in series)
    with serving(path) as site:
        assert "before it are left out" in site.get("/loading-rank.jsonl/loader").words
        assert lanes(site, "?over=all")[0]["batches"] == 20 * (len(series[0].times) - 1)


def test_what_a_loader_writes(root: Path, tmp_path: Path) -> None:
    told = fm.loading.Telemetry(every=1e-9, log=False, jsonl=tmp_path / "own-{rank}.jsonl")
    loader = fm.Loader(fm.Recipe.load(root / "mix.yaml").plan(), 16, telemetry=told)
    for _ in zip(range(5), loader, strict=False):
        pass
    (series,) = read_telemetry(str(tmp_path / "own-{rank}.jsonl"))
    assert series.last["batches"] == 5 and len(series.times) == 5
    with serving(tmp_path / "own-{rank}.jsonl") as site:
        assert lanes(site, "?over=all")[0]["batches"] == 5
        data = site.get("/own-rank.jsonl/loader.json").json["accounts"]
        assert data["unit"] == "samples"  # of which report depends on how long the accounts took
        wanted = fm.Recipe.load(root / "mix.yaml").plan().report(data["budget"]).as_dict()["sources"]
        for row, own in zip(data["sources"], wanted, strict=True):
            assert {name: row[name] for name in own} == own and row["slot"]
        words = site.get("/own-rank.jsonl/loader").words
        assert all(own["name"] in words and f"{own['drawn']:,}" in words for own in wanted) and "realized" in words
    for bad in ([{"name": 3}], [{"name": "a", "used": "x"}], {"name": "a"}, [[]]):
        (tmp_path / "bad-0.jsonl").write_text(json.dumps({**series.last, "sources": bad}) + "\n")
        assert read_telemetry(str(tmp_path / "bad-0.jsonl"))[0].accounts is None


def test_what_is_no_telemetry(root: Path, tmp_path: Path) -> None:
    assert not is_telemetry(str(root / "text/prose.jsonl"))
    with pytest.raises(NotFound, match="no file of telemetry"), serving(tmp_path / "a-{rank}.jsonl"):
        pass
    (tmp_path / "a-0.jsonl").write_text('{"time": 1, "rank": -1}\nx\n')
    with pytest.raises(DataError, match="no report"), serving(tmp_path / "a-{rank}.jsonl"):
        pass
    hostile = {"time": 1e300, "rank": 0, "batches": "x", "wait_seconds": None, "step_seconds": []}
    (tmp_path / "a-0.jsonl").write_text(json.dumps(hostile) + "\n" + json.dumps([1]) + "\n")
    with pytest.raises(DataError), serving(tmp_path / "a-{rank}.jsonl"):
        pass


def test_the_files_of_all_ranks_are_one_view(root: Path, tmp_path: Path) -> None:
    make_telemetry(tmp_path / "run")
    make_telemetry(tmp_path / "other", ranks=1)
    files = sorted((tmp_path / "run").iterdir())
    with serving(*files, tmp_path / "other/loading-0.jsonl", root / "text/prose.jsonl") as site:
        names = [one["name"] for one in json.loads(site.get("/index.json").text)["things"]]
        assert names == ["loading-rank.jsonl", "loading-0.jsonl", "prose.jsonl"]
        assert len(lanes(site)) == len(files) > 1
