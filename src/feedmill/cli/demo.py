"""``feedmill demo``: run the whole workflow on data from Python's standard library.

Its chapters are one function each: pages with their text, robotics (two datasets, their statistics, and a mixture with
exact windows), and text (curate documents, tokenize them, and blend token files of two formats). `Story` prints them:
numbered chapters, aligned rows with seconds, facts for ``--json``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from feedmill.cli.command import Json
from feedmill.cli.output import emit, human_size
from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.storage import join_url
from feedmill.storage.base import storage_error

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
EPISODES = {"reach": 24, "slow": 12}
WEIGHTS, WINDOWS, BATCH = (0.7, 0.3), 3, 16
_MARK = ".feedmill-demo"
_OURS = ("pages", "docs", "text", "runs")
Result = TypeVar("Result")
SEQ_LEN, ROWS = 256, 2000
TEXT_RECIPE = f"""\
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

    story.chapter("Look: feedmill show, feedmill show")
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


def mix_robots(story: Story) -> None:
    """Generate, index and check two datasets, merge their statistics, and load batches of both."""
    import numpy as np

    from feedmill.demo.sample_data import ACTION, STATE, write_robots
    from feedmill.indexing.check import check
    from feedmill.loading.loader import Loader
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.samples.robotics.job import compute_statistics
    from feedmill.samples.vla.modalities import modality
    from feedmill.storage import LocalStore

    story.chapter("Robots: camera frames and actions in VLA Foundry's format, mixed 70 to 30")
    root = story.out / "robots"
    store = LocalStore(root)
    counts = []
    for seed, (name, episodes) in enumerate(EPISODES.items()):
        speed = 0.25 if name == "reach" else 0.08
        count, seconds = timed(
            lambda name=name, episodes=episodes, speed=speed, seed=seed: write_robots(  # type: ignore[misc]
                store, name, episodes, speed=speed, seed=seed
            )
        )
        counts.append(count)
        compute_statistics(str(root / name), str(root / name / "stats.json"), progress=False)
        found = check(str(root / name), progress=False)
        story.row(
            f"robots/{name}", f"{count:,} samples of {episodes} episodes, {len(found.findings)} findings", seconds
        )
    data: dict[str, Any] = {
        "type": "robotics",
        "dataset_manifest": [str(root / name / "manifest.jsonl") for name in EPISODES],
        "dataset_statistics": [str(root / name / "stats.json") for name in EPISODES],
        "dataset_weighting": list(WEIGHTS),
        "dataset_modality": ["robotics"] * 2,
        "allow_multiple_epochs": True,
        "action_fields": [ACTION],
        "proprioception_fields": [STATE],
        "normalization": {"method": "std"},
    }
    samples = WINDOWS * 10 * BATCH
    plan = Recipe.parse({"data": data, "total_train_samples": samples}).plan()
    view = modality("robotics", data, [str(root / name) for name in EPISODES])
    located = plan.locate(np.arange(samples, dtype=np.int64))
    shares = [np.bincount(part, minlength=2).tolist() for part in np.split(located.source, WINDOWS)]
    mixture = ", ".join(" + ".join(map(str, share)) for share in shares)
    story.row("windows", f"{WINDOWS} of {samples // WINDOWS} samples: {mixture}")
    loader = Loader(plan, BATCH, rank=0, world_size=1, transform=view.cook, collate=view.batch)
    batches, seconds = timed(lambda: list(loader))
    shapes = ", ".join(
        f"{name} {list(batches[0][name].shape)}" for name in ("actions", "proprioception", "pixel_values")
    )
    story.row("batches", f"{shapes}; {samples / seconds:,.0f} samples/s", seconds)
    story.facts |= {"robots": counts, "robot_windows": shares, "converted": _convert(story)}


def _convert(story: Story) -> dict[str, str]:
    """Convert one dataset to MosaicML's shards and to a prepared WebDataset, comparing each sample; return digests."""
    from feedmill.converting.convert import convert

    source = story.out / "robots" / "reach"
    digests = {}
    for to, label in (("mds", "to MDS"), ("webdataset", "to tars")):
        target = story.out / "robots" / f"reach-{to}"
        report, seconds = timed(
            lambda to=to, target=target: convert(source, target, to, overwrite=True, progress=False)  # type: ignore[misc]
        )
        digests[to] = str(report.digest)
        story.row(label, f"{report.samples:,} samples of reach, each compared with its source", seconds)
    return digests


class Story:
    """Progress output of the demo in the folder `out`; `facts` collects what ``--json`` prints.

    Raises:
        ConfigError: the folder holds files that are not a demo's.
    """

    def __init__(self, out: Path, *, quiet: bool) -> None:
        try:
            if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
                raise ConfigError(
                    "the folder holds other files: it must be empty or from an earlier demo",
                    file=str(out),
                    fix="Pass another --output.",
                )
            out.mkdir(parents=True, exist_ok=True)
            (out / _MARK).touch()
        except NotADirectoryError:
            raise ConfigError("--output is a file, not a folder", file=str(out), fix="Pass another --output.") from None
        except OSError as error:
            raise storage_error(error, str(out)) from None
        for name in _OURS:
            shutil.rmtree(out / name, ignore_errors=True)
        self.out, self.quiet = out, quiet
        self.recipe = out / "recipe.yaml"
        self.begun, self.chapters = time.monotonic(), 0
        self.facts: dict[str, Any] = {"out": str(out)}

    def say(self, text: str, *, bold: bool = False) -> None:
        """Print one line; with ``--json`` to stderr."""
        typer.secho(text, bold=bold, err=self.quiet)

    def chapter(self, title: str) -> None:
        """Print the title of the next numbered chapter."""
        self.chapters += 1
        self.say(f"\n{self.chapters}  {title}", bold=True)

    def row(self, name: str, text: str, seconds: float | None = None) -> None:
        """Print one aligned row: name, result and seconds."""
        self.say(f"   {name:<14} {text:<66}" + ("" if seconds is None else f" {seconds:6.2f} s"))

    def end(self) -> None:
        """Print the verdict."""
        self.say(f"\nThe first pages that the training saw: {self.facts['sheet']}")
        if self.facts["report"] is not None:
            self.say(f"All of it on one page, to open in a browser: {self.facts['report']}")
            self.say(f"To look further: feedmill serve {self.out}/pages {self.recipe}")
        verdict = (
            "No problems found"
            if self.facts["identical"] and self.facts["rows_identical"]
            else "The streams DIFFER: this is a bug"
        )
        self.say(f"{verdict}; {self.facts['seconds']:.0f} s in all.", bold=True)


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """Call `function` and return its result and the elapsed seconds."""
    begun = time.monotonic()
    result = function()
    return result, time.monotonic() - begun


def folder_size(folder: Path) -> str:
    """Return the total size of all files below a folder, for display."""
    return human_size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def curate_texts(story: Story, documents: Sequence[Document]) -> None:
    """Tag, deduplicate and filter docstrings and source code, and print the number dropped by each rule."""
    from feedmill.curation.dedupe.job import dedupe
    from feedmill.curation.mix.config import read_config
    from feedmill.curation.mix.job import mix
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
    exact, seconds = timed(lambda: dedupe(pattern, name="dup"))
    story.row("dedupe", f"{exact.documents:,} exact duplicates", seconds)
    near: Any
    near, seconds = timed(lambda: dedupe(pattern, near=True, name="near"))
    story.row("dedupe --near", f"{near.duplicates:,} near-duplicates, in {near.clusters:,} clusters", seconds)
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
    from feedmill.demo.corpus import train_tokenizer
    from feedmill.storage import LocalStore
    from feedmill.tokens.verbs.tokenize import tokenize

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
    from feedmill.demo.runs import load_rows
    from feedmill.demo.train import open_plan
    from feedmill.tokens.tokenizer import load_tokenizer

    story.chapter(f"Blend by tokens and load: rows of {SEQ_LEN} tokens with their targets")
    folder = story.out / "text"
    (folder / "recipe.yaml").write_text(TEXT_RECIPE, encoding="utf-8")
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
