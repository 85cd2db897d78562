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
from typing import TYPE_CHECKING, Any

from feedmill._version import __version__ as __version__
from feedmill.provided import register

register(
    {
        "mapped": "feedmill.samples.views.mapped",
        "filtered": "feedmill.samples.views.filtered",
        "selected": "feedmill.samples.views.selected",
        "lengths_by": "feedmill.tokens.lengths.lengths_by",
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
    "AVDecoder": "samples.avdecoder",
    "CaptioningSample": "samples.types",
    "CheckReport": "indexing.report",
    "Checkpoint": "loading.checkpoint",
    "ConfigError": "errors",
    "Cooker": "loading.cooking",
    "DataError": "errors",
    "Dataset": "formats.base",
    "Decoder": "samples.decode",
    "FeedmillError": "errors",
    "FillInMiddle": "samples.fim",
    "FilterConfig": "curation.mix.config",
    "ImageClassificationSample": "samples.types",
    "ImageSample": "samples.types",
    "ImportReport": "importing.report",
    "InterleavedSample": "samples.types",
    "Loader": "loading.loader",
    "LossMask": "samples.targets",
    "MissingExtra": "errors",
    "MultiChoiceVQASample": "samples.types",
    "NotFound": "errors",
    "OCRSample": "samples.types",
    "PackedPlan": "planning.packing.packed",
    "Packing": "planning.packing.options",
    "PartEngine": "jobs.parts",
    "Plan": "planning.plan",
    "PlanDataset": "loading.adapters.mapped",
    "PrepareReport": "indexing.report",
    "RayEngine": "jobs.ray_engine",
    "Recipe": "planning.recipes.recipe",
    "RepairReport": "indexing.repair",
    "Sample": "formats.sample",
    "SampleRow": "samples.rows",
    "SimilarityInterleavedSample": "samples.types",
    "SkipSample": "loading.failures",
    "Source": "formats.sample",
    "StorageError": "errors",
    "Store": "storage.base",
    "Substitute": "loading.failures",
    "Targets": "samples.targets",
    "TaskEncoder": "loading.encoder",
    "Telemetry": "loading.metrics",
    "TextSample": "samples.types",
    "TokenDataset": "formats.tokens.base",
    "TokenizeTransform": "tokens.transform",
    "TrustError": "errors",
    "TypedSample": "samples.types",
    "VQAOCRSample": "samples.types",
    "VQASample": "samples.types",
    "VidQASample": "samples.types",
    "WindowDataset": "formats.tokens.windows",
    "Workers": "loading.workers",
    "Writer": "writing.write",
    "add_parts": "writing.add_parts",
    "append": "writing.append",
    "bench": "loading.bench",
    "cache": "loading.caching",
    "check": "indexing.check",
    "collate_rows": "tokens.collaterows",
    "convert": "converting.convert",
    "decode": "tokens.decode",
    "decontaminate": "curation.decontaminate.job",
    "dedupe": "curation.dedupe.dedupe",
    "delete": "writing.delete",
    "extract": "curation.extract.extract",
    "filter": "filtering",
    "forget": "tracing.forget",
    "import_data": "importing.import_data",
    "index": "tokens.index",
    "info": "converting.info",
    "lengths": "tokens.lengths",
    "merge": "tokens.merge",
    "mount": "mounting.mount",
    "numbers": "tokens.numbers",
    "open": "samples.open",
    "open_store": "storage",
    "plan": "planning.overview",
    "prepare": "indexing.prepare",
    "prepare_media": "indexing.prepare_media",
    "preview": "samples.preview",
    "repair": "indexing.repair",
    "report": "web.report",
    "reshard": "writing.reshard",
    "run": "pipelines.run",
    "serve": "web.serve",
    "show": "web.notebook",
    "shuffle": "tokens.shuffle",
    "split": "tokens.split",
    "stat": "curation.stat",
    "tag": "curation.tag",
    "tokenize": "tokens.tokenize",
    "trace": "tracing.trace",
    "with_targets": "samples.targets",
    "write": "writing.write",
    "writer": "writing.write",
}
_HINTS = {
    **dict.fromkeys(("load_dataset", "load", "read", "load_from_disk", "IterableDataset"), "Use fm.open(path)."),
    **dict.fromkeys(
        ("DataLoader", "StatefulDataLoader", "dataloader", "get_loader"), "Use fm.Loader(plan, batch_size)."
    ),
    **dict.fromkeys(
        ("interleave", "interleave_datasets", "blend", "Blend", "mixture", "concat", "concatenate_datasets"),
        "Use fm.Plan.over(datasets, weights), or 'blend' or 'concat' in a recipe: fm.Recipe.load(file).plan().",
    ),
    **dict.fromkeys(("ConcatDataset", "ChainDataset"), "Use fm.Plan.over(datasets), or 'concat' in a recipe."),
    **dict.fromkeys(
        ("pack", "Pack", "packing"), "Use 'pack' in a recipe, or fm.PackedPlan(plan, fm.Packing(seq_len=...))."
    ),
    **dict.fromkeys(
        ("random_split", "train_test_split", "Subset"), "Use 'subset' in a recipe, or dataset.select(indices)."
    ),
    **dict.fromkeys(
        ("DistributedSampler", "Sampler", "RandomSampler"), "Use fm.Loader(plan, batch_size, rank=, world_size=)."
    ),
    **dict.fromkeys(("collate", "default_collate"), "It is an argument: fm.Loader(..., collate=function)."),
    **dict.fromkeys(
        ("ShardWriter", "TarWriter", "MDSWriter", "save"), "Use fm.write(samples, path), or fm.writer(path)."
    ),
    **dict.fromkeys(("import_", "ingest", "from_files"), "Use fm.import_data(sources, output)."),
    **dict.fromkeys(("compose", "map", "Compose"), "Use fm.Loader(..., transform=function), or dataset.map(function)."),
    "Tokenizer": "Use fm.tokenize(inputs, output, tokenizer=...).",
    "mount_dataset": "Use fm.mount(path, folder).",
}
"""Names that people look for, and what to use."""

if TYPE_CHECKING:
    from feedmill.converting.convert import convert
    from feedmill.converting.info import info
    from feedmill.curation.decontaminate.job import decontaminate
    from feedmill.curation.dedupe.dedupe import dedupe
    from feedmill.curation.extract.extract import extract
    from feedmill.curation.mix.config import FilterConfig
    from feedmill.curation.stat import stat
    from feedmill.curation.tag import tag
    from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound, StorageError, TrustError
    from feedmill.filtering import filter
    from feedmill.formats.base import Dataset
    from feedmill.formats.sample import Sample, Source
    from feedmill.formats.tokens.base import TokenDataset
    from feedmill.formats.tokens.windows import WindowDataset
    from feedmill.importing.import_data import import_data
    from feedmill.importing.report import ImportReport
    from feedmill.indexing.check import check
    from feedmill.indexing.prepare import prepare
    from feedmill.indexing.prepare_media import prepare_media
    from feedmill.indexing.repair import RepairReport, repair
    from feedmill.indexing.report import CheckReport, PrepareReport
    from feedmill.jobs.parts import PartEngine
    from feedmill.jobs.ray_engine import RayEngine
    from feedmill.loading.adapters.mapped import PlanDataset
    from feedmill.loading.bench import bench
    from feedmill.loading.caching import cache
    from feedmill.loading.checkpoint import Checkpoint
    from feedmill.loading.cooking import Cooker
    from feedmill.loading.encoder import TaskEncoder
    from feedmill.loading.failures import SkipSample, Substitute
    from feedmill.loading.loader import Loader
    from feedmill.loading.metrics import Telemetry
    from feedmill.loading.workers import Workers
    from feedmill.mounting.mount import mount
    from feedmill.pipelines.run import run
    from feedmill.planning.overview import plan
    from feedmill.planning.packing.options import Packing
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.samples.avdecoder import AVDecoder
    from feedmill.samples.decode import Decoder
    from feedmill.samples.fim import FillInMiddle
    from feedmill.samples.open import open
    from feedmill.samples.preview import preview
    from feedmill.samples.rows import SampleRow
    from feedmill.samples.targets import LossMask, Targets, with_targets
    from feedmill.samples.types import (
        CaptioningSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        SimilarityInterleavedSample,
        TextSample,
        TypedSample,
        VidQASample,
        VQAOCRSample,
        VQASample,
    )
    from feedmill.storage import open_store
    from feedmill.storage.base import Store
    from feedmill.tokens.collaterows import collate_rows
    from feedmill.tokens.decode import decode
    from feedmill.tokens.index import index
    from feedmill.tokens.lengths import lengths
    from feedmill.tokens.merge import merge
    from feedmill.tokens.numbers import numbers
    from feedmill.tokens.shuffle import shuffle
    from feedmill.tokens.split import split
    from feedmill.tokens.tokenize import tokenize
    from feedmill.tokens.transform import TokenizeTransform
    from feedmill.tracing.forget import forget
    from feedmill.tracing.trace import trace
    from feedmill.web.notebook import show
    from feedmill.web.report import report
    from feedmill.web.serve import serve
    from feedmill.writing.add_parts import add_parts
    from feedmill.writing.append import append
    from feedmill.writing.delete import delete
    from feedmill.writing.reshard import reshard
    from feedmill.writing.write import Writer, write, writer

__all__ = [
    "AVDecoder",
    "CaptioningSample",
    "CheckReport",
    "Checkpoint",
    "ConfigError",
    "Cooker",
    "DataError",
    "Dataset",
    "Decoder",
    "FeedmillError",
    "FillInMiddle",
    "FilterConfig",
    "ImageClassificationSample",
    "ImageSample",
    "ImportReport",
    "InterleavedSample",
    "Loader",
    "LossMask",
    "MissingExtra",
    "MultiChoiceVQASample",
    "NotFound",
    "OCRSample",
    "PackedPlan",
    "Packing",
    "PartEngine",
    "Plan",
    "PlanDataset",
    "PrepareReport",
    "RayEngine",
    "Recipe",
    "RepairReport",
    "Sample",
    "SampleRow",
    "SimilarityInterleavedSample",
    "SkipSample",
    "Source",
    "StorageError",
    "Store",
    "Substitute",
    "Targets",
    "TaskEncoder",
    "Telemetry",
    "TextSample",
    "TokenDataset",
    "TokenizeTransform",
    "TrustError",
    "TypedSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "WindowDataset",
    "Workers",
    "Writer",
    "add_parts",
    "append",
    "bench",
    "cache",
    "check",
    "collate_rows",
    "convert",
    "decode",
    "decontaminate",
    "dedupe",
    "delete",
    "extract",
    "filter",
    "forget",
    "import_data",
    "index",
    "info",
    "lengths",
    "merge",
    "mount",
    "numbers",
    "open",
    "open_store",
    "plan",
    "prepare",
    "prepare_media",
    "preview",
    "repair",
    "report",
    "reshard",
    "run",
    "serve",
    "show",
    "shuffle",
    "split",
    "stat",
    "tag",
    "tokenize",
    "trace",
    "with_targets",
    "write",
    "writer",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"feedmill.{_HOME[name]}"), name)
    hint = _HINTS.get(name)
    raise AttributeError(f"module 'feedmill' has no attribute {name!r}{f'. {hint}' if hint else ''}")


def __dir__() -> list[str]:
    return sorted(__all__)
