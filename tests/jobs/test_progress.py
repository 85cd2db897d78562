from __future__ import annotations

import os
import pty
import subprocess
import sys

CODE = """
import sys, time
from feedmill.jobs.progress import Progress
with Progress("scanning shards", 4, "shards", enabled={enabled}) as progress:
    for _ in range(4):
        progress.advance()
        time.sleep(0.01)
print("rich" in sys.modules, progress.done)
"""


def on_terminal(enabled: str) -> tuple[str, str]:
    """What goes to stdout, and to a terminal as stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
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


def test_a_pipe_gets_nothing_and_rich_is_not_loaded():
    for enabled in ["None", "True"]:
        done = subprocess.run([sys.executable, "-c", CODE.format(enabled=enabled)], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("False 4\n", "")
