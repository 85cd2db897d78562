"""A process that has mapped a thousand files: `select` refuses their descriptors, and nothing of ours may use it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.jobs import pool, ray_engine
from pipelines.test_ahead import make


@pytest.fixture
def above_a_thousand() -> Iterator[None]:
    """Every further descriptor of this process is above 1,023, the last that `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system allows a process too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as opened:
        while (number := os.open(os.devnull, os.O_RDONLY)) < 1024:
            opened.callback(os.close, number)
        os.close(number)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("above_a_thousand")
def test_steps_run_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, overlap=True)
    monkeypatch.chdir(tmp_path)
    assert all(step.ran for step in fm.run("p.json", progress=False).steps)


@pytest.mark.usefixtures("above_a_thousand")
def test_a_pool_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before Python 3.11.5 at the end of each pool whose workers died."""
    failed: list[object] = []
    monkeypatch.setattr("threading.excepthook", failed.append)
    with ProcessPoolExecutor(1) as workers:
        workers.submit(os.getpid).result()
        with pool._drained(workers):
            pass
    assert failed == []


@pytest.mark.usefixtures("above_a_thousand")
def test_a_line_of_another_process_is_read() -> None:
    with subprocess.Popen([sys.executable, "-c", "print('found')"], bufsize=0, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.fileno() > 1023
        assert ray_engine._line(child.stdout, 60) == "found\n"
