"""``feedmill demo``: run the whole workflow on data from Python's standard library."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.demo_robots import mix_robots
from feedmill.cli.demo_text import curate_texts, mix_tokens, tokenize_texts
from feedmill.cli.options import Json
from feedmill.cli.output import emit
from feedmill.cli.story import Story, folder_size, timed
from feedmill.errors import FeedmillError, MissingExtra
from feedmill.storage import join_url

if TYPE_CHECKING:
    from feedmill.demo.corpus import Document

RECIPE = """\
# Training mixture of the demo: 70 % page images, 30 % plain documents.
seed: 7
blend:
  - path: pages
    split: train
    weight: 0.7
    shuffle: global
  - path: docs.jsonl
    weight: 0.3
    shuffle: global
"""
SHARDS = 10


def demo(
    out: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder for all output.")] = Path("demo-out"),
    pages: Annotated[int, typer.Option("--pages", metavar="N", min=SHARDS, help="Page images to render.")] = 1500,
    docs: Annotated[int, typer.Option("--docs", metavar="N", min=10, help="Documents in the JSONL dataset.")] = 3000,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=400, help="Samples to train on.")] = 3000,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FOLDER", help="Only write the small data of the documentation to a folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Build datasets from Python's standard library; prepare, curate, tokenize, blend and load them; kill and resume.

    Exit status 1 if the resumed run sees a different sample, random crop or token than the uninterrupted one.
    """
    if data is not None:
        _write_data(data, json)
        return
    story = Story(out, quiet=json)
    story.say(f"feedmill demo, in {out}/", bold=True)
    documents = _make(story, pages, docs)
    _prepare(story)
    _inspect(story)
    _blend(story, samples)
    _train(story, samples)
    _picture(story)
    curate_texts(story, documents)
    tokenize_texts(story, documents)
    mix_tokens(story)
    mix_robots(story)
    _report(story)
    story.facts["seconds"] = round(time.monotonic() - story.begun, 2)
    emit(story.facts, json, lambda: story.end())
    if not (story.facts["identical"] and story.facts["rows_identical"]):
        raise typer.Exit(1)


def _write_data(folder: str, as_json: bool) -> None:
    """Write the sample data of the documentation."""
    from feedmill.demo.sample_data import write_sample_data
    from feedmill.storage import open_store

    names = write_sample_data(open_store(folder))
    emit(
        {"path": folder, "names": names},
        as_json,
        lambda: typer.echo("\n".join(f"wrote {join_url(folder, name)}" for name in names)),
    )


def _make(story: Story, pages: int, docs: int) -> list[Document]:
    """Build both datasets from the standard library, and return all documents."""
    from feedmill.demo.corpus import standard_library, write_docs
    from feedmill.demo.pages import write_pages
    from feedmill.storage import LocalStore

    story.chapter("Data: the Python standard library of this machine")
    found, seconds = timed(lambda: standard_library(pages + docs))
    share = len(found) * docs // (pages + docs)
    story.row("read", f"{len(found):,} docstrings and pieces of source code", seconds)
    # Every k-th goes to the pages, so that both datasets cover the whole library.
    on_pages = {i * len(found) // (len(found) - share) for i in range(len(found) - share)}
    texts = [document for i, document in enumerate(found) if i not in on_pages]
    _, seconds = timed(lambda: write_docs(LocalStore(story.out / "docs"), "docs.jsonl", texts))
    story.row("docs.jsonl", f"{len(texts):,} documents, {folder_size(story.out / 'docs')}", seconds)
    rendered = [found[i] for i in sorted(on_pages)]
    _, seconds = timed(lambda: write_pages(LocalStore(story.out / "pages"), rendered, shards=SHARDS))
    size = folder_size(story.out / "pages")
    story.row("pages/", f"{len(rendered):,} rendered pages with their text, {SHARDS} tar shards, {size}", seconds)
    story.facts |= {"documents": len(texts), "pages": len(rendered)}
    return found


def _prepare(story: Story) -> None:
    """Index both datasets."""
    from feedmill.indexing.prepare import prepare

    story.chapter("Prepare: index both, for access by number or key")
    _, seconds = timed(
        lambda: prepare(
            str(story.out / "pages"),
            split_ratio=(8, 1, 1),
            sample_type="CaptioningSample",
            field_map={"image": "jpg", "caption": "json[text]"},
            progress=False,
        )
    )
    story.row("pages/", ".nv-meta with index.sqlite and split.yaml (8:1:1), .tar.idx files", seconds)
    _, seconds = timed(lambda: prepare(str(story.out / "docs" / "docs.jsonl"), progress=False))
    story.row("docs.jsonl", "docs.jsonl.idx", seconds)


def _inspect(story: Story) -> None:
    """Open both datasets and print a summary."""
    from feedmill.samples.open import open as open_dataset

    story.chapter("Look: feedmill info, feedmill preview")
    dataset: Any
    for name in ("pages", "docs/docs.jsonl"):
        dataset, seconds = timed(lambda name=name: open_dataset(str(story.out / name)))  # type: ignore[misc]
        about = dataset.describe()
        splits = ", ".join(f"{split} {count:,}" for split, count in dataset.splits.items())
        kind = " ".join(str(word) for word in (about.get("format"), about.get("sample_type")) if word)
        story.row(name.rpartition("/")[2], f"{kind}; {splits or f'{len(dataset):,} records'}", seconds)


def _blend(story: Story, samples: int) -> None:
    """Write the recipe and print the realized weights."""
    import numpy as np

    from feedmill.demo.train import open_plan

    story.chapter("Blend: 70 % pages, 30 % documents, by recipe.yaml")
    story.recipe.write_text(RECIPE.replace("docs.jsonl", "docs/docs.jsonl"), encoding="utf-8")
    plan, seconds = timed(lambda: open_plan(str(story.recipe)))
    located, asked = timed(lambda: plan.locate(np.arange(samples, dtype=np.int64)))
    counts = np.bincount(located.source, minlength=2).tolist()
    epochs = [int(located.epoch[located.source == source].max(initial=0)) + 1 for source in range(2)]
    story.row("plan", f"fingerprint {plan.fingerprint}", seconds)
    parts = [
        f"{name} {count:,} = {100 * count / samples:.2f} % (epoch {epoch})"
        for name, count, epoch in zip(("pages", "docs"), counts, epochs, strict=True)
    ]
    story.row(f"first {samples:,}", ", ".join(parts), asked)
    story.facts |= {"fingerprint": plan.fingerprint, "realised": counts, "samples": samples}


def _train(story: Story, samples: int) -> None:
    """Compare an uninterrupted run with one that is killed half-way and resumed in another layout."""
    from feedmill.demo.runs import Layout, difference, run, saved_position, stream

    calm, first, second = Layout(1, 0, 32), Layout(2, 1, 16), Layout(3, 2, 8)
    runs = story.out / "runs"
    story.chapter("Train: decode, random crop and mirror, batch; log the samples of each step")
    seconds = run(calm, story.recipe, runs / "undisturbed", until=samples)
    story.row("uninterrupted", f"{calm}: {samples:,} samples, {samples / seconds:,.0f} samples/s", seconds)
    seconds = run(first, story.recipe, runs / "killed", until=10 * samples, kill_at=samples // 2)
    saved = saved_position(runs / "killed")
    story.row("killed", f"{first}: SIGKILL half-way, last state at {saved:,}", seconds)
    seconds = run(second, story.recipe, runs / "resumed", until=samples, resume=runs / "killed")
    rest = max(0, samples - saved)
    story.row("resumed", f"{second}: from {saved:,}, {rest / seconds:,.0f} samples/s", seconds)

    story.chapter("Compare: the key of each sample, and the hash of its random crop")
    wanted = stream(runs / "undisturbed", samples)
    found = {**stream(runs / "killed", min(saved, samples)), **stream(runs / "resumed", samples)}
    different = difference(wanted, found)
    if not saved or len(wanted) != samples:
        raise FeedmillError(f"the runs saved at {saved} and logged {len(wanted)} samples", kind="demo")
    if different is None:
        story.row("identical", f"{len(found):,} of {samples:,} samples, in order, crops included")
    else:
        story.row("DIFFERENT", different)
    story.facts |= {"saved_at": saved, "compared": len(found), "identical": different is None}


def _picture(story: Story) -> None:
    """Write the first pages that the training saw as a contact sheet."""
    import numpy as np

    from feedmill.demo.train import key_of, open_plan
    from feedmill.samples.sheet import contact_sheet
    from feedmill.samples.types import named_fields

    images, captions = [], []
    positions = np.arange(40, dtype=np.int64)
    for position, sample in zip(positions, open_plan(str(story.recipe)).read(positions), strict=True):
        image = (named_fields(sample) or {}).get("image")
        if image is not None:
            images.append(image)
            captions.append(f"{position}: {key_of(sample)}")
    path = story.out / "sheet.png"
    contact_sheet(images[:24], captions[:24], path, columns=8)
    story.facts["sheet"] = str(path)


def _report(story: Story) -> None:
    """Write what was made to one page, if the packages of pages are installed."""
    from feedmill.web.report import report

    made = ["pages", "docs/docs.jsonl", "recipe.yaml", "text/prose.pbin", "text/recipe.yaml", "robots/reach"]
    path = story.out / "report.html"
    story.facts["report"] = None
    try:
        done = report([story.out / name for name in made], path, overwrite=True)
    except MissingExtra as error:
        story.say(f"\nno report: {error}")
        return
    story.facts |= {"report": str(path), "report_findings": done.findings + len(done.problems)}
