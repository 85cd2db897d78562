"""Compare merging and shuffling token files with Modalities and datatrove. README.md has details."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child, feedmill, run

SMALL, LARGE = 20_000, 400_000
"""Numbers of documents: 27 MB of tokens, which are about 50 MB of text, and 550 MB."""


def side(name: str, what: str, source: Path, runs: int) -> dict[str, float]:
    """Run one measurement of Feedmill or a peer in a fresh process."""
    corpus.warm(source)
    mine = name == "feedmill"
    python, env = (sys.executable, dict(os.environ)) if mine else (peers.need(name), peers.environment())
    target = corpus.folder() / f"verbs_{name}"
    found = child(python, f"tokens.peers.{name}", "rewrite", what, source, target, runs, env=env)
    shutil.rmtree(target)
    return {"first": found["first"], "mb_s": found["mb_s"]}


def command(what: str, source: Path) -> dict[str, float]:
    """Return a command of Feedmill's drop-in command line for Modalities."""
    target = corpus.folder() / "verbs_command.pbin"
    target.unlink(missing_ok=True)
    words = {
        "shuffle": ["shuffle_tokenized_data", "--input_data_path", source, "--output_data_path", target, "--seed", 1],
        "merge": ["merge_packed_data", source, source, target],
    }[what]
    return run(feedmill("compat", "modalities", "data", *words))


def peer_command(what: str, source: Path) -> dict[str, float]:
    """Return the same command of Modalities."""
    target = corpus.folder() / "verbs_peer.pbin"
    target.unlink(missing_ok=True)
    words = {
        "shuffle": ["shuffle_tokenized_data", "--input_data_path", source, "--output_data_path", target, "--seed", 1],
        "merge": ["merge_packed_data", source, source, target],
    }[what]
    return run([peers.program("modalities", "modalities"), "data", *map(str, words)], peers.environment())


def _rows(peer: str, what: str, name: str, source: Path, repeat: int, wanted: float | None = None) -> list[Row]:
    theirs = partial(side, peer, what, source, 2) if peers.python(peer) else None
    ours, other = alternate(repeat, partial(side, "feedmill", what, source, 4), theirs)
    rate = [Row("token-verbs", f"{name}, MB/s", "/s", ours["mb_s"], other.get("mb_s", []), wanted, note=peer)]
    return [*rate, Row("token-verbs", "  the first call", "/s", ours["first"], other.get("first", []), note=peer)]


def verbs(repeat: int) -> list[Row]:
    """Measure rates inside a process, whole commands, and memory on a larger file."""
    small, folder = corpus.packed(SMALL), corpus.tokenized(SMALL)
    rows = _rows("modalities", "shuffle", "shuffle documents", small, repeat)
    rows += _rows("modalities", "chunk", "shuffled chunk", small, repeat, 10)
    rows += _rows("modalities", "merge", "merge", small, repeat)
    rows += _rows("datatrove", "merger", "datatrove's merger", folder, repeat)
    has_peer = peers.python("modalities") is not None
    for what in ("shuffle", "merge"):
        theirs = partial(peer_command, what, small) if has_peer else None
        ours, other = alternate(repeat, partial(command, what, small), theirs)
        rows.append(Row("token-verbs", f"{what}, whole command", "s", ours["s"], other.get("s", []), 3))
    large = corpus.packed(LARGE)
    corpus.warm(large)
    ours, other = alternate(1, partial(command, "shuffle", large), None)
    rows.append(Row("token-verbs", "shuffle of 550 MB, whole command", "s", ours["s"]))
    rows.append(Row("token-verbs", "the same: largest process", "MB", ours["peak_mb"], bound=300))
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"token-verbs": verbs}
