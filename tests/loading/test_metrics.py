"""What loading costs, and who is stalled."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from types import FrameType

import pytest

from feedmill.errors import ConfigError
from feedmill.loading.batches import Activity, Watchdog
from feedmill.loading.loader import Loader
from feedmill.loading.metrics import Metrics, Telemetry
from helpers import warm
from helpers.fakes import FakePlan
from helpers.worker_functions import slow_ninth


def test_seconds_go_to_their_stages() -> None:
    loader = Loader(FakePlan(length=22), 4, transform=slow_ninth)
    assert len(list(loader)) == 6
    found = loader.metrics.snapshot()
    assert (found["batches"], found["samples"], found["position"], found["rank"]) == (6, 22, 22, 0)
    assert 0.6 < found["transform_seconds"] <= found["wait_seconds"]
    assert found["read_seconds"] > 0 and found["collate_seconds"] > 0
    assert 0 < found["samples_per_second"] < 22 / 0.6 and found["ready"] < 1


def test_the_wait_is_divided_by_the_stage_in_which_the_batch_was() -> None:
    metrics = Metrics()
    made = {"fetch": 3.0, "read": 0.5, "transform": 1.0, "collate": 0.25, "transfer": 0.25}
    metrics.given(1.0, 10.0, made)  # the last second of making it
    metrics.given(6.0, 20.0, made)
    found = metrics.snapshot()
    waits = {name[5:-8]: value for name, value in found.items() if name.startswith("wait_") and name[5:] != "seconds"}
    assert waits == {"fetch": 3, "read": 0.5, "transform": 1.5, "collate": 0.5, "transfer": 0.5, "other": 1}
    assert sum(waits.values()) == found["wait_seconds"] == 7


def test_a_fast_loader_and_a_slow_loop() -> None:
    loader, until = Loader(FakePlan(), 4, workers=2), time.monotonic() + 120
    for _ in loader:
        time.sleep(0.01)
        found = loader.metrics.snapshot()
        if found["ready"] > 0 or time.monotonic() > until:
            break
    loader.close()
    assert found["ready"] > 0 and 0 < found["waiting"] <= 1


def test_the_time_between_two_loops_is_nobody_s() -> None:
    loader = Loader(FakePlan(length=8), 4)
    fresh, looping = loader.state_dict(), 0.0
    for _ in range(2):
        loader.load_state_dict(fresh)
        begin = time.perf_counter()
        list(loader)
        looping += time.perf_counter() - begin
        time.sleep(0.3)
    assert loader.metrics.batches == 4 and 0 < loader.metrics.step_seconds <= looping


def test_a_report_that_cannot_be_written_costs_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    telemetry = Telemetry(every=1e-6, jsonl=tmp_path / "file" / "m.jsonl")
    with caplog.at_level(logging.WARNING, "feedmill"):
        assert len(list(Loader(FakePlan(length=12), 4, telemetry=telemetry))) == 3
    assert "the metrics of loading cannot be written" in caplog.text


def test_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry(every=1e-6, jsonl=tmp_path / "m/{rank}.jsonl", prometheus=tmp_path / "f.prom")
    loader = Loader(FakePlan(length=12), 4, rank=0, world_size=1, telemetry=telemetry)
    with caplog.at_level(logging.INFO, "feedmill"):
        list(loader)
    lines = [json.loads(line) for line in (tmp_path / "m/0.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in lines] == [4, 8, 12] and lines[0]["time"] > 1.7e9
    text = (tmp_path / "f.prom").read_text()
    assert 'feedmill_loader_samples_total{rank="0"} 12\n' in text and "# TYPE feedmill_loader_position gauge\n" in text
    assert len(caplog.messages) == 3 and caplog.messages[-1].startswith("rank 0: 3 batches, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.prom", "m"]
    with pytest.raises(ConfigError):
        Telemetry(every=0)


def test_metrics_of_prometheus_are_whole_families() -> None:
    lines = Metrics(3).prometheus().splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(names)) == len(names) == len(lines) // 3 and all('rank="3"' in line for line in lines[2::3])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stalled_thread_is_named(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader(FakePlan(), 4, workers=workers, transform=slow_ninth, stall=0.2)
    with caplog.at_level(logging.WARNING, "feedmill"):
        list(islice(loader, 4))
    loader.close()
    place = "now in transform of position 9 (source 1, sample"  # a busy machine may stall others, and this for longer
    named = [each for each in caplog.messages if "time.sleep(0.6" in each and place in each]
    assert "batch 2 has taken" in named[0] and f"of process {os.getpid()}" in named[0]


def test_garbage_is_not_collected_while_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection there can free a `threading.local`, which waits for the lock of the list: for ever."""
    frames, seen = sys._current_frames, list[bool]()

    def listed() -> dict[int, FrameType]:
        seen.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", listed)
    watchdog = Watchdog(1, 0, str)
    assert "test_garbage_is_not" in watchdog.message(threading.get_ident(), Activity(0, 0, 1), 0.0)
    assert seen == [False] and gc.isenabled()


def test_a_stalled_process_is_named() -> None:
    tests = Path(__file__).parents[1]
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from itertools import islice\n"
        "from helpers.fakes import FakePlan; from helpers.worker_functions import slow_ninth\n"
        "from feedmill.loading.loader import Loader; from feedmill.loading.workers import Workers\n"
        "loader = Loader(FakePlan(), 4, workers=Workers(1, processes=True), transform=slow_ninth, stall=0.2)\n"
        "list(islice(loader, 4)); loader.close()\n"
    )
    command = [sys.executable, "-c", program, str(tests.parent / "src"), str(tests)]
    done = warm.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "now in transform of position 9" in done.stderr and "time.sleep(0.6" in done.stderr


def test_nothing_is_said_where_nothing_stalls(caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader(FakePlan(), 4, workers=1, transform=slow_ninth, stall=None)
    with caplog.at_level(logging.WARNING, "feedmill"):
        list(islice(loader, 4))
    loader.close()
    assert caplog.messages == []
