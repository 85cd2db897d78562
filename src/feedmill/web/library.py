"""Open items of the browser, by name: datasets, recipes, pipelines with their last run, jobs, and telemetry."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from feedmill.documents.file import kind_of
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.sniff import sniff
from feedmill.formats.yamls import read_config
from feedmill.mixture.swarm import is_swarm
from feedmill.pipelines.history import Manifest, manifest_of, read_manifest
from feedmill.pipelines.pipeline import Pipeline, read_pipeline
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.plan import Plan
from feedmill.samples.open import open as open_dataset
from feedmill.storage import open_store, split_url
from feedmill.storage.local import refuse_special
from feedmill.web.columns import Columns, Fields
from feedmill.web.documents import Documents, open_documents
from feedmill.web.logs import RANK, Jobs, Series, is_job, is_telemetry, read_telemetry
from feedmill.web.results import Behind, behind

if TYPE_CHECKING:
    from feedmill.planning.recipes.recipe import Recipe

Kind = Literal["dataset", "recipe", "pipeline", "job", "telemetry"]
FRONT = {"dataset": "samples", "recipe": "mixture", "pipeline": "pipeline", "job": "jobs", "telemetry": "loader"}
"""The view that is shown first of each kind."""
GROUP = {"dataset": "Data", "pipeline": "Data", "job": "Data", "recipe": "Run", "telemetry": "Run"}
"""The group of tabs that each kind belongs to."""

_OPENED = threading.RLock()
_SHARE = 0.1
"""Of the patience of a page, what it waits for the fields of samples: it is of use without them."""
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass
class OpenItem:
    """Something that is open.

    Attributes:
        name: in the address; unique.
        path: as given.
        kind: what it is.
        trust: whether code that the data names may run.
        loss: loss logs, and `tokenizers`, their paths, as given; see `serve`.
        edit: whether pages may write copies of what they change.
        marks: keys of the samples that visitors marked, in their order; they are gone when the server stops.
        others: all that is open, by name.
    """

    name: str
    path: str
    kind: Kind
    trust: bool = False
    loss: str | None = None
    tokenizers: Sequence[str] = ()
    edit: bool = False
    others: Mapping[str, OpenItem] = field(default_factory=dict, repr=False)
    marks: dict[str, None] = field(default_factory=dict, repr=False)
    _splits: dict[str | None, Dataset] = field(default_factory=dict, repr=False)
    _columns: dict[str | None, Columns] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, dataset: Dataset) -> OpenItem:
        """Return a dataset that is open already."""
        return cls(_short(dataset.url), dataset.url, "dataset", _splits={None: dataset})

    def dataset(self, split: str | None = None) -> Dataset:
        """Return the dataset, or one of its splits. Raises as `feedmill.open`."""
        with _OPENED:
            if split not in self._splits:
                self._splits[split] = _open(self.path, split, self.trust)
            return self._splits[split]

    def columns(self, split: str | None = None) -> Columns:
        """Return the index columns of the dataset."""
        dataset = self.dataset(split)
        with _OPENED:
            if split not in self._columns:
                self._columns[split] = Columns(dataset)
            return self._columns[split]

    def fields(self, split: str | None = None, *, wait: bool = False) -> Fields | None:
        """Return the fields of the samples; None while they are being read, unless `wait` is set."""
        return self.begin_fields(split).result(wait=wait, share=_SHARE)

    def begin_fields(self, split: str | None = None) -> Behind[Fields]:
        """Begin to read the fields of the samples, once."""
        dataset = self.dataset(split)
        return behind(dataset, "_fields", lambda: Fields(dataset))

    def fields_begun(self, split: str | None = None) -> bool:
        """Return whether the fields are being read, or are there."""
        return "_fields" in self.dataset(split).__dict__

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it was when its plan was made. Raises as `feedmill.Recipe.load`."""
        from feedmill.planning.recipes.recipe import Recipe

        return Recipe.load(self.path)

    @cached_property
    def plan(self) -> Plan:
        """The recipe's plan. Raises as `feedmill.Recipe.load` and `plan` do."""
        with _OPENED:
            return self.recipe.plan(trust=self.trust)

    @cached_property
    def jobs(self) -> Jobs:
        """The events of jobs, as far as they were read."""
        return Jobs(self.path)

    @property
    def front(self) -> str:
        """The view that is shown first."""
        return FRONT[self.kind]

    @property
    def group(self) -> str:
        """The group of tabs that it belongs to."""
        return GROUP[self.kind]

    @cached_property
    def has_documents(self) -> bool:
        """Whether it is, or may be, documents with text."""
        if self.kind != "dataset":
            return False
        dataset = self.dataset()
        return isinstance(dataset, Documents) or any(map(kind_of, (self.path, f".{dataset.format}")))

    @cached_property
    def opened(self) -> Dataset | Plan | Run | Jobs | list[Series]:
        """The dataset, the plan, the jobs, or what was read when it was opened: pages read the last two again."""
        if self.kind == "job":
            self.jobs.look()
            return self.jobs
        if self.kind in ("pipeline", "telemetry"):
            return read_run(self.path) if self.kind == "pipeline" else read_telemetry(self.path)
        return self.dataset() if self.kind == "dataset" else self.plan


class Library:
    """All that is open, by name.

    Args:
        paths: datasets, recipes, pipelines, manifests, telemetry and events of jobs.
        tokenizer: paths of tokenizers, see `serve`.
        options: fields of each `OpenItem`.

    Raises:
        NotFound: there is nothing at a path.
        FeedmillError: it cannot be opened.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], *, tokenizer: str | Sequence[str] | None = None, **options: Any
    ) -> None:
        options["tokenizers"] = (tokenizer,) if isinstance(tokenizer, str) else tuple(tokenizer or ())
        given = _with_ranks([os.fspath(path) for path in paths])
        if not given:
            raise ConfigError("nothing to show", kind="bad-option", fix="Give datasets or recipes.")
        names = unique_names([_short(path) for path in given])
        self.things = {
            name: OpenItem(name, path, _kind(path), **options) for name, path in zip(names, given, strict=True)
        }
        for thing in self.things.values():
            thing.others = self.things
            _ = thing.opened  # now, so that a wrong path is an error of the command and not of a page

    def __getitem__(self, name: str) -> OpenItem:
        if name not in self.things:
            raise NotFound(f"nothing is open as {name[:80]!r}", kind="no-page", fix=f"Open: {', '.join(self.things)}.")
        return self.things[name]

    def recipe(self, name: str) -> OpenItem:
        """Return what is open under a name, which must be a recipe. Raises NotFound."""
        thing = self[name]
        if thing.kind != "recipe":
            raise NotFound(f"{thing.path} is a {thing.kind}, and no recipe", kind="no-page")
        return thing

    @property
    def is_remote(self) -> bool:
        """Whether any data is read from a store that is not local, where pages wait for requests."""
        datasets = [thing.dataset() for thing in self.things.values() if thing.kind == "dataset"]
        plans = [thing.plan for thing in self.things.values() if thing.kind == "recipe"]
        sources = [source for plan in plans for source in plan.sources]
        return any("://" in thing.path for thing in self.things.values()) or any(
            dataset.is_remote for dataset in (*datasets, *sources)
        )


def _short(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2].replace("{rank}", "rank")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "data"


def _with_ranks(paths: Sequence[str]) -> list[str]:
    """Return the paths with ``loading-0.jsonl loading-1.jsonl`` as ``loading-{rank}.jsonl``: one run is one view."""
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        ranks = _LAST_NUMBER.sub(RANK, name) if RANK not in path and is_telemetry(path) else name
        names.setdefault(f"{folder}{slash}{ranks}", []).append(path)
    return [one if len(several) > 1 else several[0] for one, several in names.items()]


def _open(path: str, split: str | None, trust: bool) -> Dataset:
    """Return a dataset; documents are read into memory, with their attributes, and those that are no dataset, too."""
    try:
        if split is None and sniff(path).kind == Documents.format:
            return open_documents(path)
        return open_dataset(path, split=split, trust=trust)
    except NotFound as error:
        if split is not None or error.kind not in ("unknown-format", "not-found"):
            raise
        if is_swarm(path):
            raise ConfigError(
                "this is a swarm of mixtures", file=path, fix="Show its recipes, such as run-001.yaml in this folder."
            ) from None
        try:
            return open_documents(path)
        except NotFound:
            raise error from None


def _kind(path: str) -> Kind:
    if "://" not in path:
        refuse_special(path, "cannot be shown")
    if is_job(path):
        return "job"
    if is_telemetry(path):
        return "telemetry"
    if not path.endswith((".yaml", ".yml", ".json")):
        return "dataset"
    if is_pipeline(path):
        return "pipeline"
    if path.endswith(".json"):
        return "dataset"
    try:
        open_dataset(path)
    except NotFound:
        raise
    except FeedmillError:
        return "recipe"
    return "dataset"


MANIFEST = ".run.json"
"""The end of a manifest's name. It can be opened without its pipeline, to look at an older run."""
_MOST_BYTES = 64 << 20  # of a file that could be a pipeline


@dataclass(frozen=True, slots=True)
class Run:
    """A pipeline and its last run.

    Attributes:
        url: what was given: the pipeline, or the manifest.
        manifest_url: path or URL of the manifest.
        pipeline: the description; None if only the manifest was given.
        manifest: what the last run recorded; None if nothing has run.
    """

    url: str
    manifest_url: str
    pipeline: Pipeline | None
    manifest: Manifest | None


def is_pipeline(path: str) -> bool:
    """Return whether a file is a pipeline or the manifest of one. Raises `StorageError` if it cannot be read."""
    folder, name = split_url(path)
    if not name.endswith((".yaml", ".yml", ".json")):
        return False
    try:
        store = open_store(folder)
        if store.stat(name).size > _MOST_BYTES:
            return False
        value = read_config(store.read(name), path).value
    except (ConfigError, NotFound):  # not one that does not answer: what opens the data next would wait as long
        return False
    return isinstance(value, dict) and isinstance(value.get("steps"), list)


def read_run(path: str) -> Run:
    """Read a pipeline with the manifest beside it, or a manifest alone.

    Raises:
        NotFound: there is no such file.
        ConfigError: the pipeline is invalid.
        DataError: the manifest is corrupt.
    """
    if path.endswith(MANIFEST):
        return Run(path, path, None, read_manifest(path))
    pipeline = read_pipeline(path)
    store, name = manifest_of(path)
    url = store.locate(name)
    try:
        return Run(path, url, pipeline, read_manifest(url))
    except NotFound:
        return Run(path, url, pipeline, None)
