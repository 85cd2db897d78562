"""Run the benchmarks of Feedmill and its peers, and print one table: ``make bench``.

    python benchmarks/run.py [--only prepare,keys] [--repeat 5] [--json FILE]

Every measurement runs in a fresh process. Feedmill and the peer alternate, and numbers are medians of the runs. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, if this file is run as a script

from benchmarks import peers  # noqa: E402
from benchmarks.lib import corpus  # noqa: E402
from benchmarks.lib.measure import Failed, Row  # noqa: E402


def suites() -> list[ModuleType]:
    """Return the modules `suite` of all packages. They have ``PARTS`` and ``PEERS``, and some ``NEEDS`` (variables)."""
    names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/suite.py"))
    return [import_module(f"benchmarks.{name}.suite") for name in names]


def main() -> int:
    """Run the parts, and print the table. Returns 1 if a part failed."""
    found = suites()
    known = [name for suite in found for name in suite.PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"parts to run, separated by commas: {', '.join(known)}")
    parser.add_argument(
        "--repeat", type=int, default=5, help="runs of Feedmill and of each peer; parts that take minutes do fewer"
    )
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)} (there are: {', '.join(known)})")
    say(f"data in {corpus.folder()} (FEEDMILL_BENCH_DIR); creating missing data takes a minute")
    rows: list[Row] = []
    failed = False
    for suite in found:
        chosen = [name for name in suite.PARTS if name in wanted]
        if chosen:
            say_missing(suite)
        for name in chosen:
            say(f"running {name} ...")
            begin = time.perf_counter()
            try:
                rows += suite.PARTS[name](options.repeat)
            except Failed as error:
                failed = True
                say(f"{name}: {error}")
            say(f"    {time.perf_counter() - begin:.0f} s")
    show(rows)
    if options.json:
        facts = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        document = {**facts, "load": os.getloadavg(), "rows": [row.as_dict() for row in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(failed)


def say_missing(suite: ModuleType) -> None:
    """Print what to do so that all parts of a suite are measured."""
    absent = [name for name in suite.PEERS if peers.python(name) is None]
    if absent:
        missing = ", ".join(peers.table()[name]["is"] for name in absent)
        say(f"peers that are not measured: {missing}. {peers.advice(absent)}")
    unset = [name for name in getattr(suite, "NEEDS", ()) if not os.environ.get(name)]
    if unset:
        say(f"some parts are not measured: set {', '.join(unset)} (see benchmarks/README.md)")


def say(text: str) -> None:
    """Print progress to stderr, so that stdout has only the table."""
    print(text, file=sys.stderr, flush=True)


def show(rows: list[Row]) -> None:
    """Print the table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what", "Feedmill", "peer", "ratio", "wanted", "runs", "note"):
        table.add_column(name, justify="left" if name in ("what", "note") else "right")
    part = None
    for row in rows:
        if part is not None and row.part != part:
            table.add_section()
        part = row.part
        ratio = "" if row.ratio is None else f"{row.ratio:.1f}x"
        wanted = f"{row.wanted:g}x" if row.wanted else f"{row.bound:g} {row.unit}" if row.bound else ""
        held = {True: " ok", False: " MISSED", None: ""}[row.held]
        runs = f"{len(row.ours)}" + (f"+{len(row.theirs)}" if row.theirs else "")
        cells = (row.what, number(row.ours, row.unit), number(row.theirs, row.unit), ratio, wanted + held, runs)
        table.add_row(*cells, row.note)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 190
    console.print(table)


def number(runs: list[float], unit: str) -> str:
    """Return the median of the runs with its unit."""
    if not runs:
        return ""
    digits = {"s": 3, "x": 2, "%": 2, "MB": 1}.get(unit, 0)
    return f"{statistics.median(runs):,.{digits}f}{unit if unit == '/s' else ' ' + unit}"


if __name__ == "__main__":
    sys.exit(main())
