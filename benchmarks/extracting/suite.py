"""Compare extracting documents from web archives with Dolma and with datatrove: whole commands, the same archives.

A run fails if the texts of a page differ between the sides. datatrove decodes pages that are not UTF-8 by a detection
that errs now and then, so only pages in UTF-8 are compared with it.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.extracting.archives import archives, read_pages
from benchmarks.lib import corpus
from benchmarks.lib.measure import ROOT, Failed, Row, alternate, feedmill, run

PEERS = ("dolma", "datatrove")
NEEDS = ()
PAGES = 2_000
SLOW = 600
"""Pages for Trafilatura, which takes ten times as long."""
TARGET, SLOW_TARGET = 2, 1


def dolma_warc(repeat: int) -> list[Row]:
    """Measure ``feedmill compat dolma warc`` and ``feedmill documents extract`` beside ``dolma warc``."""
    rows = []
    for files, processes in ((2, 1), (2, 2), (1, 2)):
        data = archives(files, PAGES // files)
        what = f"resiliparse, {files} archive{'s' * (files > 1)}, {processes} process{'es' * (processes > 1)}"
        words = ["warc", "--documents", f"{data}/*.warc.gz", "--source_name", "bench", "--processes", str(processes)]
        theirs = partial(_run, data, _dolma(words), "dolma") if peers.python("dolma") else None
        ours = partial(_run, data, [*feedmill("compat", "dolma"), *words], "ours")
        rows += _rows("extract-dolma", f"dolma warc, {what}", repeat, ours, theirs, files)
        if processes == 1:
            own = partial(_run, data, feedmill("documents", "extract", data, "--workers", processes), "own")
            rows += _rows("extract-dolma", f"extract, {what}", repeat, own, theirs, files)
    return rows


def trafilatura(repeat: int) -> list[Row]:
    """Measure ``feedmill documents extract --linearizer trafilatura`` beside datatrove."""
    rows = []
    for files, processes in ((2, 1), (2, 2), (1, 2)):
        data = archives(files, SLOW // files)
        what = f"Trafilatura, {files} archive{'s' * (files > 1)}, {processes} process{'es' * (processes > 1)}"
        command = feedmill("documents", "extract", data, "--workers", processes, "--linearizer", "trafilatura")
        script = [Path(__file__).parent / "peers/datatrove_pages.py", data]
        peer = peers.python("datatrove")
        theirs = partial(_run, data, [peer, *script, "{out}", processes], "trove") if peer else None
        rows += _rows("extract-datatrove", what, repeat, partial(_run, data, command, "own"), theirs, files)
    return rows


PARTS = {"extract-dolma": dolma_warc, "extract-datatrove": trafilatura}


def _dolma(words: Sequence[str]) -> list[str]:
    return [peers.program("dolma", "dolma"), *words] if peers.python("dolma") else []


def _run(data: Path, command: Sequence[object], side: str) -> dict[str, float]:
    """Run a whole command that writes to a new folder, which stays for the comparison of the texts."""
    out = corpus.folder() / f"extracted-{side}"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(corpus.folder() / ".feedmill", ignore_errors=True)
    corpus.warm(data)
    option = {"dolma": ["--destination"], "ours": ["--destination"], "own": ["--output"], "trove": []}[side]
    words = [str(out) if word == "{out}" else str(word) for word in command]
    words += [*option, str(out)] if option else []
    environment = {**peers.environment(), "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    return run(words, environment if side in ("dolma", "trove") else None, ROOT)


def _rows(part: str, what: str, repeat: int, ours: partial, theirs: partial | None, files: int) -> list[Row]:
    data: Path = ours.args[0]
    count = json.loads((data / "corpus.json").read_text())["pages"]
    found = alternate(repeat, ours, theirs)
    note = _compare(data, ours.args[2], theirs.args[2], files) if theirs is not None else ""
    rates = ([count / seconds for seconds in numbers.get("s", [])] for numbers in found)
    cpu = ([count / seconds for seconds in numbers.get("cpu_s", [])] for numbers in found)
    one_process = what.endswith("1 process")
    target = (
        SLOW_TARGET if what.startswith("Trafilatura") else TARGET
    )  # both sides spend their time in the same package
    rows = [Row(part, f"{what}, pages/s", "/s", *rates, target, note=note)]
    return [*rows, Row(part, f"{what} (cpu), pages/s", "/s", *cpu)] if one_process else rows


def _compare(data: Path, ours: str, theirs: str, files: int) -> str:
    """Return how many texts were compared. Raises `Failed` if one differs."""
    mine, other = _texts(corpus.folder() / f"extracted-{ours}"), _texts(corpus.folder() / f"extracted-{theirs}")
    if theirs == "dolma":
        if mine != other:
            raise Failed(f"the texts of {sum(mine[url] != other.get(url) for url in mine)} pages differ from Dolma's")
        return f"{len(mine):,} texts are equal"
    utf8 = set()
    for number in range(files):
        for url, html in read_pages(data / f"web-{number:03d}.warc.gz"):
            if b'charset="utf-8"' in html[:200]:
                utf8.add(url)
    differ = [url for url in utf8 & other.keys() if mine[url].strip() != other[url].strip()]
    if differ or not utf8 & other.keys():
        raise Failed(f"the texts of {len(differ)} of {len(utf8)} pages differ from datatrove's: {differ[:3]}")
    return f"{len(utf8 & other.keys()):,} texts are equal"


def _texts(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*.jsonl.gz"):
        with gzip.open(path) as lines:
            rows = [json.loads(line) for line in lines]
        for row in rows:
            if "text" in row:
                metadata = row["metadata"]
                found[metadata.get("warc_url") or metadata["url"]] = row["text"]
    return found
