"""The peers of `peers.toml`: which Python has each, and environments for them.

python -m benchmarks.peers                 # which are here, which are not
python -m benchmarks.peers make energon    # an environment for one, or for several; without a name for all
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed


@cache
def table() -> dict[str, dict[str, Any]]:
    """The peers by name."""
    return tomllib.loads((Path(__file__).parent / "peers.toml").read_text())


def made(name: str) -> Path:
    """The Python of the environment that `make` makes."""
    return corpus.folder() / "peers" / name / "bin" / "python"


def python(name: str) -> str | None:
    """A Python that has the peer: the one that its variable names, else that of its environment, else None."""
    named = os.environ.get(table()[name]["variable"])
    return named or (str(made(name)) if made(name).exists() else None)


def need(name: str) -> str:
    """The same. Raises `Failed` where there is none."""
    found = python(name)
    if found is None:
        raise Failed(f"{table()[name]['is']} is missing. {advice([name])}")
    return found


def program(name: str, command: str) -> str:
    """A command that the peer has installed beside its Python."""
    return str(Path(need(name)).with_name(command))


def advice(names: Iterable[str]) -> str:
    """What to do to have peers measured."""
    variables = ", ".join(table()[name]["variable"] for name in names)
    return f"Run `python -m benchmarks.peers make {' '.join(names)}`, or set {variables}."


def environment() -> dict[str, str]:
    """The variables of a peer's process: ours, but that Feedmill is not put on its path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def make(name: str) -> None:
    """Make the environment of a peer."""
    folder = made(name).parent.parent
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    done = subprocess.run(
        [str(made(name)), "-m", "pip", "install", "--quiet", *table()[name]["requirements"]], check=False
    )
    if done.returncode:
        made(name).unlink()  # an environment that is not whole is not used
        raise Failed(f"{table()[name]['is']} could not be installed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("make", nargs="?", choices=["make"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(table()))
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in table()]:
        parser.error(f"unknown peers: {', '.join(unknown)} (there are: {', '.join(table())})")
    failed = False
    for name in options.names or table():
        if options.make:
            print(f"making {made(name).parent.parent} ...", file=sys.stderr, flush=True)
            try:
                make(name)
            except Failed as error:
                failed = True
                print(error, file=sys.stderr)
        else:
            print(f"{name:12} {python(name) or '-':60} {table()[name]['is']}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
