"""Chapters of the demo about text: curate documents, tokenize them, and blend token files of two formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feedmill.cli.story import Story, timed

if TYPE_CHECKING:
    from feedmill.demo.corpus import Document

SEQ_LEN, ROWS = 256, 2000
RECIPE = f"""\
# One third of the tokens is prose, the rest is source code.
seed: 7
unit: tokens
blend:
  - {{path: prose.pbin, windows: {SEQ_LEN}, weight: 1/3, shuffle: global}}
  - {{path: source.ds, windows: {SEQ_LEN}, weight: 2/3, shuffle: global}}
"""
TAGGERS = ["gopher_v2", "pii_regex_v2"]
RULES = {
    "identical": "$.attributes[?(@.dup && @.dup[0] && @.dup[0][2] >= 1)]",
    "near copies": "$.attributes[?(@.near && @.near[0] && @.near[0][2] >= 0)]",
    "repetitive": "$.attributes[?(@.quality__gopher_v2__fraction_of_characters_in_duplicate_10grams[0][2] > 0.3)]",
}
MIX: dict[str, Any] = {
    "attributes": ["quality", "dup", "near"],
    "filter": {"exclude": list(RULES.values())},
    "span_replacement": [
        {"span": "$.attributes.quality__pii_regex_v2__EMAIL_ADDRESS", "min_score": 0.5, "replacement": "<email>"}
    ],
}


def curate_texts(story: Story, documents: Sequence[Document]) -> None:
    """Tag, deduplicate and filter docstrings and source code, and print the number dropped by each rule."""
    from feedmill.curation.dedupe.dedupe import dedupe
    from feedmill.curation.dedupe.options import DOCUMENTS, DedupeOptions
    from feedmill.curation.mix.config import read_config
    from feedmill.curation.mix.job import mix
    from feedmill.curation.near.job import find_near
    from feedmill.curation.near.options import NearOptions
    from feedmill.curation.tag import tag
    from feedmill.demo.corpus import write_documents
    from feedmill.storage import LocalStore

    story.chapter("Curate: tag the documents, find duplicates, filter")
    folder = story.out / "text"
    parts = {
        "prose": [document for document in documents if "@" not in document.id],
        "source": [document for document in documents if "@" in document.id],
    }
    for name, found in parts.items():
        write_documents(LocalStore(folder), f"documents/{name}.jsonl.gz", name, found)
    pattern = [str(folder / "documents")]
    tagged = tag([str(folder / "documents/*.gz")], TAGGERS, name="quality", workers=None, progress=False)
    story.row("tag", f"{', '.join(TAGGERS)}: {tagged.rows:,} documents", tagged.seconds)
    exact, seconds = timed(lambda: dedupe(pattern, DedupeOptions(name="dup", attribute="dup", unit=DOCUMENTS)))
    story.row("dedupe", f"{exact.documents:,} exact duplicates", seconds)
    near, seconds = timed(lambda: find_near(pattern, NearOptions(name="near")))
    story.row("neardedupe", f"{near.duplicates:,} near-duplicates, in {near.clusters:,} clusters", seconds)
    streams = [{**MIX, "name": name, "documents": [str(folder / f"documents/{name}.jsonl.gz")]} for name in parts]
    for stream in streams:
        stream["output"] = {"path": str(folder / "mixed"), "min_text_length": 150, "discard_fields": ["attributes"]}
    mixed, seconds = timed(lambda: mix(read_config({"streams": streams}), progress=False))
    names = {f"exclude {rule}": name for name, rule in RULES.items()} | {"min_text_length": "short"}
    for one in mixed.streams:
        dropped = ", ".join(f"{number:,} {names[rule]}" for rule, number in one.counts.dropped.items())
        story.row(f"mix: {one.name}", f"{one.counts.kept:,} of {one.counts.read:,} kept; dropped {dropped or 'none'}")
    story.row("", "written to text/mixed/, e-mail addresses replaced", seconds)
    kept = sum(one.counts.kept for one in mixed.streams)
    story.facts |= {"near_duplicates": near.duplicates, "duplicates": exact.documents, "curated": kept}


def tokenize_texts(story: Story, documents: Sequence[Document]) -> None:
    """Train a tokenizer on the documents, and tokenize them: prose to `.pbin`, source code to `.ds`."""
    from feedmill.demo.vocabulary import train_tokenizer
    from feedmill.storage import LocalStore
    from feedmill.tokens.tokenize import tokenize

    story.chapter("Tokenize: prose to Modalities' .pbin, source code to datatrove's .ds")
    folder = story.out / "text"
    size, seconds = timed(
        lambda: train_tokenizer(LocalStore(folder / "tokenizer"), (document.text for document in documents))
    )
    story.row("tokenizer/", f"byte-level BPE of {size:,} tokens, trained on {len(documents):,} documents", seconds)
    tokens = 0
    for name, kind in (("prose", "pbin"), ("source", "ds")):
        report = tokenize(
            [folder / "mixed" / f"{name}-0000.jsonl.gz"],
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
    """Blend both by tokens, load inputs and targets, stop half-way, resume with other ranks, and compare."""
    from feedmill.demo.rows import load_rows
    from feedmill.demo.train import open_plan
    from feedmill.tokens.tokenizer import load_tokenizer

    story.chapter(f"Blend by tokens and load: rows of {SEQ_LEN} tokens with their targets")
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
