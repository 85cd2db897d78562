"""Create Energon's submodules, for imports such as ``from feedmill.compat.energon.cache.base import Lazy``.

The modules are created from one table when `feedmill.compat.energon` is imported. They take each name from that package
when it is first used.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from feedmill.compat.energon.internals import INTERNALS
from feedmill.compat.energon.wrapper_names import WRAPPERS

MODULES: dict[str, str] = {
    "av": "AVData AVDecoder",
    "cache": (
        "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder Lazy "
        "MockLazy NoCachePool PrimaryFileStore SystemFileStore"
    ),
    "cache.base": "CachePool FileStore Lazy MockLazy PrimaryFileStore",
    "cache.file_cache_pool": "FileCacheLazy FileStoreCachePool",
    "cache.file_store": "DecodeFileStore JsonlFileStore SystemFileStore WebdatasetFileStore",
    "cache.no_cache": "DirectLazy NoCachePool",
    "dataset_config": "get_dataset_from_config",
    "flavors": (
        "BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningWebdataset CrudeJsonlDatasetFactory CrudeWebdataset "
        "DefaultCrudeJsonlDatasetFactory DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory "
        "ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset MultiChoiceVQAWebdataset OCRWebdataset "
        "SavableDataset SimilarityInterleavedWebdataset StandardWebdatasetFactory TextWebdataset VQAOCRWebdataset "
        "VQAWebdataset VidQAWebdataset AVData AVDecoder "
        "CaptioningSample CrudeSample ImageClassificationSample ImageSample InterleavedSample MultiChoiceVQASample "
        "OCRSample Sample SampleDecoder SimilarityInterleavedSample TextSample VQAOCRSample VQASample VidQASample"
    ),
    "flavors.base_dataset": "BaseCoreDatasetFactory Sample SavableDataset",
    "flavors.captioning": "CaptioningSample CaptioningWebdataset",
    "flavors.crude": "CrudeSample CrudeWebdataset",
    "flavors.jsonl": "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "flavors.jsonl.crude_jsonl_dataset": "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "flavors.image": "ImageSample ImageWebdataset",
    "flavors.image_classification": "ImageClassificationSample ImageClassificationWebdataset",
    "flavors.interleaved": "InterleavedSample InterleavedWebdataset",
    "flavors.multichoice_vqa": "MultiChoiceVQASample MultiChoiceVQAWebdataset",
    "flavors.ocr": "OCRSample OCRWebdataset",
    "flavors.similarity_interleaved": "SimilarityInterleavedSample SimilarityInterleavedWebdataset",
    "flavors.text": "TextSample TextWebdataset",
    "flavors.vid_qa": "VidQASample VidQAWebdataset",
    "flavors.vqa": "VQASample VQAWebdataset",
    "flavors.vqa_and_ocr": "VQAOCRSample VQAOCRWebdataset",
    "flavors.webdataset": (
        "AVData AVDecoder BaseWebdatasetFactory DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory "
        "MAIN_FOLDER_NAME SampleDecoder StandardWebdatasetFactory"
    ),
    "flavors.webdataset.base_webdataset": "BaseWebdatasetFactory",
    "flavors.webdataset.config": (
        "INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME INFO_JSON_FILENAME INFO_YAML_FILENAME MAIN_FOLDER_NAME "
        "SPLIT_YAML_FILENAME"
    ),
    "flavors.webdataset.default_decoder_webdataset": "DefaultDecoderWebdatasetFactory",
    "flavors.webdataset.default_generic_webdataset": "DefaultGenericWebdatasetFactory",
    "flavors.webdataset.sample_decoder": "SampleDecoder",
    "flavors.webdataset.standard_webdataset": "StandardWebdatasetFactory",
    "media": "AVMetadata ImageMetadata",
    "media.metadata": "AVMetadata ImageMetadata",
    "metadataset": (
        "DatasetBlendMode DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 TraversedDatasetReference "
        "load_dataset prepare_metadataset traverse_metadataset"
    ),
    "metadataset.dataset_loader": "DatasetLoader",
    "metadataset.loader": "TraversedDatasetReference load_dataset prepare_metadataset traverse_metadataset",
    "metadataset.loader_interface": (
        "DatasetBlendMode DatasetLoaderInterface LoadedDataset LoadedDatasetList TraversedDatasetReference"
    ),
    "metadataset.metadataset": "Metadataset",
    "metadataset.metadataset_v2": (
        "AuxDatasetReference AuxFilesystemReference DatasetReference MetadatasetBlend MetadatasetJoin MetadatasetV2"
    ),
    "savable_loader": "BasicDataLoader SavableDataLoader",
    "task_encoder": (
        "AugmentTaskEncoder Batch Cooker DefaultTaskEncoder TaskEncoder basic_sample_keys batch_list "
        "batch_pad_stack batch_stack cooker generic_batch get_train_dataset get_val_dataset get_val_datasets "
        "stateless"
    ),
    "task_encoder.base": (
        "AugmentTaskEncoder Batch DefaultTaskEncoder TaskEncoder batch_list batch_pad_stack batch_stack "
        "generic_batch stateless"
    ),
    "task_encoder.cooking": "Cooker basic_sample_keys cooker",
    "task_encoder.loader": "get_train_dataset get_val_dataset get_val_datasets",
    **WRAPPERS,
}
"""Module -> its names, which `feedmill.compat.energon` has too."""


def install(package: str) -> None:
    """Make the modules of both tables importable below `package`, which is being imported."""
    modules = sorted({*MODULES, *INTERNALS})  # a package precedes its modules
    for name in modules:
        full = f"{package}.{name}"
        public, internal = frozenset(MODULES.get(name, "").split()), INTERNALS.get(name, {})
        spec = ModuleSpec(full, None, is_package=any(other.startswith(f"{name}.") for other in modules))
        module = ModuleType(full, "Names of Energon's module of this name.")
        module.__spec__ = spec
        module.__package__ = spec.parent
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        module.__dict__["__all__"] = sorted({*public, *internal})
        module.__dict__["__getattr__"] = partial(_named, package, full, public, internal)
        sys.modules[full] = module
        parent, _, last = full.rpartition(".")
        if parent in sys.modules:  # else the parent has a file, which is imported when it is first used
            setattr(sys.modules[parent], last, module)


def _named(package: str, module: str, public: frozenset[str], internal: dict[str, str], name: str) -> Any:
    if name in internal:
        where, _, there = internal[name].partition(":")
        return getattr(import_module(where), there)
    if name not in public:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(import_module(package), name)
