"""The demo's chapters about text: documents become tokens, tokens of two formats become one stream of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.cli.story import Story, folder_size, timed

if TYPE_CHECKING:
    from feedmill.demo.corpus import Document

SEQ_LEN, ROWS = 256, 2000
RECIPE = f"""\
# A third of the tokens is prose, the rest is source code.
seed: 7
unit: tokens
blend:
  - {{path: prose.pbin, windows: {SEQ_LEN}, weight: 1/3, shuffle: global}}
  - {{path: source.ds, windows: {SEQ_LEN}, weight: 2/3, shuffle: global}}
"""


def tokenize_texts(story: Story, documents: Sequence[Document]) -> None:
    """Documents and sources into JSONL, a tokenizer trained on them, and tokens: one as `.pbin`, the other as `.ds`."""
    from feedmill.demo.corpus import write_docs
    from feedmill.demo.vocabulary import train_tokenizer
    from feedmill.storage import LocalStore
    from feedmill.tokens.tokenize import tokenize

    story.chapter("Tokenize: prose to Modalities' .pbin, source code to datatrove's .ds")
    folder = story.out / "text"
    store = LocalStore(folder)
    parts = {
        "prose": [document for document in documents if "@" not in document.id],
        "source": [document for document in documents if "@" in document.id],
    }
    for name, found in parts.items():
        write_docs(store, f"{name}.jsonl", found)
    size, seconds = timed(
        lambda: train_tokenizer(LocalStore(folder / "tokenizer"), (document.text for document in documents))
    )
    story.row("tokenizer/", f"byte-level BPE of {size:,} tokens, trained on {folder_size(folder)} of text", seconds)
    tokens = 0
    for name, kind in (("prose", "pbin"), ("source", "ds")):
        report = tokenize(
            [folder / f"{name}.jsonl"],
            folder / name,
            tokenizer=folder / "tokenizer",
            formats=[kind],
            overwrite=True,
            progress=False,
        )
        text = f"{report.documents:,} documents, {report.tokens:,} tokens ({report.backend})"
        story.row(f"{name}.{kind}", text, report.seconds)
        tokens += report.tokens
    story.facts["tokens"] = tokens


def mix_tokens(story: Story) -> None:
    """Blend both by tokens, load inputs and targets, stop half-way, go on with other ranks, and compare."""
    from feedmill.demo.rows import load_rows
    from feedmill.demo.train import open_plan
    from feedmill.tokens.tokenizer import load_tokenizer

    story.chapter(f"Mix by tokens and load: rows of {SEQ_LEN} with their targets")
    folder = story.out / "text"
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    plan, seconds = timed(lambda: open_plan(str(folder / "recipe.yaml")))
    shares = plan.report(samples=ROWS).as_dict()["sources"]
    text = ", ".join(f"{row['name']} {100 * row['token_share']:.2f} %" for row in shares)
    story.row("plan", f"of {ROWS * SEQ_LEN:,} tokens {text}", seconds)
    (calm, _), seconds = timed(lambda: load_rows(plan, until=ROWS, batch_size=40))
    story.row("one run", f"1 rank x batch 40: {ROWS * SEQ_LEN / seconds / 1e6:.1f} M tokens/s", seconds)
    first, state = load_rows(plan, until=ROWS // 2, batch_size=25, world_size=2)
    rest, _ = load_rows(plan, until=ROWS, batch_size=10, world_size=5, state=state)
    different = [row for row in range(ROWS) if calm[row] != {**first, **rest}.get(row)]
    story.row(
        "DIFFERENT" if different else "identical",
        f"row {different[0]} differs" if different else f"{ROWS:,} rows, stopped and resumed from 2 ranks to 5",
    )
    row = plan.read([0])[0]["input_ids"]
    shown = load_tokenizer(folder / "tokenizer").decode(row[:24].tolist())
    story.row("row 0 begins", repr(" ".join(shown.split()))[:66])
    story.facts |= {"rows": len(calm), "rows_identical": not different}
