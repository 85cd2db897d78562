"""The record of units: states, time left, events and metrics, with a clock that the test moves."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.jobs.engine import StageUnfinished, Where
from feedmill.jobs.events import Events, Units, name_of, of_step, prometheus
from feedmill.jobs.parts import PartEngine
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.storage import open_store
from helpers import worker_functions as working


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pass_time(units: Units, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    units.tick()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_units_by_state_and_time_left_from_those_that_ended_in_any_order() -> None:
    clock = Clock()
    units = Units("tagging", total=10, clock=clock)
    for number in range(6):
        units.begin(number, names=[f"{number}.jsonl"])
    units.start_oldest(2, "n1")
    assert units.counts() == {"waiting": 8, "running": 2, "done": 0, "retried": 0, "failed": 0}
    assert units.left is None
    for number in (1, 2, 3, 4):  # the first is slow, and no barrier
        pass_time(units, clock, 5)
        units.end(number, None, "n2", 7)
        units.start_oldest(2, "n1")
    assert units.counts() == {"waiting": 4, "running": 2, "done": 4, "retried": 0, "failed": 0}
    assert units.rate == pytest.approx(0.2) and units.left == pytest.approx(30)
    pass_time(units, clock, 4)
    assert units.left == pytest.approx(26)
    slowest = units.slowest(9)
    assert [(one.name, one.node, units.age(one)) for one in slowest] == [("0.jsonl", "n1", 24), ("5.jsonl", "n1", 4)]
    assert units.text() == "2 running, 4 waiting; slowest: 0.jsonl on node n1 for 24 s"


def test_a_lost_unit_waits_again_and_one_that_fails_is_counted() -> None:
    units = Units("tagging", total=2, clock=Clock())
    for key in ("a", "b"):
        units.begin(key, number=0)
        units.start(key)
    units.retry("a", "its worker was lost")
    units.retry("c", "it had not begun")
    assert units.counts() == {"waiting": 1, "running": 1, "done": 0, "retried": 1, "failed": 0}
    units.begin("a")
    units.start("a")
    assert units.slowest(2)[0].attempt + units.slowest(2)[1].attempt == 3
    units.fail("b", "it is damaged")
    units.second("a")
    units.end("a")
    assert units.counts() == {"waiting": 0, "running": 0, "done": 1, "retried": 2, "failed": 1}


def test_bars_show_units_by_state_and_the_time_left_of_ended_ones() -> None:
    clock, bar = Clock(), Progress("tagging", 10, "files", enabled=False)
    units = Units("tagging", total=10, clock=clock)
    with bar.showing(units):
        units.begin(0)
        units.start(0)
        pass_time(units, clock, 60)
        units.end(0)
        units.begin(1)
        units.start(1)
        bar.advance()
        assert bar.left() == "9 min 0 s left" and bar.line().endswith("9 min 0 s left, 1 running, 8 waiting")
    assert bar.note_text() == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_local_units_are_written_as_lines(workers: int, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Events(file, verb="tag"), of_step("clean (tag)"):
        where = Where("trying", "key", None)
        assert list(run(working.square, range(5), workers=workers, where=where)) == [0, 1, 4, 9, 16]
        with pytest.raises(DataError, match="seven"):
            list(run(working.refuse_seven, [6, 7], workers=workers, progress=Progress("asking", 2, enabled=False)))
    found = lines(file)
    first = [event for event in found if event["stage"] == "1-trying"]
    assert first[0]["event"] == "stage-begins" and first[0]["verb"] == "clean (tag)" and first[0]["units"] == 5
    assert sorted(event["unit"] for event in first if event["event"] == "unit-ends") == [0, 1, 2, 3, 4]
    assert all(event["node"] and event["process"] for event in first if event["event"] == "unit-ends")
    assert first[-1]["event"] == "stage-ends" and first[-1]["done"] == 5 and first[-1]["why"] is None
    failed = next(event for event in found if event["event"] == "unit-failed")
    assert failed["names"] == ["7"] and "seven" in failed["why"]
    assert found[-1]["stage"] == "2-asking" and "seven" in found[-1]["why"] and found[-1]["failed"] == 1


def test_parts_write_a_file_each_with_the_numbers_of_their_units(tmp_path: Path) -> None:
    place = open_store(str(tmp_path / "work"))
    with PartEngine(2, 2), Events(tmp_path / "e-{part}.jsonl"), pytest.raises(StageUnfinished):
        list(run(working.square, range(5), workers=1, where=Where("trying", "key", place)))
    found = lines(tmp_path / "e-2.jsonl")
    assert (found[0]["part"], found[0]["parts"], found[0]["engine"], found[0]["units"]) == (2, 2, "part", 2)
    assert [event["unit"] for event in found if event["event"] == "unit-ends"] == [1, 3]
    with (
        pytest.raises(ConfigError, match="all parts of the job array would write"),
        PartEngine(1, 2),
        Events("e.jsonl"),
    ):
        pass


def test_metrics_are_those_of_prometheus(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "feedmill.prom"
    with Events(metrics=file, verb='a "b"', clock=clock) as events:
        units = Units("tagging", verb=events.verb, total=3, clock=clock, events=events)
        units.begin(0)
        units.start(0)
        pass_time(units, clock, 20)
        assert (
            'feedmill_units_running{verb="a \\"b\\"",stage="1-tagging",engine="local",part=""} 1\n' in file.read_text()
        )
        units.end(0)
        units.close()
    text = file.read_text()
    assert "# TYPE feedmill_units_done_total counter\n" in text and 'part=""} 1\n' in text
    assert "feedmill_stage_seconds" in text and prometheus([units]) == text


def test_urls_and_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be appended"):
        Events("s3://bucket/events.jsonl")
    with pytest.raises(ConfigError, match="no place for events"):
        Events()


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_units(count: int, tmp_path: Path) -> None:
    clock = Clock()
    with Events(tmp_path / "events.jsonl", tmp_path / "m.prom", clock=clock) as events:
        units = Units("tagging", total=count, clock=clock, events=events)

        def through(first: int, last: int) -> None:
            for number in range(first, last):
                units.begin(number, names=[f"web/documents/{number}.jsonl.gz"])
                units.start_oldest(64)
                if number >= 256:
                    clock.now += 0.01
                    units.tick()
                    if number % 100 == 0:
                        units.retry(number - 256, "lost")
                        units.begin(number - 256)
                        units.start(number - 256, "n1")
                    units.end(number - 256, 0.5, "n1", 12)

        through(0, count // 10)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        through(count // 10, count)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 << 10  # KiB
        assert len(units._open) == 256 and len(units._queue) <= 512 and len(units._again) == 0
        assert units.done == count - 256
        units.close()


def test_the_name_of_a_long_unit_is_made_of_its_first_elements() -> None:
    class Member:
        def __repr__(self) -> str:
            shown.append(self)
            return "member"

    class Unit(NamedTuple):
        number: int
        members: list[Any]

    shown: list[Member] = []
    unit = Unit(3, [Member() for _ in range(1000)])
    assert name_of(unit).startswith("(3, [member, member")
    assert len(shown) < 10
    assert name_of((3, [f"{n}.jsonl" for n in range(1000)])) == "0.jsonl and 999 more"  # was "(3, ['0.jsonl', ...])"
