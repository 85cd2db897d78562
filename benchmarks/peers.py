"""Find the Python environments of the peers in `peers.toml`, and create missing ones.

python -m benchmarks.peers                 # list which peers are installed
python -m benchmarks.peers make energon    # create the environment of one or several peers; of all without a name
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
    """Return the entries of `peers.toml` by name."""
    return tomllib.loads((Path(__file__).parent / "peers.toml").read_text())


def made(name: str) -> Path:
    """Return the path of the Python in the environment that `make` creates."""
    return corpus.folder() / "peers" / name / "bin" / "python"


def python(name: str) -> str | None:
    """Return a Python with the peer: that of its environment variable or of its environment; None if there is none."""
    named = os.environ.get(table()[name]["variable"])
    return named or (str(made(name)) if made(name).exists() else None)


def need(name: str) -> str:
    """Return a Python with the peer. Raises `Failed` if there is none."""
    found = python(name)
    if found is None:
        raise Failed(f"{table()[name]['is']} is missing. {advice([name])}")
    return found


def program(name: str, command: str) -> str:
    """Return the path of a command that the peer installs beside its Python."""
    return str(Path(need(name)).with_name(command))


def advice(names: Iterable[str]) -> str:
    """Return what to do so that these peers are measured."""
    variables = ", ".join(table()[name]["variable"] for name in names)
    return f"Run `python -m benchmarks.peers make {' '.join(names)}`, or set {variables}."


def environment() -> dict[str, str]:
    """Return the environment variables for a peer's process: those of this one without PYTHONPATH."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def make(name: str) -> None:
    """Create the environment of a peer. Raises `Failed` if it cannot be installed."""
    folder = made(name).parent.parent
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    done = subprocess.run(
        [str(made(name)), "-m", "pip", "install", "--quiet", *table()[name]["requirements"]], check=False
    )
    if done.returncode:
        made(name).unlink()  # or an incomplete environment would be used
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
