"""Measure loaders of tokens into a torch loop, with loss masks and without, compared with Modalities and datatrove.

Each peer is measured twice: with plain windows, its fastest way, and with the same work as Feedmill as far as it can do
it. Modalities masks the targets that are not between two marker tokens; datatrove returns the positions of the tokens
in their documents.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child

TOKENS, DOCUMENTS, SEQ_LEN = 60_000_000, 100_000, 2048
BEGIN, END = 50_000, 50_001
"""Markers of the tokens that are learnt, in the file that Modalities masks."""
LEAST_OF_UNMASKED, TIMES_PEERS = 0.8, 5
NAMES = {"windows": "windows", "located": "windows that locate documents", "packed": "packed rows"}
"""Kinds of rows. Without a mask, inputs and targets of windows that do not locate documents are views of one batch."""


def tokens() -> Path:
    """Return a folder with the same tokens without a mask (`a.pbin`, `ds/a.ds`) and with one (`m.pbin`); made once.

    `marked.pbin` has markers instead of a mask. As Modalities requires, no window begins between two of them.
    """
    from feedmill.formats.tokens.ds import write_ds
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.storage import LocalStore

    folder = corpus.folder() / f"training_marked_{TOKENS}_{DOCUMENTS}"
    if not (folder / "done").exists():
        rng, store = np.random.default_rng(0), LocalStore(folder)
        cuts = np.sort(rng.choice(np.arange(1, TOKENS), DOCUMENTS - 1, replace=False))
        lengths = np.diff(np.concatenate(([0], cuts, [TOKENS])))
        ids = rng.integers(0, 50_000, TOKENS, dtype=np.uint16)
        turns = np.cumsum(rng.integers(1, 400, TOKENS // 100))  # questions and answers of 200 tokens on average
        mask = np.searchsorted(turns, np.arange(TOKENS), side="right") % 2 == 1
        marked = ids.copy()
        windows = marked[: TOKENS // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)
        for at in range(100, SEQ_LEN - 200, 400):  # questions and answers of 200 tokens
            windows[:, at], windows[:, at + 200] = BEGIN, END
        for name, of, loss in (("a.pbin", ids, None), ("m.pbin", ids, mask), ("marked.pbin", marked, None)):
            with write_pbin(store, name, 2, loss=loss is not None) as writer:
                writer.add(of, lengths, loss)
        with write_ds(store, "ds/a.ds", 2, tokenizer_name="t") as writer:
            writer.add(ids, lengths)
        (folder / "done").touch()
    for path in folder.rglob("*"):
        if path.is_file():
            corpus.warm(path)
    return folder


def training(repeat: int) -> list[Row]:
    """Measure windows and packed rows as inputs and targets, in tensors, in the process of the loop.

    The ratios are of processor time: everything happens in one thread, and other programs disturb wall time more.
    """
    folder = tokens()

    def side(name: str, data: Path, *words: object) -> dict[str, float]:
        python = sys.executable if name == "feedmill" else peers.need(name)
        environment = peers.environment() if name == "modalities" else None
        return child(python, f"tokens.peers.{name}", "train", data, SEQ_LEN, *words, env=environment)

    rows = []
    for kind in ("windows", "located", "packed"):
        masked, plain = alternate(
            repeat,
            lambda kind=kind: side("feedmill", folder / "m.pbin", kind),
            lambda kind=kind: side("feedmill", folder / "a.pbin", kind),
        )
        what = f"{NAMES[kind]} of 2,048 with masks, batches of 64, into a torch loop, M tokens (cpu)"
        note = "beside: without masks"
        rows.append(Row("token-training", what, "/s", masked["cpu"], plain["cpu"], wanted=LEAST_OF_UNMASKED, note=note))
    plain, same = {"modalities": ("a.pbin",), "datatrove": ("ds",)}, "with the same masks"
    masked = {"modalities": ("marked.pbin", BEGIN, END), "datatrove": ("ds", "located")}
    beside = [(name, kind, plain[name], "windows without") for name in plain for kind in ("windows", "packed")]
    beside += [("modalities", "windows", masked["modalities"], f"windows {same}")]
    beside += [("datatrove", kind, masked["datatrove"], "windows with positions") for kind in ("located", "packed")]
    for name, kind, (data, *words), what in beside:
        ours, theirs = alternate(
            repeat,
            lambda kind=kind: side("feedmill", folder / "m.pbin", kind),
            lambda name=name, data=data, words=words: side(name, folder / data, *words),
        )
        said = f"{NAMES[kind]} with masks, M tokens (cpu); beside: {name}'s {what}, in torch's DataLoader"
        rows.append(Row("token-training", said, "/s", ours["cpu"], theirs["cpu"], wanted=TIMES_PEERS))
    return rows


PARTS = {"token-training": training}
