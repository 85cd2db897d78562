"""Programs that are killed: before the n-th file that they put in its place, or at random moments.

Those of the first kind start warm (`helpers.warm`), as a test starts many; those of the second start cold, with other
hashes of strings each time.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from helpers import warm

_CHILD = """
import os, signal, sys
left, replace = int(sys.argv[1]), os.replace

def dying(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*arguments, **options)

os.replace = dying
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[2:]]
main()
"""


def command(*words, first=""):
    """The command line of a process that runs ``feedmill`` with these words, and the program `first` before it."""
    return [sys.executable, "-c", f"{first}from feedmill.cli.app import main; main()", *map(str, words)]


def run_until_killed(moment, words, folder, first=""):
    """Whether the command was killed before it put its file number `moment` in place; otherwise it is done."""
    child = warm.run(
        [sys.executable, "-c", first + _CHILD, str(moment), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr
    return child.returncode != 0


def finish(words, folder, first=""):
    """Run the command to its end; what it prints. A job array may have to run again for what is left."""
    done = warm.run(command(*words, first=first), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 or (done.returncode == 3 and "part" in words), done.stderr
    return done.stdout


def contents(folder, *, leave_out=()):
    """What every file below a folder holds but for the records of work (with times), and temporary ones."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        hidden = any(part.startswith((".feedmill", "feedmill.shards")) for part in path.parts) or name.endswith(
            ".feedmill-tmp"
        )
        if path.is_file() and not hidden and not any(name.startswith(part) for part in leave_out):
            found[name] = path.read_bytes()
    return found


def moments(one: int, every: Iterable[int] = range(60), least: int = 1) -> pytest.MarkDecorator:
    """Arguments `moments` and `least` of a test that kills: one moment, and all of them where slow tests run.

    Args:
        least: at how many of all moments something has to be killed.
    """
    all_of_them = pytest.param(tuple(every), least, id="every", marks=pytest.mark.slow)
    return pytest.mark.parametrize(("moments", "least"), [pytest.param((one,), 1, id="one"), all_of_them])


def kill_everywhere(words, make, folder, moments=range(60), first=""):
    """Run a command that is killed before each of its files in turn, then to its end; all results are as undisturbed.

    Args:
        make: makes the data in the folder that it is given.
        first: a program that runs before the command in its process, but not where it is undisturbed.

    Returns:
        At how many of the moments it was killed.
    """
    calm = Path(folder) / "calm"
    make(calm)
    finish(words, calm)
    wanted = contents(calm)
    for done, moment in enumerate(moments):
        place = Path(folder) / f"at{moment}"
        make(place)
        killed = run_until_killed(moment, words, place, first)
        if killed:
            finish(words, place, first)
        assert contents(place) == wanted, f"killed before file {moment}"
        if not killed:
            return done
    return len(moments)


def kill_at_random(words, make, folder, times, read=contents):
    """Kill the command at random moments until that was done `times` times, then let it finish; as undisturbed.

    `read` returns what is compared of a folder. Now and then a run gets to its end before it is killed; then it begins
    again in another folder. Gives how often what was finished was compared.
    """
    for calm in (
        Path(folder) / "warm",
        Path(folder) / "calm",
    ):  # the first run may compile, which takes many times as long
        make(calm)
        begin = time.perf_counter()
        finish(words, calm)
        seconds, wanted = time.perf_counter() - begin, read(calm)
    chance, killed, place, number, compared = random.Random(7), 0, None, 0, 0
    while killed < times:
        if place is None:
            place, number = Path(folder) / f"run{number}", number + 1
            make(place)
        child = subprocess.Popen(
            command(*words), cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        time.sleep(chance.uniform(0, seconds))
        os.killpg(child.pid, signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        if chance.random() < 0.3 or child.returncode == 0:
            finish(words, place)
            assert read(place) == wanted, f"after {killed} kills"
            place, compared = None, compared + 1
    if place is not None:
        finish(words, place)
        assert read(place) == wanted
        compared += 1
    return compared
