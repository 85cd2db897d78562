"""Drop-in module for Megatron Energon 7.4: change the import of a training script, and it runs with Feedmill.

    from feedmill.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset

The sample order, the state and the errors are Feedmill's. docs/migration/energon.md lists the differences. This package
has no logic, only Energon's names and signatures. Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from feedmill._version import __version__
from feedmill.compat.energon.edataclass import edataclass  # imported eagerly, as its module has the same name
from feedmill.compat.energon.modules import ABSENT, TABLE
from feedmill.compat.modules import install, refuse

_FEEDMILL = {
    "AVData": "samples.avdecoder",
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
    "TraversedDatasetReference": "planning.recipes.simple",
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
    "FileCacheLazy": ("loading.cachepool", "FileCacheLazy"),
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
    "get_val_datasets": "opened_factory",
    "log_exception": "errors",
    "reraise_exception": "errors",
    "traverse_metadataset": "metadatasets",
}
_DATASETS = {
    "BaseCoreDatasetFactory": "opened_factory",
    "BaseWebdatasetFactory": "factories",
    "BatchDataset": "views",
    "BlendDataset": "views",
    "ConcatDataset": "views",
    "CrudeJsonlDatasetFactory": "factories",
    "CrudeWebdataset": "factories",
    "DatasetLoader": "metadatasets",
    "DatasetLoaderInterface": "metadatasets",
    "DefaultCrudeJsonlDatasetFactory": "factories",
    "DefaultDecoderWebdatasetFactory": "factories",
    "DefaultGenericWebdatasetFactory": "factories",
    "EpochizeDataset": "views",
    "FilterDataset": "views",
    "GroupBatchDataset": "views",
    "IterMapDataset": "views",
    "LimitDataset": "views",
    "MapDataset": "views",
    "Metadataset": "metadatasets",
    "MetadatasetV2": "metadatasets",
    "MixBatchDataset": "views",
    "PackingDataset": "views",
    "RepeatDataset": "views",
    "SavableDataset": "base",
    "ShuffleBufferDataset": "views",
    "StandardWebdatasetFactory": "factories",
    "concat_pad": "views",
    "generic_concat": "views",
    "homogeneous_concat_mix": "views",
    "load_dataset": "metadatasets",
}
_DEEPER = {
    "AuxDatasetReference": "metadatasets",
    "AuxFilesystemReference": "metadatasets",
    "DatasetBlendMode": "metadatasets",
    "DatasetReference": "metadatasets",
    "INDEX_SQLITE_FILENAME": "factories",
    "INDEX_UUID_FILENAME": "factories",
    "INFO_JSON_FILENAME": "factories",
    "INFO_YAML_FILENAME": "factories",
    "LoadedDataset": "metadatasets",
    "LoadedDatasetList": "metadatasets",
    "MAIN_FOLDER_NAME": "factories",
    "MetadatasetBlend": "metadatasets",
    "MetadatasetJoin": "metadatasets",
    "SPLIT_YAML_FILENAME": "factories",
    "BaseWrapperDataset": "views",
    "get_dataset_from_config": "opened_factory",
}
"""Names of Energon's modules that its package does not have."""
_TYPED = ("Captioning", "ImageClassification", "Image", "Interleaved", "MultiChoiceVQA", "OCR", "SimilarityInterleaved")
_TYPED_FACTORIES = tuple(f"{name}Webdataset" for name in (*_TYPED, "Text", "VQAOCR", "VQA", "VidQA"))

__all__ = ["__version__", "edataclass", *sorted({*_FEEDMILL, *_RENAMED, *_HERE, *_DATASETS, *_TYPED_FACTORIES})]

install(__name__, TABLE, ABSENT)


def __getattr__(name: str) -> Any:
    if name in _FEEDMILL:
        return getattr(import_module(f"feedmill.{_FEEDMILL[name]}"), name)
    if name in _RENAMED:
        module, feedmill_name = _RENAMED[name]
        return getattr(import_module(f"feedmill.{module}"), feedmill_name)
    if name in _HERE:
        return getattr(import_module(f"{__name__}.{_HERE[name]}"), name)
    if name in _DATASETS or name in _DEEPER:
        return getattr(import_module(f"{__name__}.{_DATASETS.get(name) or _DEEPER[name]}"), name)
    if name in _TYPED_FACTORIES:
        made = globals()[name] = import_module(f"{__name__}.factories").typed_factory(name)
        return made
    refuse(__name__, ABSENT, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
