"""Feedmill: the data side of training a foundation model.

    import feedmill as fm

    ds = fm.open("coco/")                    # any format; detected
    ds.read([3, 14, 15])                     # in bulk; ds[3] is the short form
    plan = fm.Recipe.load("recipe.yaml").plan()
    loader = fm.Loader(plan, batch_size=32, rank=0, world_size=8)
    for batch in loader: ...

Names are loaded when first used, so that ``import feedmill`` is fast.
"""

from __future__ import annotations

from importlib import import_module

from feedmill._version import __version__ as __version__
from feedmill.provided import register

TYPE_CHECKING = False
"""As in `typing`, whose import takes longer than the rest; Ctrl-C shows a traceback until `__main__` runs."""

register(
    {
        "mapped": "feedmill.samples.views.mapped",
        "filtered": "feedmill.samples.views.filtered",
        "selected": "feedmill.samples.views.selected",
        "lengths_by": "feedmill.tokens.verbs.lengths.lengths_by",
        "to_arrow": "feedmill.samples.frames.to_arrow",
        "to_polars": "feedmill.samples.frames.to_polars",
        "to_pandas": "feedmill.samples.frames.to_pandas",
        "to_torch": "feedmill.loading.adapters.mapped.of_dataset",
        "card_of": "feedmill.web.cards.card_of",
        "has_tokens": "feedmill.tokens.pieces.has_tokens",
        "load_tokenizer": "feedmill.tokens.tokenizer.load_tokenizer",
        "row_text": "feedmill.tokens.pieces.row_text",
        "TokenizeTransform": "feedmill.tokens.transform.TokenizeTransform",
        "dolma": "feedmill.compat.dolma",
    }
)

_HOME = {
    "Checkpoint": "loading.checkpoint",
    "ConfigError": "errors",
    "DataError": "errors",
    "Dataset": "formats.base",
    "FeedmillError": "errors",
    "Loader": "loading.loader",
    "MissingExtra": "errors",
    "NotFound": "errors",
    "PartEngine": "jobs.parts",
    "Plan": "planning.plan",
    "RayEngine": "jobs.ray_engine",
    "Recipe": "planning.recipes.recipe",
    "Sample": "formats.sample",
    "SkipSample": "loading.failures",
    "StorageError": "errors",
    "Store": "storage.base",
    "TaskEncoder": "loading.encoder",
    "TrustError": "errors",
    "Workers": "loading.workers",
    "Writer": "writing.write",
    "bench": "loading.bench",
    "cache": "loading.caching",
    "check": "indexing.check",
    "convert": "converting.convert",
    "dedupe": "curation.dedupe.job",
    "filter": "filtering",
    "import_data": "importing.import_data",
    "info": "converting.info",
    "open": "samples.open",
    "open_store": "storage",
    "plan": "planning.overview",
    "prepare": "indexing.prepare",
    "preview": "samples.preview",
    "report": "web.report",
    "run": "pipelines.run",
    "serve": "web.serve",
    "show": "web.notebook",
    "tag": "curation.tag",
    "tokenize": "tokens.verbs.tokenize",
    "trace": "tracing.trace",
    "write": "writing.write",
    "writer": "writing.write",
}
_GROUPS = ("documents", "edit", "loading", "mixture", "reports", "samples", "tokens")
"""Packages and modules with further public names, which are imported like these."""

_HINTS = {
    **dict.fromkeys(("load_dataset", "load", "read", "load_from_disk", "IterableDataset"), "Use fm.open(path)."),
    **dict.fromkeys(
        ("read_parquet", "read_csv", "read_json", "read_table", "from_pandas", "WebDataset", "StreamingDataset"),
        "Use fm.open(path), which detects the format.",
    ),
    **dict.fromkeys(
        ("DataLoader", "StatefulDataLoader", "dataloader", "get_loader"), "Use fm.Loader(plan, batch_size)."
    ),
    **dict.fromkeys(
        ("interleave", "interleave_datasets", "blend", "Blend", "mix", "concat", "concatenate_datasets"),
        "Use fm.Plan.over(datasets, weights), or 'blend' or 'concat' in a recipe: fm.Recipe.load(file).plan().",
    ),
    **dict.fromkeys(("ConcatDataset", "ChainDataset"), "Use fm.Plan.over(datasets), or 'concat' in a recipe."),
    **dict.fromkeys(
        ("pack", "Pack", "packing"),
        "Use 'pack' in a recipe, or fm.tokens.PackedPlan(plan, fm.tokens.Packing(seq_len=...)).",
    ),
    **dict.fromkeys(
        ("random_split", "train_test_split", "Subset"), "Use 'subset' in a recipe, or dataset.select(indices)."
    ),
    **dict.fromkeys(
        ("DistributedSampler", "Sampler", "RandomSampler"), "Use fm.Loader(plan, batch_size, rank=, world_size=)."
    ),
    **dict.fromkeys(("collate", "default_collate"), "It is an argument: fm.Loader(..., collate=function)."),
    **dict.fromkeys(
        ("ShardWriter", "TarWriter", "MDSWriter", "save"), "Use fm.write(path, samples), or fm.writer(path)."
    ),
    **dict.fromkeys(("import_", "ingest", "from_files"), "Use fm.import_data(sources, output)."),
    **dict.fromkeys(("compose", "map", "Compose"), "Use fm.Loader(..., transform=function), or dataset.map(function)."),
    **dict.fromkeys(
        ("to_webdataset", "to_parquet", "to_jsonl", "to_mds", "export"), "Use fm.convert(path, output, to=format)."
    ),
    **dict.fromkeys(("head", "sample", "take"), "Use fm.open(path)[:5], or fm.preview(path)."),
    **dict.fromkeys(("describe", "stats", "statistics", "summary"), "Use fm.info(path), or fm.documents.stat(paths)."),
    **dict.fromkeys(("view", "browse", "visualize", "display", "plot"), "Use fm.show(path), or fm.serve(paths)."),
    **dict.fromkeys(
        ("seed", "set_seed", "manual_seed", "seed_everything"),
        "The order and the transforms depend on the seed of the plan alone: fm.Plan.over(dataset, seed=...).",
    ),
    **dict.fromkeys(("validate", "verify", "lint"), "Use fm.check(path)."),
    **dict.fromkeys(("deduplicate", "dedup", "minhash"), "Use fm.dedupe(documents)."),
    "version": "It is fm.__version__.",
    "Tokenizer": "Use fm.tokenize(inputs, output, tokenizer=...).",
    "mount_dataset": "Use fm.edit.mount(path, folder).",
}
"""Names that people look for, and what to use."""

if TYPE_CHECKING:
    from feedmill import documents, edit, loading, mixture, reports, samples, tokens
    from feedmill.converting.convert import convert
    from feedmill.converting.info import info
    from feedmill.curation.dedupe.job import dedupe
    from feedmill.curation.tag import tag
    from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound, StorageError, TrustError
    from feedmill.filtering import filter
    from feedmill.formats.base import Dataset
    from feedmill.formats.sample import Sample
    from feedmill.importing.import_data import import_data
    from feedmill.indexing.check import check
    from feedmill.indexing.prepare import prepare
    from feedmill.jobs.parts import PartEngine
    from feedmill.jobs.ray_engine import RayEngine
    from feedmill.loading.bench import bench
    from feedmill.loading.caching import cache
    from feedmill.loading.checkpoint import Checkpoint
    from feedmill.loading.encoder import TaskEncoder
    from feedmill.loading.failures import SkipSample
    from feedmill.loading.loader import Loader
    from feedmill.loading.workers import Workers
    from feedmill.pipelines.run import run
    from feedmill.planning.overview import plan
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.samples.open import open
    from feedmill.samples.preview import preview
    from feedmill.storage import open_store
    from feedmill.storage.base import Store
    from feedmill.tokens.verbs.tokenize import tokenize
    from feedmill.tracing.trace import trace
    from feedmill.web.notebook import show
    from feedmill.web.report import report
    from feedmill.web.serve import serve
    from feedmill.writing.write import Writer, write, writer

__all__ = [
    "Checkpoint",
    "ConfigError",
    "DataError",
    "Dataset",
    "FeedmillError",
    "Loader",
    "MissingExtra",
    "NotFound",
    "PartEngine",
    "Plan",
    "RayEngine",
    "Recipe",
    "Sample",
    "SkipSample",
    "StorageError",
    "Store",
    "TaskEncoder",
    "TrustError",
    "Workers",
    "Writer",
    "bench",
    "cache",
    "check",
    "convert",
    "dedupe",
    "documents",
    "edit",
    "filter",
    "import_data",
    "info",
    "loading",
    "mixture",
    "open",
    "open_store",
    "plan",
    "prepare",
    "preview",
    "report",
    "reports",
    "run",
    "samples",
    "serve",
    "show",
    "tag",
    "tokenize",
    "tokens",
    "trace",
    "write",
    "writer",
]

if not TYPE_CHECKING:  # whose checkers then know which names there are

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(f"feedmill.{_HOME[name]}"), name)
        if name in _GROUPS:
            return import_module(f"feedmill.{name}")
        raise AttributeError(f"module 'feedmill' has no attribute {name!r}{_hint(name)}", name=name)

    def __dir__() -> list[str]:
        return sorted(__all__)


def _hint(name: str) -> str:
    """Return where a name is, or what to use for it, as a sentence; empty if it is like none."""
    if name.startswith("__"):
        return ""  # Python itself asks for these
    for group in _GROUPS:
        if name in import_module(f"feedmill.{group}").HOMES:
            return f". It is fm.{group}.{name}"
    if name in _HINTS:
        return f". {_HINTS[name]}"
    from feedmill.errors import suggestion

    similar = suggestion(name, [each for each in __all__ if each not in _GROUPS], cutoff=0.75)
    return f". {similar}" if similar else ""
