from __future__ import annotations

import _thread
import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.jobs import processes
from feedmill.jobs.engine import Limits, Policy, UnitsFailed, Where
from feedmill.jobs.events import units_of
from feedmill.jobs.pool import Pool
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run, run_largest_first
from feedmill.storage import LocalStore
from helpers import worker_functions as working


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float = 180) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 7])
def test_results_come_in_order_whatever_the_parallelism(workers, chunk):
    assert list(run(working.square, range(50), workers=workers, chunk=chunk)) == [x * x for x in range(50)]


def test_the_largest_are_worked_on_first_and_results_stay_in_order():
    begun: list[int] = []
    assert run_largest_first(lambda x: begun.append(x) or -x, [0, 1, 2, 3], [5, 9, 5, 7], workers=1) == [0, -1, -2, -3]
    assert begun == [1, 3, 0, 2]
    assert run_largest_first(working.square, range(50), [x % 7 for x in range(50)], workers=3) == [
        x * x for x in range(50)
    ]


def test_a_slow_item_holds_its_place_and_several_processes_work(tmp_path):
    results = list(run(working.meet, [(str(tmp_path), x) for x in range(30)], workers=2))
    assert [x for x, _ in results] == list(range(30))
    pids = {pid for _, pid in results}
    assert len(pids) == 2 and os.getpid() not in pids
    assert not any(alive(pid) for pid in pids)  # after the last result


@pytest.mark.parametrize(("items", "workers"), [([3], 4), ([1, 2, 3], 1), ([], 4)])
def test_small_work_stays_in_this_process(items, workers):
    results = list(run(working.number_and_process, items, workers=workers))
    assert results == [(x, os.getpid()) for x in items]


def test_fewer_items_than_a_chunk_still_use_all_workers(tmp_path):
    jobs = [(str(tmp_path), x) for x in range(8)]
    assert len({pid for _, pid in run(working.meet, jobs, workers=2, chunk=100)}) == 2


def test_items_are_taken_only_as_needed():
    taken = []

    def numbers():
        for i in range(100_000):
            taken.append(i)
            yield i

    results = run(working.square, numbers(), workers=2, chunk=10)
    assert [next(results) for _ in range(20)] == [x * x for x in range(20)]
    assert len(taken) <= 20 + 2 * 4 * 10 + 10
    results.close()


def test_workers_none_takes_the_cores_there_are():
    assert 1 <= available_cores.__wrapped__() <= (os.cpu_count() or 1)  # see `conftest.py`
    assert list(run(working.square, range(4))) == [0, 1, 4, 9]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunk", [1, 4])
def test_an_error_comes_through_with_its_fields_after_the_results_before_it(workers, chunk):
    got = []
    with pytest.raises(DataError) as caught:
        for result in run(working.refuse_five, range(20), workers=workers, chunk=chunk):
            got.append(result)
    assert got == [0, 1, 2, 3, 4]
    error = caught.value
    assert (error.file, error.offset, error.record, error.kind) == ("s5.tar", 512, "k", "test-kind")
    assert error.fix == "Fix it."


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_iteration_of_the_function_is_not_the_end(workers):
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(run(next, [iter([1]), iter([2]), iter([])], workers=workers))


def test_another_exception_keeps_its_type_and_tells_where_it_came_from():
    with pytest.raises(ZeroDivisionError) as caught:
        list(run(working.divide, [1, 2, 0, 4], workers=2))
    notes = "\n".join(caught.value.__notes__)
    assert "while working on 0" in notes and "in divide" in notes


def test_an_exception_that_does_not_unpickle_is_not_taken_for_a_dead_worker():
    with pytest.raises(FeedmillError, match="Picky: ab") as caught:
        list(run(working.picky, range(4), workers=2))
    assert caught.value.kind == "worker-error"


def test_a_killed_worker_names_the_items_in_flight():
    got = []
    with pytest.raises(FeedmillError) as caught:
        for name in run(working.die_on_seven, [f"shard-{i}" for i in range(100)], workers=2):
            got.append(name)
    error = caught.value
    assert error.kind == "worker-died" and "SIGKILL" in error.what and "shard-7" in error.what
    assert error.fix is not None and "fewer workers" in error.fix
    assert got == [f"shard-{i}" for i in range(len(got))] and len(got) <= 7


def test_a_worker_that_exits_names_the_items_in_flight():
    with pytest.raises(FeedmillError, match=r"ended while working on .*shard-7") as caught:
        list(run(working.exit_on_seven, [f"shard-{i}" for i in range(20)], workers=2))
    assert caught.value.kind == "worker-died"


def test_a_worker_that_ends_while_another_one_starts_is_noticed(monkeypatch):
    """Its pool closed the queue that the other one was to get: an `OSError` that nobody expected."""
    spawn = ProcessPoolExecutor._spawn_process

    def late(pool):
        if pool._processes:  # later Pythons wait with the end of the pool until this one has started
            wait_for(lambda: pool._broken and pool._call_queue._reader.closed, 5)
        spawn(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", late)
    with pytest.raises(FeedmillError) as caught:
        list(run(working.exit_at_once, range(9), workers=2, policy=Policy(fork=False)))
    assert caught.value.kind == "worker-died"


@pytest.mark.parametrize("function", [working.note_and_sleep, working.sleep_in_a_finalizer, working.ignore_and_sleep])
def test_closing_early_ends_the_workers(function, tmp_path, monkeypatch, capfd):
    # One does not end, and the other may need its time on a busy machine.
    monkeypatch.setattr("feedmill.jobs.processes._GRACE", 0.5 if function is working.ignore_and_sleep else 120)
    results = run(partial(working.mixed, function), ["", *[str(tmp_path)] * 10], workers=2)
    assert next(results) == 0
    assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    results.close()
    assert not any(alive(pid) for pid in workers)
    if function is not working.ignore_and_sleep:
        assert list(tmp_path.iterdir()) == []  # they had time to clean up
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_that_meets_the_hook_of_finalizers_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool repeats its signal, and what is raised in the hook itself is ignored, too."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def signalled(thread: threading.Thread) -> None:
        processes._stopping = False  # as after the pause, which a busy machine makes as long
        os.kill(os.getpid(), signal.SIGTERM)
        start(thread)
        started.append(thread)

    monkeypatch.setattr(processes, "_working", True)
    monkeypatch.setattr(processes, "_stopping", True)
    monkeypatch.setattr(threading.Thread, "start", signalled)
    before = signal.signal(signal.SIGTERM, processes._stop)
    try:
        with pytest.raises(SystemExit) as caught:
            processes._unraisable(print, SimpleNamespace(exc_value=SystemExit(processes._STOPPED)))
            time.sleep(60)
        started[0].join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "_unraisable" not in [entry.name for entry in caught.traceback]


def test_a_worker_that_has_ended_does_not_keep_another_from_cleaning_up(tmp_path, monkeypatch):
    """The pool sends SIGTERM to all other workers when one ends: the second signal for a slow one."""
    monkeypatch.setattr("feedmill.jobs.processes._GRACE", 120)
    results = run(
        partial(working.mixed, working.sleep_and_clean_up), ["", (str(tmp_path), 0), (str(tmp_path), 0.7)], workers=2
    )
    assert next(results) == 0
    assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    results.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_during_the_start_leaves_no_worker(started, monkeypatch):
    patched = "_hand_out" if started else "_start"
    real = getattr(Pool, patched)

    def interrupted(*args):
        if started:
            real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Pool, patched, interrupted)
    results = run(working.square, range(50), workers=2)
    before = set(multiprocessing.active_children())  # of earlier tests
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert not set(multiprocessing.active_children()) - before


def test_a_daemon_process_works_by_itself():
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(target=working.run_and_send, args=(theirs,), daemon=True)
    child.start()
    assert ours.poll(180) and ours.recv() == [(x, child.pid) for x in range(4)]
    child.join()


def test_progress_counts_results():
    for workers in [1, 2]:
        with Progress("squares", 10, enabled=False) as progress:
            list(run(working.square, range(10), workers=workers, progress=progress))
        assert progress.done == 10


def test_what_cannot_be_sent_is_said():
    with pytest.raises(ConfigError, match="top level of a module"):
        run(lambda x: x, range(4), workers=2)
    with pytest.raises(ConfigError, match="chunks of 0"):
        run(working.square, range(4), workers=2, chunk=0)
    assert list(run(lambda x: x + 1, range(3), workers=1)) == [1, 2, 3]


THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
"""A program with a thread, whose workers come from the fork server."""

USE = """
import sys
sys.path.insert(0, {tests!r})
FEEDMILL_TEST = True
from helpers import worker_functions as working
from feedmill.jobs.run import run, run_largest_first
print(list(run(working.square, ["__main__", 1, 2][1:], workers=2)), any(run(working.is_main_loaded, [1, 2], workers=2)))
"""


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("how", ["-c", "stdin", "script"])
def test_any_program_may_start_it(how, served, tmp_path):
    """Without `if __name__ == "__main__"`, and without workers running the program again."""
    code = (THREAD if served else "") + USE.format(tests=str(Path(working.__file__).parents[1]))
    arguments, given = {"-c": (["-c", code], None), "stdin": (["-"], code)}.get(how, ([str(tmp_path / "a.py")], None))
    (tmp_path / "a.py").write_text(code)
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=180)
    assert done.stdout == f"[1, 4] {not served}\n", done.stderr
    assert done.stderr == ""


def test_large_items_that_nobody_takes_any_more_hold_nothing_up():
    """The thread that sends them waited for ever for workers that were stopped."""
    code = """
        import sys
        sys.path.insert(0, {tests!r})
        from helpers import worker_functions as working
        from feedmill.jobs.run import run
        for _ in range(5):
            try:
                list(run(working.refuse_large, [bytes([n]) * (8 << 20) for n in range(16)], workers=2))
            except ValueError as error:
                print(error)
    """
    code = textwrap.dedent(code).format(tests=str(Path(working.__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "item 1\n" * 5, done.stderr


def test_workers_of_the_fork_server_have_the_environment_of_now(monkeypatch):
    served = Policy(always_processes=True, fork=False)
    monkeypatch.setenv("FEEDMILL_TEST", "one")
    assert list(run(working.variable, ["FEEDMILL_TEST"], workers=1, policy=served)) == ["one"]
    monkeypatch.setenv("FEEDMILL_TEST", "two")
    assert list(run(working.variable, ["FEEDMILL_TEST"], workers=1, policy=served)) == ["two"]
    monkeypatch.delenv("FEEDMILL_TEST")
    assert list(run(working.variable, ["FEEDMILL_TEST"], workers=1, policy=served)) == [None]


def test_a_program_that_its_workers_would_run_again_is_refused(tmp_path):
    code = """
        import pathlib, threading, time
        from feedmill.errors import ConfigError
        from feedmill.jobs.run import run
        with open("begun", "a") as file:
            file.write("x")
        def double(x):
            return 2 * x
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        try:
            print(list(run(double, range(3), workers=2)))
        except ConfigError as error:
            print(error.kind, error)
    """
    (tmp_path / "a.py").write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.stdout.startswith("unguarded-main") and 'below `if __name__ == "__main__":`' in done.stdout, done.stderr
    assert done.stderr == "" and (tmp_path / "begun").read_text() == "x"


def test_a_program_may_use_its_own_functions(tmp_path):
    (tmp_path / "a.py").write_text(
        textwrap.dedent("""
        from feedmill.jobs.run import run, run_largest_first
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            print(list(run(double, [1, 2, 3], workers=2)))
        """)
    )
    done = subprocess.run([sys.executable, tmp_path / "a.py"], capture_output=True, text=True, timeout=180)
    assert done.stdout == "[2, 4, 6]\n", done.stderr


def test_a_function_without_a_home_is_said_to_have_none():
    code = "from feedmill.jobs.run import run\ndef f(x): return x\nlist(run(f, [1, 2], workers=2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert "ConfigError" in done.stderr and "Move the function into a module" in done.stderr


FORKED = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from helpers import worker_functions as working
from feedmill.jobs import processes
from feedmill.jobs.progress import Progress
from feedmill.jobs.engine import Policy
from feedmill.jobs.run import run, run_largest_first
def ways():
    seen = []
    real = processes.new_context
    processes.new_context = lambda *a, **k: seen.append(real(*a, **k)) or seen[-1]
    with Progress("squares", 4, enabled=True) as bar:
        found = list(run(working.square, range(4), workers=2, progress=bar))
    assert found == [0, 1, 4, 9], found
    return type(seen[0]).__name__
print(ways(), ways(), threading.active_count())
{then}
print(ways())
"""


def test_workers_are_forked_where_there_is_no_thread(tmp_path):
    """Again and again, behind a bar on a terminal, which has a thread that is stopped for it."""
    import pty

    ours, theirs = pty.openpty()
    for then, way in (("", "Forked"), (THREAD, "Served")):
        code = FORKED.format(tests=str(Path(working.__file__).parents[1]), then=then)
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=180
        )
        assert done.stdout == f"Forked Forked 1\n{way}\n"
    os.close(theirs)
    os.close(ours)


MAIN = """
import sys
sys.path.insert(0, {tests!r})
from helpers import worker_functions as working
from feedmill.jobs import processes
from feedmill.jobs.run import run
processes._GRACE = 120  # on a busy machine, workers need their time to clean up
try:
    list(run(working.note_and_sleep, [{folder!r}] * 10, workers=2))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_program_leaves_no_process_behind(number, served, tmp_path):
    code = (THREAD if served else "") + MAIN.format(tests=str(Path(working.__file__).parents[1]), folder=str(tmp_path))
    main = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    session = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and in_session(p, main.pid)]
    assert len(session) >= 3 + served  # the program, the fork server and two workers
    if number == signal.SIGINT:
        os.killpg(main.pid, number)  # as a terminal does
    else:
        main.send_signal(number)
    out, err = main.communicate(timeout=180)
    assert wait_for(lambda: not any(alive(pid) for pid in session))
    assert list(tmp_path.iterdir()) == []
    if number == signal.SIGINT:
        assert (out, err) == ("interrupted\n", "")
    assert "Traceback" not in err


def in_session(process: Path, session: int) -> bool:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session
    except OSError:
        return False


def test_a_worker_that_ends_while_it_sends_a_result_holds_nobody_up() -> None:
    before = set(multiprocessing.active_children())  # of earlier tests
    for _ in range(10):
        results = run(working.big_result, range(40), workers=2)
        assert next(results)
        results.close()  # the others are in the middle of theirs
        assert not set(multiprocessing.active_children()) - before


def test_a_worker_killed_while_it_sends_a_result_is_noticed() -> None:
    with pytest.raises(FeedmillError) as info:
        list(run(working.killed_while_sending, range(4), workers=2))
    assert info.value.kind == "worker-died"


def test_no_chunks_in_flight_are_one_at_a_time():
    assert list(run(abs, range(5), workers=2, policy=Policy(in_flight=0))) == [0, 1, 2, 3, 4]


@pytest.fixture
def quick(monkeypatch):
    """Looks follow each other at once, and each takes a second of the clock by which units are late."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr("feedmill.jobs.run.units_of", partial(units_of, clock=clock))
    monkeypatch.setattr("feedmill.jobs.pool._LOOK", 0.05)
    monkeypatch.setattr("feedmill.jobs.processes._GRACE", 0.1)  # a worker that is stopped cleans nothing up


def continued(mark: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(mark.read_text()), signal.SIGCONT)


@pytest.mark.parametrize("stage", [True, False])
def test_a_stopped_worker_is_named_and_others_do_not_wait_for_it(stage, quick, tmp_path, caplog):
    """Units of a stage may run twice, so its workers start again. Other work waits until its worker continues."""
    mark, count, ended = tmp_path / "stopped", 300, []

    class Continue(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ended.append(bar.done)
            if not stage:
                continued(mark)

    handler = Continue(logging.WARNING)
    logging.getLogger("feedmill").addHandler(handler)
    bar = Progress("trying", count, "units", enabled=False)
    where = Where("trying", "key", None) if stage else None
    try:
        jobs = ((str(mark), number) for number in range(count))
        results = run(working.stop_once, jobs, workers=2, progress=bar, where=where)
        assert list(results) == list(range(count)) and bar.done == count
    finally:
        logging.getLogger("feedmill").removeHandler(handler)
        continued(mark)
    assert ended[0] > 3 + 2 * 4  # more than the chunks of the workers
    text = caplog.records[0].getMessage()
    assert text.startswith("trying: the unit " if stage else "the unit ") and " has run for " in text
    assert f"the worker process {mark.read_text()} is stopped" in text
    assert text.endswith(", and all workers start again") == stage


def test_large_results_do_not_pile_up_behind_a_slow_one(quick, tmp_path, monkeypatch):
    monkeypatch.setattr("feedmill.jobs.pool._KEPT", 10)
    mark, taken = tmp_path / "stopped", []
    jobs = ((str(mark), number) for number in range(300) if taken.append(number) or True)
    results = run(working.stop_once, jobs, workers=2, where=Where("trying", "key", None))
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    assert len(taken) <= 4 + 2 * 4 + 1
    results.close()


def test_ctrl_c_waits_until_a_worker_has_started() -> None:
    """A worker whose start was interrupted printed a traceback of its own; a second Ctrl-C does not wait."""
    came: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), processes._without_interrupts():
        _thread.interrupt_main()  # as if another thread of this process had received it, which a mask does not prevent
        came.append("started")
    with pytest.raises(KeyboardInterrupt), processes._without_interrupts():
        for _ in range(2):
            _thread.interrupt_main()
        came.append("never")
    assert came == ["started"] and signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_neither_the_fork_server_nor_its_workers_handle_ctrl_c_while_they_start() -> None:
    """They would print a traceback: the mask is inherited from the first instruction on."""
    program = """
import signal, time
from multiprocessing import forkserver
from feedmill.jobs import processes
processes._can_fork = lambda: False

def mask(pid):
    fields = dict(line.split(":\\t") for line in open(f"/proc/{pid}/status") if ":\\t" in line)
    return int(fields["SigBlk"], 16) | int(fields["SigIgn"], 16)

if __name__ == "__main__":
    processes.start_server([])
    assert mask(forkserver._forkserver._forkserver_pid) & 1 << signal.SIGINT - 1
    context = processes.new_context(False, [], fork=False)
    process = context.Process(target=time.sleep, args=(600,))
    process.start()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "this process handles it as before"
    assert mask(process.pid) & 1 << signal.SIGINT - 1
    process.kill()
    process.join()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_unit_is_tried_again(workers, tmp_path, caplog):
    jobs = [(str(tmp_path / "mark"), number) for number in range(9)]
    with Limits(attempts=2):
        assert list(run(working.fail_once, jobs, workers=workers, where=kept(tmp_path))) == list(range(9))
    assert caplog.text.count("tried again, 1 of 2") == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("attempts", [None, 3])
def test_other_units_end_although_one_always_fails(workers, attempts, tmp_path, caplog):
    """What comes after it is recorded. An error of an input is final."""
    got, recorded = [], []
    where = Where("trying", "key", LocalStore(tmp_path), record=recorded.append)
    with Limits(attempts=attempts, max_failed=1), pytest.raises(UnitsFailed, match="1 of 9 units") as caught:
        for result in run(working.refuse_five, range(9), workers=workers, where=where):
            got.append(result)
    assert got == [0, 1, 2, 3, 4] and recorded == [6, 7, 8] and caught.value.finished == 8
    assert [unit.name for unit in caught.value.failed] == ["5"] and "tried again" not in caplog.text
    with Limits(max_failed=0), pytest.raises(FeedmillError, match=r"budget of 0 is exceeded.*bad") as over:
        list(run(working.refuse_five, range(9), workers=workers, where=where))
    assert over.value.kind == "too-many-bad"


def test_a_unit_that_always_ends_its_worker_is_found(quick, tmp_path, caplog):
    """Those that ran beside it run again, one by one, and none of them is taken for it."""
    with Limits(attempts=2, max_failed=1), pytest.raises(UnitsFailed) as caught:
        list(run(working.exit_on_seven, [f"shard-{n}" for n in range(12)], workers=2, where=kept(tmp_path)))
    assert [unit.name for unit in caught.value.failed] == ["shard-7"] and caught.value.finished == 11
    assert "a worker process ended; " in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_a_unit_that_hangs_is_ended(workers, quick, tmp_path, caplog):
    with Limits(timeout=15, attempts=2, max_failed=1), pytest.raises(UnitsFailed, match="1 of 9 units") as caught:
        list(run(working.hang_on_three, range(9), workers=workers, where=kept(tmp_path)))
    assert "time limit of 15 s" in str(caught.value.failed[0].error) and caught.value.finished == 8
    assert caplog.text.count("tried again, 1 of 2") == 1


def kept(folder: Path) -> Where:
    return Where("trying", "key", LocalStore(folder))
