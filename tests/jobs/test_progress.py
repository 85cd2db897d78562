from __future__ import annotations

import os
import pty
import subprocess
import sys
from types import SimpleNamespace

from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run_largest_first

CODE = """
import sys, time
from feedmill.jobs.progress import Progress
with Progress("scanning shards", 4, "shards", enabled={enabled}) as progress:
    for _ in range(4):
        progress.advance()
        time.sleep(0.01)
print("rich" in sys.modules, progress.done)
"""


def on_terminal(enabled: str, **variables: str) -> tuple[str, str]:
    """What goes to stdout, and to a terminal as stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **variables}
    child = subprocess.Popen(
        [sys.executable, "-c", CODE.format(enabled=enabled)], stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    drawn = b""
    try:
        while data := os.read(ours, 4096):
            drawn += data
    except OSError:  # how a terminal says that its last writer has gone
        pass
    os.close(ours)
    return child.communicate()[0].decode(), drawn.decode()


def test_a_terminal_shows_label_count_and_unit():
    for enabled in ["None", "True"]:
        out, drawn = on_terminal(enabled)
        assert out == "True 4\n"
        assert "scanning shards" in drawn and "4 of 4 shards" in drawn


def test_a_terminal_stays_clean_when_not_wanted():
    assert on_terminal("False") == ("False 4\n", "")


def test_a_cell_of_a_notebook_gets_no_bar():
    """Its commands have a terminal, which shows every redrawn bar as a further line."""
    assert on_terminal("None", JPY_PARENT_PID="1") == ("False 4\n", "")


def test_a_pipe_gets_nothing_and_rich_is_not_loaded():
    for enabled in ["None", "True"]:
        done = subprocess.run([sys.executable, "-c", CODE.format(enabled=enabled)], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("False 4\n", "")


def test_lines_are_printed_where_there_is_no_terminal():
    code = """
import time
from feedmill.jobs import progress
progress._LINE_INTERVAL, progress._FIRST_RATE = 0.2, 0.1
progress.choose("plain")
with progress.Progress("indexing", 4_000_000, "B") as bar:
    for number in range(1, 5):
        while bar._lines < number:  # a line comes each 0.2 seconds, or later on a busy machine
            time.sleep(0.02)
        bar.advance(1_000_000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    first, *_, last = done.stderr.splitlines()
    assert done.stdout == "" and "rich" not in done.stderr
    assert first.startswith("indexing: ") and " of 4 MB (" in first
    assert "MB/s" in done.stderr and " left" in done.stderr and last.startswith("indexing: 4 MB of 4 MB in ")


def test_nothing_is_printed_if_that_was_chosen():
    code = "from feedmill.jobs import progress; progress._LINE_INTERVAL = 0.05; progress.choose('none')\n"
    code += "import time\nwith progress.Progress('x', 2) as bar:\n    bar.advance(); time.sleep(0.3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_files_advance_by_their_sizes():
    with Progress.of_files("tagging", [5, 7, 9], enabled=False) as bar:
        assert (bar.total, bar.unit) == (21, "B")
        bar.advance()
        bar.advance()
        assert bar.done == 12
    with Progress("reading", 30, "B", enabled=False) as bar:
        assert run_largest_first(str, [1, 2, 3], [5, 15, 10], workers=1, progress=bar) == ["1", "2", "3"]
        assert bar.done == 30


def test_a_rate_is_that_of_the_last_half_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("feedmill.jobs.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    bar = Progress("reading", 1000, "files", enabled=False)
    assert bar.speed() == bar.left() == ""
    for second in range(60):
        now[0] += 1
        bar.advance(2 if second < 30 else 10)
        bar._look()
    assert (
        9 <= bar.rate <= 10
        and bar.left()
        == f"{round((1000 - 360) / bar.rate) // 60} min " * ((1000 - 360) / bar.rate >= 60)
        + f"{round((1000 - 360) / bar.rate) % 60} s left"
    )
