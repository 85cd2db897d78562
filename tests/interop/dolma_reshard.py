"""Run Dolma's resharding configurations on local token files, with Dolma itself and with Feedmill, and compare.

    FEEDMILL_DOLMA_PYTHON=dolma-venv/bin/python python tests/interop/dolma_reshard.py DOLMA/configs/dolma2-resharding

Each prefix of a configuration becomes a local folder with a few files of random documents; rates above the number of
output files stay an error of both. Both programs get the same seed, and Dolma lists folders in the order of paths:
then all tokens and all rows must be equal. Prints one line per configuration that differs, and the counts.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

DOLMA = """
import json, os, sys
import dolma.tokenizer.reshard as r
walk = os.walk
def ordered(top, *rest, **more):
    # the order of a recursive listing sorted by path
    paths = sorted(os.path.relpath(os.path.join(root, f), top) for root, _, files in walk(top) for f in files)
    for path in paths:
        folder, name = os.path.split(path)
        yield os.path.join(top, folder) if folder else str(top), [], [name]
r.os.walk = ordered
class Tok:
    dtype = __import__("numpy").dtype("uint32")
    from_file = from_pretrained = classmethod(lambda cls, *_: cls())
r.Tokenizer = Tok
r.tqdm = lambda x, **_: x
for line in sys.stdin:
    try:
        r.reshard(r.ReshardingConfig.from_dict(json.loads(line)))
        print("ok", flush=True)
    except Exception as error:
        print("error", type(error).__name__, error, flush=True)
"""


def tokens(folder: Path, files: int, name: str) -> None:
    """Write `files` pairs of Dolma's files with random documents, unless the folder exists."""
    if folder.exists():
        return
    chance = np.random.default_rng([len(name), *name.encode()])
    for number in range(files):
        path = folder / f"{'ab'[number % 2]}" / f"part-{number:02d}-00000.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        lengths = chance.integers(1, 20, chance.integers(1, 8))
        chance.integers(0, 100_000, lengths.sum()).astype("<u4").tofile(path)
        ends = np.cumsum(lengths)
        with gzip.open(path.with_suffix(".csv.gz"), "wt", newline="") as out:
            rows = zip(ends - lengths, ends, strict=True)
            csv.writer(out).writerows(
                [low, high, f'{name}, "{number}"-{k}', f"{name}.gz", k + 1] for k, (low, high) in enumerate(rows)
            )


def localized(config: dict[str, Any], work: Path) -> dict[str, Any]:
    """Return the configuration with local folders, which are filled."""
    sources = []
    for source in config["source_prefixes"]:
        name = source["prefix"].removeprefix("s3://").strip("/*").replace("*", "_")
        files = 3 + sum(name.encode()) % 5
        tokens(work / "tokens" / name, files, name)
        sources.append({**source, "prefix": str(work / "tokens" / name)})
    return {**config, "source_prefixes": sources}


def contents(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the tokens and rows of each file of a folder."""
    return {
        path.name: (path.read_bytes(), gzip.decompress(path.with_suffix(".csv.gz").read_bytes()))
        for path in sorted(folder.glob("*.npy"))
    }


@contextlib.contextmanager
def dolma(python: str) -> Iterator[Any]:
    """Start Dolma; yield a function that runs a configuration and returns the first word, and what failed."""
    with subprocess.Popen([python, "-c", DOLMA], stdin=-1, stdout=-1, stderr=-3, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def run(config: dict[str, Any]) -> tuple[str, str]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(config) + "\n")
            process.stdin.flush()
            word, _, rest = process.stdout.readline().strip().partition(" ")
            return word, rest

        yield run
        process.stdin.close()


def main(folder: str) -> int:
    """Compare all configurations below a folder, and return the number of differences."""
    from feedmill.compat.dolma.tokenizer.reshard import ReshardingConfig, reshard
    from feedmill.errors import FeedmillError

    counts = {"equal": 0, "refused by both": 0, "differ": 0}
    paths = sorted(Path(folder).rglob("*.yaml"))
    with tempfile.TemporaryDirectory() as temporary, dolma(os.environ["FEEDMILL_DOLMA_PYTHON"]) as peer:
        work = Path(temporary)
        for number, path in enumerate(paths):
            config = localized(yaml.safe_load(path.read_text()), work)
            theirs, ours = work / f"theirs{number}", work / f"ours{number}"
            (work / f"scratch{number}").mkdir()
            word, why = peer(
                {**config, "destination_prefix": str(theirs), "local_tempdir": str(work / f"scratch{number}")}
            )
            try:
                reshard(ReshardingConfig.from_dict({**config, "destination_prefix": str(ours)}))
                mine = "ok"
            except FeedmillError as error:
                mine, why = "error", f"{why} | {error}"
            if word == mine == "ok" and contents(theirs) == contents(ours):
                counts["equal"] += 1
            elif word == mine == "error":
                counts["refused by both"] += 1
            else:
                counts["differ"] += 1
                print(f"differs: {path}: {word} {mine} {why}")
    print(f"{len(paths)} configurations: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return counts["differ"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) > 0)
