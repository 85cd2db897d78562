"""Raw indices, opening and reading of token files, beside Modalities and datatrove."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import corpus
import numpy as np
from measure import Failed, Row, alternate, child, feedmill, run

import tokenizing

TOKENS, DOCUMENTS, SEQ_LEN = 200_000_000, 5_000_000, 2048
PEERS = tokenizing.PEERS


def missing() -> str | None:
    """What to do to have everything measured, or None where it is."""
    names = [name for name in PEERS.values() if not os.environ.get(name)]
    return f"reading is not measured beside its peers: set {', '.join(names)}." if names else None


def tokens(documents: int) -> Path:
    """A folder with the same tokens as `.pbin` and `.ds`, and a small `.pbin` beside them; made once."""
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


def _peer(name: str) -> str:
    found = os.environ.get(PEERS[name])
    if not found:
        raise Failed(f"set {PEERS[name]}")
    return found


def raw_index(repeat: int) -> list[Row]:
    """The raw index of 500 MB: whole commands, and the functions in them."""
    source = tokenizing.text(tokenizing.LARGE)
    ours_at, theirs_at = corpus.folder() / "raw.idx", corpus.folder() / "raw_theirs.idx"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def ours() -> dict[str, float]:
        ours_at.unlink(missing_ok=True)
        return run(feedmill("index", source, "--output", ours_at))

    def theirs() -> dict[str, float]:
        theirs_at.unlink(missing_ok=True)
        words = ["-m", "modalities", "data", "create_raw_index", str(source), "--index_path", str(theirs_at)]
        return run([_peer("Modalities"), *words], environment)

    found, peer = alternate(repeat, ours, theirs)
    rows = [Row("raw-index", "raw index of 500 MB, whole command", "s", found["s"], peer["s"], wanted=6)]
    found, peer = alternate(
        repeat,
        lambda: child(sys.executable, "reading_side.py", "feedmill-index", source, ours_at),
        lambda: child(_peer("Modalities"), "reading_side.py", "modalities-index", source, theirs_at, env=environment),
    )
    note = "one thread; without imports and the loading of compiled code"
    return [*rows, Row("raw-index", "raw index of 500 MB, in process", "s", found["s"], peer["s"], note=note)]


def reading(repeat: int) -> list[Row]:
    """Opening 5 million documents; random windows; windows with positions."""
    many, few = tokens(DOCUMENTS), tokens(TOKENS // 650)

    def side(name: str, *words: object, python: str = sys.executable) -> dict[str, float]:
        return child(python, "reading_side.py", name, *words)

    opened, _ = alternate(repeat, lambda: side("feedmill-open", many / "a.pbin"), None)
    rows = [
        Row("token-reading", f"open {DOCUMENTS:,} documents", "ms", opened["ms"], bound=10),
        Row("token-reading", "open: memory", "MB", opened["mb"], bound=30),
    ]
    ours, theirs = alternate(
        repeat,
        lambda: side("feedmill-windows", few / "a.pbin", SEQ_LEN),
        lambda: side("modalities-windows", few / "a.pbin", SEQ_LEN, python=_peer("Modalities")),
    )
    what = "random windows of 2,049, batches of 64, M tokens"
    note = "beside: Modalities, window by window; wanted are 400"
    rows.append(Row("token-reading", what, "/s", ours["rate"], theirs["rate"], note=note))
    ours, theirs = alternate(
        repeat,
        lambda: side("feedmill-positions", few / "ds", SEQ_LEN),
        lambda: side("datatrove-positions", few / "ds", SEQ_LEN, python=_peer("datatrove")),
    )
    what = ".ds windows with positions, M tokens"
    note = "307,692 documents; beside: datatrove, from its index"
    return [*rows, Row("token-reading", what, "/s", ours["rate"], theirs["rate"], wanted=200, note=note)]


PARTS = {"raw-index": raw_index, "token-reading": reading}
