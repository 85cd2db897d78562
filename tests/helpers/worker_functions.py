"""Functions that worker processes of the tests run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from feedmill.errors import DataError, NotFound
from feedmill.jobs.run import run


class Picky(Exception):
    """Pickles, but does not unpickle."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def refuse_large(data: bytes) -> int:
    if data[0] == 1:
        raise ValueError("item 1")
    return len(data)


def square(x: int) -> int:
    return x * x


def number_and_process(x: int) -> tuple[int, int]:
    return x, os.getpid()


def meet(job: tuple[str, int]) -> tuple[int, int]:
    """Wait at the first number until another process is at work, too."""
    folder, number = job
    Path(folder, str(os.getpid())).touch()
    limit = time.monotonic() + 180
    while number == 0 and len(os.listdir(folder)) < 2 and time.monotonic() < limit:
        time.sleep(0.002)
    return number, os.getpid()


def refuse_five(x: int) -> int:
    if x == 5:
        raise DataError("bad", file="s5.tar", offset=512, record="k", fix="Fix it.", kind="test-kind")
    return x


def divide(x: int) -> float:
    return 1 / x


def picky(x: int) -> int:
    raise Picky("a", "b")


def die_on_seven(name: str) -> str:
    if name == "shard-7":
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def exit_on_seven(name: str) -> str:
    if name == "shard-7":
        os._exit(3)
    return name


def exit_at_once(_: object) -> None:
    os._exit(3)


def miss(_: object) -> None:
    raise NotFound("no such file", file="documents/part-0.jsonl")


def warn_of_sevenths(x: int) -> int:
    """Warn twice of the remainder of a number."""
    for _ in range(2):
        logging.getLogger("feedmill").warning("the remainder is %d", x % 7)
    return x


def note_and_sleep(folder: str) -> int:
    """Leave a file with this process's number while at work."""
    mark = Path(folder) / f"{os.getpid()}"
    try:
        mark.write_text("")
        for _ in range(600):
            time.sleep(0.1)
    finally:
        mark.unlink()
    return 0


class _Slow:
    """An object whose finalizer leaves a file, and then sleeps."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __del__(self) -> None:
        self.mark.write_text("")
        for _ in range(600):
            time.sleep(0.1)


def sleep_in_a_finalizer(folder: str) -> int:
    """Like `note_and_sleep`, where Python ignores what a signal's handler raises, and then where it does not."""
    mark = Path(folder) / f"{os.getpid()}"
    try:
        _Slow(mark)
        for _ in range(600):
            time.sleep(0.1)
    finally:
        mark.unlink()
    return 0


def mixed(function: Callable[[Any], int], job: Any) -> int:
    """Nothing for an empty job."""
    return function(job) if job else 0


def sleep_and_clean_up(job: tuple[str, float]) -> int:
    """Leave a file while at work, and take some seconds to remove it."""
    folder, seconds = job
    mark = Path(folder) / f"{seconds}"
    try:
        mark.write_text("")
        for _ in range(600):
            time.sleep(0.1)
    finally:
        time.sleep(seconds)
        mark.unlink()
    return 0


def refuse_seven(number: int) -> int:
    if number == 7:
        raise DataError("seven is not accepted", file="x.tar", kind="bad-seven")
    return number


def fill_the_disk(_: int) -> None:
    from feedmill.storage.base import storage_error  # imports numpy, whose threads keep workers from being forked

    try:
        with open("/dev/full", "wb", buffering=0) as f:
            f.write(b"x")
    except OSError as error:
        raise storage_error(error, "/dev/full") from None


def name_of_node(_: int) -> str:
    import ray

    time.sleep(0.2)
    return str(ray.get_runtime_context().get_node_id())


def take_memory(gigabytes: int) -> int:
    """Take a gigabyte of memory after another."""
    taken = []
    for _ in range(10 * gigabytes):
        taken.append(b"x" * (100 << 20))
        time.sleep(0.05)
    return len(taken)


def ignore_and_sleep(folder: str) -> int:
    while True:
        with contextlib.suppress(SystemExit):
            note_and_sleep(folder)


def is_main_loaded(_: int) -> bool:
    return hasattr(sys.modules.get("__main__"), "FEEDMILL_TEST")


def run_and_send(pipe: Connection) -> None:
    pipe.send(list(run(number_and_process, range(4), workers=2)))


def slow_ninth(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes its time at position 9."""
    time.sleep(0.6 if sample["position"] == 9 else 0.002)
    return sample


def briefly(sample: Any) -> Any:
    time.sleep(0.002)
    return sample


def big_result(x: int) -> bytes:
    return bytes(8 << 20)


def killed_while_sending(x: int) -> bytes:
    if x == 2:
        threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return bytes(64 << 20)


def stop_once(job: tuple[str, int]) -> int:
    """Stop this process at the number 3, the first time, after leaving its id in a file."""
    mark, number = Path(job[0]), job[1]
    if number == 3 and not mark.exists():
        mark.with_suffix(".new").write_text(str(os.getpid()))  # who sees the file may read it at once
        os.replace(mark.with_suffix(".new"), mark)
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def fail_once(job: tuple[str, int]) -> int:
    """Fail on 3 unless a file is there, which a first try makes."""
    mark, number = job
    if number == 3 and not os.path.exists(mark):
        Path(mark).touch()
        raise OSError("not now")
    return number


def hang_on_three(x: int) -> int:
    if x == 3:
        threading.Event().wait()
    return x
