"""Groups of processes under torch.distributed that are forked from one: torch is imported once, not by each rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


def run_groups(program: str, groups: list[list[dict[str, Any]]]) -> list[Any]:
    """Run ``helpers/PROGRAM`` for groups, one after another; what the first rank of each has printed, as JSON."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
    command = [sys.executable, str(TESTS / "helpers" / program), json.dumps(groups)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == len(groups), done.stdout
    return found


def fork_groups(main: Callable[[dict[str, Any]], None]) -> None:
    """The side of the program: call `main` with the options of each rank of a group, in a process of its own.

    A rank whose options have ``dies`` has to end by SIGKILL, and every other one by itself.
    """
    for group in json.loads(sys.argv[1]):
        ranks = []
        for options in group:
            ranks.append(os.fork())
            if not ranks[-1]:
                code = 1
                try:
                    main(options)
                    sys.stdout.flush()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                finally:
                    os._exit(code)
        ended = [os.waitpid(rank, 0)[1] for rank in ranks]
        expected = [signal.SIGKILL if options.get("dies") else 0 for options in group]
        if ended != expected:
            sys.exit(f"ranks ended with {ended}: expected {expected}")
