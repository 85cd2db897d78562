"""Processes of `helpers.warm` behave as those of `subprocess`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import warm

ASKS = "import os, sys; print(sys.argv[1:], sys.path[:2], os.getcwd(), os.environ['A'], sys.stdin.read(), __name__)"


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def test_it_has_its_own_words_files_folder_and_variables(tmp_path: Path) -> None:
    env = {**os.environ, "A": "1", "PYTHONPATH": str(tmp_path)}
    results = [
        run(python(ASKS, "x", "é"), cwd=tmp_path, env=env, input="text", capture_output=True, text=True)
        for run in (warm.run, subprocess.run)
    ]
    assert results[0].stdout == results[1].stdout == f"['x', 'é'] {['', str(tmp_path)]} {tmp_path} 1 text __main__\n"


def test_a_file_is_a_main_program(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.py").write_text("import sys; print(sys.argv, sys.path[0], __name__, __file__)")
    command = [sys.executable, Path("a/b.py"), "x"]
    seen = [run(command, cwd=tmp_path, capture_output=True).stdout for run in (warm.run, subprocess.run)]
    assert seen[0] == seen[1] and b"['a/b.py', 'x']" in seen[0]


@pytest.mark.parametrize(
    ("program", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_its_status_is_known(program: str, status: int) -> None:
    assert warm.run(python(program)).returncode == status
    if status > 0:
        with pytest.raises(subprocess.CalledProcessError):
            warm.run(python(program), check=True)


def test_its_error_is_a_traceback() -> None:
    done = warm.run(python("1 / 0"), capture_output=True, text=True)
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n") and "zygote" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_dies_by_a_signal(number: signal.Signals) -> None:
    with warm.Popen(python("print(1, flush=True); import time; time.sleep(600)"), stdout=-1, stderr=-1) as child:
        assert child.stdout.readline() == b"1\n" and child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.send_signal(number)
        assert child.wait() == -number


def test_a_failure_of_the_test_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), warm.Popen(python("import time; time.sleep(600)")) as child:
        1 / 0  # noqa: B018
    assert child.returncode == -signal.SIGKILL


def test_its_number_is_its_own_until_its_end_is_noticed() -> None:
    with warm.Popen(python("pass"), stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout.read() == b""
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() in (0, -signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        for _ in range(6000):
            os.kill(child.pid, 0)
            time.sleep(0.01)


def test_a_session_is_killed_whole() -> None:
    program = "import os; os.fork(); os.write(1, b'%d\\n' % os.getpid()); import time; time.sleep(600)"
    with warm.Popen(python(program), stdout=subprocess.PIPE, start_new_session=True) as child:
        numbers = [int(child.stdout.readline()) for _ in range(2)]
        assert child.pid in numbers
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL and child.stdout.read() == b""


def test_what_one_imports_is_there_for_the_next_and_no_thread_is() -> None:
    program = "import sys, threading; print('feedmill.storage.hashed' in sys.modules, threading.active_count())"
    warm.run(python("import feedmill.storage.hashed"), check=True)
    assert warm.run(python(program), capture_output=True, text=True).stdout == "True 1\n"


def test_a_module_that_starts_a_thread_is_not_there_for_the_next() -> None:
    pytest.importorskip("pyarrow")
    asks = "import sys, threading, os; print('pyarrow' in sys.modules, len(os.listdir('/proc/self/task')))"
    for module in ("feedmill.formats.tables.schemas", "feedmill.storage.hashed"):  # the first imports pyarrow
        warm.run(python(f"import {module}"), check=True)
        assert warm.run(python(asks), capture_output=True, text=True).stdout == "False 1\n"


def test_what_has_to_act_at_the_start_starts_cold() -> None:
    env = {**os.environ, "PYTHONHASHSEED": "5"}
    seen = {run(python("print(hash('a'))"), env=env, capture_output=True).stdout for run in (warm.run, subprocess.run)}
    assert len(seen) == 1
    done = warm.run([sys.executable, "-O", "-c", "assert False, 'no'"])
    assert done.returncode == 0


def test_variables_of_the_test_that_asks_first_are_not_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_server", None)  # a second one: `_close` ends both
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    assert warm.run(python("import orjson")).returncode == 0
    monkeypatch.delenv("PYTHONPATH")
    seen = [
        run(python("import cmath, sys; print(sys.path)"), capture_output=True).stdout
        for run in (warm.run, subprocess.run)
    ]
    assert seen[0] == seen[1]


def test_the_end_does_not_wait_for_what_was_forked_meanwhile() -> None:
    """A process that this one has forked has its end of the socket too, and may live longer."""
    program = (
        "import os, sys; from helpers import warm; warm.run([sys.executable, '-c', 'pass'])\n"
        "end, _ = os.pipe(); child = os.fork(); child or (os.close(1), os.read(end, 1)); print(child)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, timeout=300
    )
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0
