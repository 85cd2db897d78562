"""``feedmill demo``: the main job from end to end, on data that every machine has."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from feedmill.cli.options import Json
from feedmill.cli.output import emit, human_size
from feedmill.errors import ConfigError, FeedmillError

RECIPE = """\
# What the demo trains on: 70 % page images, 30 % plain documents.
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
_MARK = ".feedmill-demo"
_OURS = ("pages", "docs", "runs")
Result = TypeVar("Result")


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where everything goes.")] = Path("demo-out"),
    pages: Annotated[int, typer.Option("--pages", metavar="N", min=SHARDS, help="Page images to render.")] = 1500,
    docs: Annotated[int, typer.Option("--docs", metavar="N", min=10, help="Documents in the JSONL data set.")] = 3000,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=400, help="Samples to train on.")] = 3000,
    json: Json = False,
) -> None:
    """Make two data sets from Python's own library, prepare and blend them, load, kill, resume, and compare.

    Ends with status 1 if the resumed run saw any other sample, or any other random crop, than the undisturbed one.
    """
    story = Story(out, quiet=json)
    story.say(f"feedmill demo, in {out}/", bold=True)
    story.make(pages, docs)
    story.prepare()
    story.inspect()
    story.blend(samples)
    story.train(samples)
    story.picture()
    emit(story.facts, json, lambda: story.end())
    if not story.facts["identical"]:
        raise typer.Exit(1)


class Story:
    """The chapters of the demo. `facts` collects what ``--json`` prints."""

    def __init__(self, out: Path, *, quiet: bool) -> None:
        if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
            raise ConfigError("the folder is not empty and not a demo's", file=str(out), fix="Give another --out.")
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARK).touch()
        for name in _OURS:
            shutil.rmtree(out / name, ignore_errors=True)
        self.out, self.quiet = out, quiet
        self.recipe = out / "recipe.yaml"
        self.begun, self.chapters = time.monotonic(), 0
        self.facts: dict[str, Any] = {"out": str(out)}

    def say(self, text: str, *, bold: bool = False) -> None:
        """One line of the story; with ``--json`` it goes to stderr."""
        typer.secho(text, bold=bold, err=self.quiet)

    def chapter(self, title: str) -> None:
        """Begin a numbered chapter."""
        self.chapters += 1
        self.say(f"\n{self.chapters}  {title}", bold=True)

    def row(self, name: str, text: str, seconds: float | None = None) -> None:
        """One aligned row: name, what happened, and how long it took."""
        self.say(f"   {name:<14} {text:<66}" + ("" if seconds is None else f" {seconds:6.2f} s"))

    def make(self, pages: int, docs: int) -> None:
        """Build both data sets from the standard library."""
        from feedmill.demo.corpus import standard_library, write_docs
        from feedmill.demo.pages import write_pages
        from feedmill.storage import LocalStore

        self.chapter("Data that is already here: the Python standard library")
        found, seconds = timed(lambda: standard_library(pages + docs))
        share = len(found) * docs // (pages + docs)
        self.row("read", f"{len(found):,} docstrings and pieces of source", seconds)
        # Every k-th goes to the pages, so that both data sets range over the whole library.
        on_pages = {i * len(found) // (len(found) - share) for i in range(len(found) - share)}
        texts = [document for i, document in enumerate(found) if i not in on_pages]
        _, seconds = timed(lambda: write_docs(LocalStore(self.out / "docs"), "docs.jsonl", texts))
        self.row("docs.jsonl", f"{len(texts):,} documents, {folder_size(self.out / 'docs')}", seconds)
        rendered = [found[i] for i in sorted(on_pages)]
        _, seconds = timed(lambda: write_pages(LocalStore(self.out / "pages"), rendered, shards=SHARDS))
        size = folder_size(self.out / "pages")
        self.row("pages/", f"{len(rendered):,} rendered pages with their text, {SHARDS} tar shards, {size}", seconds)
        self.facts |= {"documents": len(texts), "pages": len(rendered)}

    def prepare(self) -> None:
        """Index both."""
        from feedmill.indexing.prepare import prepare

        self.chapter("Prepare: index both, so that any sample is found by number or key")
        _, seconds = timed(
            lambda: prepare(
                str(self.out / "pages"),
                split_ratio=(8, 1, 1),
                sample_type="CaptioningSample",
                field_map={"image": "jpg", "caption": "json[text]"},
                progress=False,
            )
        )
        self.row("pages/", ".nv-meta with index.sqlite and split.yaml (8:1:1), .tar.idx files", seconds)
        _, seconds = timed(lambda: prepare(str(self.out / "docs" / "docs.jsonl"), progress=False))
        self.row("docs.jsonl", "docs.jsonl.idx", seconds)

    def inspect(self) -> None:
        """Open both and say what they are."""
        from feedmill.samples.open import open as open_dataset

        self.chapter("Look: feedmill info, feedmill preview")
        dataset: Any
        for name in ("pages", "docs/docs.jsonl"):
            dataset, seconds = timed(lambda name=name: open_dataset(str(self.out / name)))  # type: ignore[misc]
            about = dataset.describe()
            splits = ", ".join(f"{split} {count:,}" for split, count in dataset.splits.items())
            kind = " ".join(str(word) for word in (about.get("format"), about.get("sample_type")) if word)
            self.row(name.rpartition("/")[2], f"{kind}; {splits or f'{len(dataset):,} records'}", seconds)

    def blend(self, samples: int) -> None:
        """Write the recipe and show what it makes of the weights."""
        import numpy as np

        from feedmill.demo.train import open_plan

        self.chapter("Blend: 70 % pages, 30 % documents, by recipe.yaml")
        self.recipe.write_text(RECIPE.replace("docs.jsonl", "docs/docs.jsonl"), encoding="utf-8")
        plan, seconds = timed(lambda: open_plan(str(self.recipe)))
        located, asked = timed(lambda: plan.locate(np.arange(samples, dtype=np.int64)))
        counts = np.bincount(located.source, minlength=2).tolist()
        epochs = [int(located.epoch[located.source == source].max(initial=0)) + 1 for source in range(2)]
        self.row("plan", f"fingerprint {plan.fingerprint}", seconds)
        parts = [
            f"{name} {count:,} = {100 * count / samples:.2f} % (epoch {epoch})"
            for name, count, epoch in zip(("pages", "docs"), counts, epochs, strict=True)
        ]
        self.row(f"first {samples:,}", ", ".join(parts), asked)
        self.facts |= {"fingerprint": plan.fingerprint, "realised": counts, "samples": samples}

    def train(self, samples: int) -> None:
        """One undisturbed run; one that is killed half-way and resumed in another layout; and the comparison."""
        from feedmill.demo.runs import Layout, difference, run, saved_position, stream

        calm, first, second = Layout(1, 0, 32), Layout(2, 1, 16), Layout(3, 2, 8)
        runs = self.out / "runs"
        self.chapter("Train: decode, random crop and mirror, batch; each step writes what it saw")
        seconds = run(calm, self.recipe, runs / "undisturbed", until=samples)
        self.row("undisturbed", f"{calm}: {samples:,} samples, {samples / seconds:,.0f} samples/s", seconds)
        seconds = run(first, self.recipe, runs / "killed", until=10 * samples, kill_at=samples // 2)
        saved = saved_position(runs / "killed")
        self.row("killed", f"{first}: SIGKILL half-way, last state at {saved:,}", seconds)
        seconds = run(second, self.recipe, runs / "resumed", until=samples, resume=runs / "killed")
        rest = max(0, samples - saved)
        self.row("resumed", f"{second}: from {saved:,}, {rest / seconds:,.0f} samples/s", seconds)

        self.chapter("Compare: every sample's key, and the hash of its random crop")
        wanted = stream(runs / "undisturbed", samples)
        found = {**stream(runs / "killed", min(saved, samples)), **stream(runs / "resumed", samples)}
        different = difference(wanted, found)
        if not saved or len(wanted) != samples:
            raise FeedmillError(f"the runs saved at {saved} and logged {len(wanted)} samples", kind="demo")
        if different is None:
            self.row("identical", f"{len(found):,} of {samples:,} samples, in order, crops included")
        else:
            self.row("DIFFERENT", different)
        self.facts |= {"saved_at": saved, "compared": len(found), "identical": different is None}

    def picture(self) -> None:
        """The first pages that the training saw, as one picture."""
        import numpy as np

        from feedmill.demo.train import key_of, open_plan
        from feedmill.samples.fields import named_fields
        from feedmill.samples.sheet import contact_sheet

        images, captions = [], []
        positions = np.arange(40, dtype=np.int64)
        for position, sample in zip(positions, open_plan(str(self.recipe)).read(positions), strict=True):
            image = (named_fields(sample) or {}).get("image")
            if image is not None:
                images.append(image)
                captions.append(f"{position}: {key_of(sample)}")
        path = self.out / "sheet.png"
        contact_sheet(images[:24], captions[:24], path, columns=8)
        self.facts |= {"sheet": str(path), "seconds": round(time.monotonic() - self.begun, 2)}

    def end(self) -> None:
        """The last lines."""
        self.say(f"\nThe first pages that the training saw: {self.facts['sheet']}")
        verdict = "All is well" if self.facts["identical"] else "The streams DIFFER: this is a bug"
        self.say(f"{verdict}; {self.facts['seconds']:.0f} s in all.", bold=True)


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """The function's result, and how many seconds it took."""
    begun = time.monotonic()
    result = function()
    return result, time.monotonic() - begun


def folder_size(folder: Path) -> str:
    """Bytes of all files below a folder, for people."""
    return human_size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
