"""Drop-in module for Megatron Energon 7.4: change the import of a training script, and it runs with Feedmill.

    from feedmill.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset

The sample order, the state and the errors are Feedmill's. docs/migration/energon.md lists the differences. This package
has no logic, only Energon's names and signatures. Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from feedmill import __version__
from feedmill.compat.energon.edataclass import edataclass  # imported eagerly, as its module has the same name
from feedmill.compat.energon.modules import install

_FEEDMILL = {
    "AVData": "samples.avdata",
    "AVMetadata": "samples.mediafacts",
    "AugmentTaskEncoder": "loading.typed",
    "Batch": "loading.tensors",
    "CachePool": "loading.cachepool",
    "CaptioningSample": "samples.types",
    "Cooker": "loading.cooking",
    "CrudeSample": "samples.crude",
    "DirectLazy": "loading.cachepool",
    "FileStore": "samples.stores",
    "ImageClassificationSample": "samples.types",
    "ImageMetadata": "samples.mediafacts",
    "ImageSample": "samples.types",
    "InterleavedSample": "samples.types",
    "Lazy": "loading.cachepool",
    "MockLazy": "loading.cachepool",
    "MultiChoiceVQASample": "samples.types",
    "NoCachePool": "loading.cachepool",
    "OCRSample": "samples.types",
    "PrimaryFileStore": "samples.stores",
    "SampleDecoder": "samples.decode",
    "SimilarityInterleavedSample": "samples.types",
    "TextSample": "samples.types",
    "TraversedDatasetReference": "planning.traverse",
    "VQAOCRSample": "samples.types",
    "VQASample": "samples.types",
    "VidQASample": "samples.types",
    "basic_sample_keys": "samples.crude",
    "batch_list": "loading.tensors",
    "batch_pad_stack": "loading.tensors",
    "batch_stack": "loading.tensors",
    "cooker": "loading.cooking",
    "generic_batch": "loading.tensors",
    "stateless": "loading.encoder",
}
_RENAMED = {
    "AVDecoder": ("samples.avdecoder", "TorchAVDecoder"),
    "DefaultTaskEncoder": ("loading.typed", "TypedTaskEncoder"),
    "FileCacheLazy": ("loading.diskpool", "FileCacheLazy"),
    "Sample": ("samples.types", "TypedSample"),
    "TaskEncoder": ("loading.typed", "TypedTaskEncoder"),
    "prepare_metadataset": ("indexing.prepare_joins", "prepare_joins"),
}
_HERE = {
    "BasicDataLoader": "loader",
    "DecodeFileStore": "file_stores",
    "EPath": "epathlib",
    "EnergonDataset": "datasets",
    "FatalSampleError": "errors",
    "FileStoreCachePool": "file_stores",
    "FileStoreDecoder": "file_stores",
    "JsonlFileStore": "file_stores",
    "SavableDataLoader": "loader",
    "SkipSample": "errors",
    "SourceInfo": "source_info",
    "SystemFileStore": "file_stores",
    "WebdatasetFileStore": "file_stores",
    "WorkerConfig": "worker",
    "get_loader": "loader",
    "get_savable_loader": "loader",
    "get_train_dataset": "datasets",
    "get_val_dataset": "datasets",
    "get_val_datasets": "datasets",
    "log_exception": "errors",
    "reraise_exception": "errors",
    "traverse_metadataset": "traversal",
}
_PIPELINES = "use feedmill.Plan and feedmill.TaskEncoder instead of pipelines"
_FACTORIES = "use feedmill.open for datasets, and feedmill.Recipe.load for metadatasets"
_ABSENT = {
    **dict.fromkeys(("concat_pad", "generic_concat", "homogeneous_concat_mix"), _PIPELINES),
    **dict.fromkeys(("DatasetLoader", "DatasetLoaderInterface", "Metadataset", "MetadatasetV2"), _FACTORIES),
    "load_dataset": _FACTORIES,
}

__all__ = ["__version__", "edataclass", *sorted({*_FEEDMILL, *_RENAMED, *_HERE})]

install(__name__)


def __getattr__(name: str) -> Any:
    if name in _FEEDMILL:
        return getattr(import_module(f"feedmill.{_FEEDMILL[name]}"), name)
    if name in _RENAMED:
        module, feedmill_name = _RENAMED[name]
        return getattr(import_module(f"feedmill.{module}"), feedmill_name)
    if name in _HERE:
        return getattr(import_module(f"{__name__}.{_HERE[name]}"), name)
    replacement = _why_absent(name)
    if replacement is not None:
        raise ImportError(f"feedmill.compat.energon has no {name}: {replacement}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _why_absent(name: str) -> str | None:
    """Return what replaces an unsupported name of Energon; None for other names."""
    if name.endswith(("Webdataset", "Factory")):
        return _FACTORIES
    return _ABSENT.get(name) or (_PIPELINES if name.endswith("Dataset") else None)


def __dir__() -> list[str]:
    return sorted(__all__)
