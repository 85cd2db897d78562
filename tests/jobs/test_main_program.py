"""Work that is defined in the main program: its file is imported in workers, and what must not happen there is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import os, threading, time
from feedmill.errors import FeedmillError
from feedmill.jobs.engine import Policy
from feedmill.jobs.run import run
def double(x):
    return 2 * x
def work(limit=60.0):
    served = Policy(always_processes=True, fork=False, restarts=3, start_timeout=limit)
    try:
        print(list(run(double, range(3), workers=2, policy=served)))
    except FeedmillError as error:
        print(error.kind, error)
"""


def output(folder: Path, code: str, **environment: str) -> str:
    (folder / "program.py").write_text(HEAD + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_guarded_program_is_imported_with_the_environment(tmp_path: Path) -> None:
    code = """
        if __name__ == "__main__":
            work()
            print(os.environ["MASTER_ADDR"])
    """
    assert output(tmp_path, code, MASTER_ADDR="127.0.0.1") == "[0, 2, 4]\n127.0.0.1\n"


def test_a_program_that_starts_workers_outside_the_guard(tmp_path: Path) -> None:
    code = """
        open("begun", "a").write("x")
        work()
        if __name__ == "__main__":
            print("the end")
    """
    first, end = output(tmp_path, code).splitlines()[-2:]
    assert first.startswith("unguarded-main") and "a worker process imports the main program" in first, first
    assert 'Put what the program runs below `if __name__ == "__main__":`' in first and end == "the end"
    assert len((tmp_path / "begun").read_text()) <= 3, "no worker starts workers"


def test_a_rendezvous_outside_the_guard_fails_at_once(tmp_path: Path) -> None:
    code = """
        def meet():
            while "MASTER_ADDR" in os.environ and __name__ != "__main__":
                time.sleep(1)  # for a rank that never comes
            return os.environ["MASTER_ADDR"]
        meet()
        if __name__ == "__main__":
            work()
    """
    said = output(tmp_path, code, MASTER_ADDR="127.0.0.1")
    assert said.startswith("unguarded-main") and "failed in line 18: KeyError: 'MASTER_ADDR'" in said, said


def test_a_program_that_takes_too_long_is_told_with_the_line(tmp_path: Path) -> None:
    code = """
        if __name__ != "__main__":
            time.sleep(600)
        if __name__ == "__main__":
            begun = time.monotonic()
            work(limit=4.0)  # which a busy machine needs to get to that line
            assert time.monotonic() - begun < 200
    """
    said = output(tmp_path, code)
    assert said.startswith("unguarded-main") and "was not finished after 4 s, in line 16" in said, said


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_program_without_a_file_is_told_to_use_threads(how: str) -> None:
    code = HEAD + "work()\n"
    command = [sys.executable, *([how, code] if how == "-c" else [how])]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("not-portable the function is defined in a notebook, at a prompt"), done
    assert done.stdout.endswith("Move the function into a module, or use threads.\n")


@pytest.mark.slow
def test_ranks_of_torchrun_that_meet_outside_the_guard(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
        import torch.distributed
        torch.distributed.init_process_group("gloo")
        if __name__ == "__main__":
            work()
    """
    (tmp_path / "program.py").write_text(HEAD + textwrap.dedent(code))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("unguarded-main") == 2 and "MASTER_ADDR expected, but not set" in done.stdout, done
