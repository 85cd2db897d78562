"""Feedmill beside its peers, as one table: ``make bench``.

    python benchmarks/run.py [--only prepare,keys] [--repeat 5] [--json FILE]

Everything runs in fresh processes, the peer and Feedmill taking turns; numbers are medians. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import corpus
import dolma_stat
import energon
import media
import near
import plain
import reading
import tagging
import verbs
import vla
from measure import Failed, Row

import loading
import tokenizing
import writing

SUITES = (energon, writing, tokenizing, reading, verbs, tagging, dolma_stat, near, plain, media, vla, loading)


def main() -> int:
    known = [name for suite in SUITES for name in suite.PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"parts to run, by comma: {', '.join(known)}")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each side; parts that take minutes do fewer")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)} (there are: {', '.join(known)})")
    say(f"data in {corpus.folder()} (FEEDMILL_BENCH_DIR); making what is not there takes a minute")
    rows: list[Row] = []
    failed = False
    for suite in SUITES:
        if suite.missing():
            say(suite.missing() or "")
        for name in (name for name in suite.PARTS if name in wanted):
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


def say(text: str) -> None:
    """Progress, beside the table."""
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
    """The median with its unit."""
    if not runs:
        return ""
    digits = 3 if unit == "s" else 0
    return f"{statistics.median(runs):,.{digits}f}{unit if unit == '/s' else ' ' + unit}"


if __name__ == "__main__":
    sys.exit(main())
