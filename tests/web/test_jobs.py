"""The Jobs page: what events say while a job runs, and after its end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from feedmill.errors import DataError
from feedmill.jobs.events import Events, Units
from feedmill.web.library import Library
from feedmill.web.logs import Jobs
from helpers.web_server import serving


def test_a_job_is_shown_live_and_after_its_end(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Events(file, verb="tag", clock=lambda: time.time() - 60) as events:
        units = Units("tagging", verb="tag", total=4, events=events)
        for number in range(4):
            units.begin(number, names=[f"<b>{number}.jsonl"])
        units.start(0, "slow-node", 11)
        units.start(1, "n2", 12)
        units.log("12 lines are no JSON", 1)
        units.end(1, 2.5)
        with serving(file) as site:
            data = site.get("/events.jsonl/jobs.json").json
            assert data["state"] == "live" and data["refresh"] and data["stages"][0]["total"] == 4
            assert data["stages"][0]["counts"] == {"waiting": 2, "running": 1, "done": 1, "retried": 0, "failed": 0}
            (slowest,) = data["stages"][0]["slowest"]
            assert (slowest["name"], slowest["node"], slowest["process"]) == ("<b>0.jsonl", "slow-node", 11)
            assert slowest["age"] >= 60
            assert data["stages"][0]["nodes"] == [{"node": "n2", "units": 1, "mean": 2.5}]
            assert data["warnings"][0]["text"] == "12 lines are no JSON"
            page = site.get("/events.jsonl/jobs").text
            assert "slow-node" in page and "<b>0" not in page and "data-refresh" in page
            with open(file, "ab") as half:
                half.write(b'no event\n{"time": 1')
            units.fail(0, "it is damaged")  # its line is spoilt by the half one
            units.start(2, "n2", 12)
            units.fail(2, "it is damaged, too")
            units.close("the disk is full")
            data = site.get("/events.jsonl/jobs.json").json
            assert data["state"] == "ended" and data["refresh"] is None and data["skipped"] == 2
            assert data["stages"][0]["state"] == "failed" and data["stages"][0]["why"] == "the disk is full"
            assert [row["text"] for row in data["failures"]] == ["it is damaged, too"] and data["failed"] == 1
            assert "the disk is full" in site.get("/").text + site.get("/events.jsonl/jobs").text


def test_a_run_after_one_that_was_killed_in_a_line_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    for verb in ("first", "second"):
        with Events(file, verb=verb) as events:
            units = Units("tagging", verb=verb, total=1, events=events)
            units.begin(0)
            units.start(0)
            units.end(0, 1.0)
            units.close(None)
        if verb == "first":
            file.write_bytes(file.read_bytes()[:-9])
    found = Jobs(str(file))
    found.look()
    assert [stage.units.verb for stage in found.stages.values()] == ["first", "second"] and found.skipped == 1
    file.write_bytes(file.read_bytes().partition(b"\n")[2])  # without the line with which the first one began
    found = Jobs(str(file))
    found.look()
    assert [stage.units.verb for stage in found.stages.values()] == ["second"] and found.skipped == 3


def test_a_killed_run_is_told_from_a_silent_one_beside_it(tmp_path: Path) -> None:
    """A run says each minute that it is there."""
    file, now = tmp_path / "events.jsonl", [time.time() - 1000]
    for ending, gap in ((True, 0), (False, 100), (False, 200), (False, 600)):
        with Events(file, clock=lambda: now[0]) as events:
            now[0] += gap
            units = Units(f"after-{gap}", total=2, events=events)
            units.begin(0)
            units.start(0)
            if gap == 600:
                for _ in range(10):
                    now[0] += 9
                    units.tick()
            if ending:
                units.close()
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [row["event"] for row in rows[-2:]] == ["unit-begins", "stage-continues"] and rows[-1]["process"]
    for row in rows:  # of another machine, but for one
        row |= {"node": "n7"} if row["stage"] != "1-after-200" and "node" in row else {}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(file) as site:
        data = site.get("/events.jsonl/jobs.json").json
        states = {row["key"]: row["state"] for row in data["stages"]}
        assert states == {"after-0": "ended", "after-100": "silent", "after-200": "running", "after-600": "running"}
        assert data["state"] == "live" and site.get("/events.jsonl/jobs").text.count("How it ended is unknown") == 1


def test_lines_of_other_values_are_counted_and_shown_as_text(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    begin = {"time": 1.0, "run": "r", "stage": "1", "event": "stage-begins", "name": "<script>x", "part": "<b>"}
    unit = {**begin, "event": "unit-begins", "unit": 0}
    wrong = ({"time": True}, {"time": 1e300}, {"count": -3}, {"names": "abc"}, {"seconds": -1}, {"unit": [1]})
    rows = [begin, {**unit, "names": ["<script>y"]}, *({**unit, **one} for one in wrong)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(file) as site:
        data = site.get("/events.jsonl/jobs.json").json
        assert data["skipped"] == len(wrong) and data["counts"]["running"] == 1
        page = site.get("/events.jsonl/jobs").text
        assert "&lt;script&gt;y" in page and "<script>x" not in page and "<script>y" not in page


def test_the_files_of_parts_are_one_job(tmp_path: Path) -> None:
    for part in (1, 2):
        with Events(tmp_path / f"e-{part}.jsonl") as events:
            units = Units("tagging", total=1, part=part, parts=2, events=events)
            units.begin(0)
            units.end(0, 1.0, f"n{part}")
            units.close()
    library = Library([tmp_path / "e-{part}.jsonl"])
    (thing,) = library.things.values()
    assert thing.kind == "job" and {stage.units.part for stage in thing.jobs.stages.values()} == {1, 2}
    (tmp_path / "x-1.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="no events"):
        Library([tmp_path / "x-{part}.jsonl"])
