"""Measure raw indices, opening and reading of token files, compared with Modalities and datatrove."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child, feedmill, run
from benchmarks.tokens import tokenizing

TOKENS, DOCUMENTS, SEQ_LEN = 200_000_000, 5_000_000, 2048


def tokens(documents: int) -> Path:
    """Return a folder with the same tokens as `.pbin` and `.ds`, and a small `.pbin`; created once."""
    from feedmill.formats.tokens.ds import write_ds
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.storage import LocalStore

    folder = corpus.folder() / f"reading_{TOKENS}_{documents}"
    if not (folder / "done").exists():
        rng, store = np.random.default_rng(0), LocalStore(folder)
        cuts = np.sort(rng.choice(np.arange(1, TOKENS), documents - 1, replace=False))
        lengths = np.diff(np.concatenate(([0], cuts, [TOKENS])))
        ids = rng.integers(0, 50_000, TOKENS, dtype=np.uint16)
        with write_pbin(store, "a.pbin", 2) as writer:
            writer.add(ids, lengths)
        with write_pbin(store, "a_small.pbin", 2) as writer:
            writer.add(ids[:100], np.array([100]))
        with write_ds(store, "ds/a.ds", 2, tokenizer_name="t") as writer:
            writer.add(ids, lengths)
        (folder / "done").touch()
    for path in folder.rglob("*"):
        if path.is_file():
            corpus.warm(path)
    return folder


def raw_index(repeat: int) -> list[Row]:
    """Measure the raw index of 500 MB: whole commands, and their functions."""
    source = tokenizing.text(tokenizing.LARGE)
    ours_at, theirs_at = corpus.folder() / "raw.idx", corpus.folder() / "raw_theirs.idx"
    environment = peers.environment()

    def ours() -> dict[str, float]:
        ours_at.unlink(missing_ok=True)
        return run(feedmill("tokens", "index", source, "--output", ours_at))

    def theirs() -> dict[str, float]:
        theirs_at.unlink(missing_ok=True)
        words = ["-m", "modalities", "data", "create_raw_index", str(source), "--index_path", str(theirs_at)]
        return run([peers.need("modalities"), *words], environment)

    found, peer = alternate(repeat, ours, theirs)
    rows = [Row("raw-index", "raw index of 500 MB, whole command", "s", found["s"], peer["s"], wanted=6)]
    found, peer = alternate(
        repeat,
        lambda: child(sys.executable, "tokens.peers.feedmill", "index", source, ours_at),
        lambda: child(peers.need("modalities"), "tokens.peers.modalities", "index", source, theirs_at, env=environment),
    )
    note = "one thread; without imports and the loading of compiled code"
    return [*rows, Row("raw-index", "raw index of 500 MB, in process", "s", found["s"], peer["s"], note=note)]


def reading(repeat: int) -> list[Row]:
    """Measure opening 5 million documents, random windows, and windows with positions."""
    many, few = tokens(DOCUMENTS), tokens(TOKENS // 650)

    def side(name: str, *words: object) -> dict[str, float]:
        python = sys.executable if name == "feedmill" else peers.need(name)
        return child(python, f"tokens.peers.{name}", *words)

    opened, _ = alternate(repeat, lambda: side("feedmill", "open", many / "a.pbin"), None)
    rows = [
        Row("token-reading", f"open {DOCUMENTS:,} documents", "ms", opened["ms"], bound=10),
        Row("token-reading", "open: memory", "MB", opened["mb"], bound=30),
    ]
    ours, theirs = alternate(
        repeat,
        lambda: side("feedmill", "windows", few / "a.pbin", SEQ_LEN),
        lambda: side("modalities", "windows", few / "a.pbin", SEQ_LEN),
    )
    what = "random windows of 2,049, batches of 64, M tokens"
    note = "beside: Modalities, window by window; wanted are 400"
    rows.append(Row("token-reading", what, "/s", ours["rate"], theirs["rate"], note=note))
    ours, theirs = alternate(
        repeat,
        lambda: side("feedmill", "positions", few / "ds", SEQ_LEN),
        lambda: side("datatrove", "positions", few / "ds", SEQ_LEN),
    )
    what = ".ds windows with positions, M tokens"
    note = "307,692 documents; beside: datatrove, from its index"
    return [*rows, Row("token-reading", what, "/s", ours["rate"], theirs["rate"], wanted=200, note=note)]


PARTS = {"raw-index": raw_index, "token-reading": reading}
