"""Energon's submodules, for imports such as ``from feedmill.compat.energon.cache.base import Lazy``.

Each module takes its names from the package, or from the file that defines them (`feedmill.compat.modules`).
"""

from __future__ import annotations

_WRAPPER_MODULES = {
    "base": "BaseWrapperDataset",
    "batch_dataset": "BatchDataset",
    "blend_dataset": "BlendDataset",
    "concat_dataset": "ConcatDataset",
    "epochize_dataset": "EpochizeDataset",
    "filter_dataset": "FilterDataset",
    "group_batch_dataset": "GroupBatchDataset",
    "iter_map_dataset": "IterMapDataset",
    "limit_dataset": "LimitDataset",
    "map_dataset": "MapDataset",
    "mix_batch_dataset": "MixBatchDataset concat_pad generic_concat homogeneous_concat_mix",
    "packing_dataset": "PackingDataset",
    "repeat_dataset": "RepeatDataset",
    "shuffle_buffer_dataset": "ShuffleBufferDataset",
    "skip": "SkipSample",
}
_WRAPPERS = {"wrappers": " ".join(_WRAPPER_MODULES.values())} | {
    f"wrappers.{name}": names for name, names in _WRAPPER_MODULES.items()
}

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
    **_WRAPPERS,
}
"""Module -> its names, which `feedmill.compat.energon` has too."""

_PACKAGE = "feedmill.compat.energon"


def _from(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_CLIPS = _from("feedmill.samples.avdecoder", "get_clips_uniform get_single_frames_uniform")
_METADATA = {
    "MediaMetadataBase": "feedmill.samples.mediafacts:MediaMetadata",
    **_from(f"{_PACKAGE}.media_files", "MediaMetadataType deserialize_media_metadata serialize_media_metadata"),
}
_TOOLS = ("checkpoint", "info", "lint", "mount", "prepare", "prepare_media", "preview")

INTERNALS: dict[str, dict[str, str]] = {
    "av": _CLIPS,
    "av.av_data": {"AVData": "feedmill.samples.avdecoder:AVData"},
    "av.av_decoder": {"AVDecoder": "feedmill.samples.avdecoder:TorchAVDecoder"},
    "av.utils": _CLIPS,
    "cache": {"CacheFileLazy": "feedmill.loading.cachepool:FileCacheLazy"},
    "cache.file_cache_pool": {"CacheFileLazy": "feedmill.loading.cachepool:FileCacheLazy"},
    "flavors.webdataset.aggregator_pool": _from(f"{_PACKAGE}.aggregator_pool", "AggregatorPool BaseAggregator"),
    "flavors.webdataset.structs": _from(f"{_PACKAGE}.reading", "DatasetSubset"),
    "media": _METADATA,
    "media.extractor": _from(f"{_PACKAGE}.media_files", "MediaFilterConfig MediaFilterStrategy"),
    "media.filesystem_prepare": _from(f"{_PACKAGE}.media_files", "prepare_filesystem_dataset"),
    "media.metadata": _METADATA,
    "tools": {},
    **{f"tools.{tool}": {"command": f"{_PACKAGE}.cli.main:{tool}_command"} for tool in _TOOLS},
}
"""Module -> names that the package itself does not have -> where each is defined."""
INTERNALS["tools.checkpoint"] |= {
    f"command_{name}": f"{_PACKAGE}.cli.main:checkpoint_{name}_command" for name in ("info", "redist")
}

_NO_LOGS = "`feedmill trace` shows what each step of a run saw"
_ROWS = "`feedmill prepare` writes the index of a folder"
ABSENT = {
    "AVProbeIndex": "AVDecoder finds frames without it",
    "AVProbeIndexEntry": "AVDecoder finds frames without it",
    "CustomTransform": "use torchvision's transforms one after another",
    "DuplicateSampleKeyError": "`feedmill prepare` raises feedmill.errors.DataError",
    "GcDataset": "call gc.collect() in the loop",
    "IndexMediaMetadata": _ROWS,
    "IndexSample": _ROWS,
    "IndexSamplePart": _ROWS,
    "JoinedWebdatasetFactory": "write the join in a metadataset",
    "LogSampleDataset": _NO_LOGS,
    "MergeTransform": "use torchvision's transforms one after another",
    "SqliteIndexWriter": _ROWS,
    "WatchdogDataset": "give watchdog_timeout_seconds and fail_on_timeout to the loader",
}
"""Name of Energon -> what to do instead."""
_WITHOUT_NAMES = (
    "av.av_reader",
    "flavors.webdataset.indexing",
    "flavors.webdataset.prepare",
    "tools.analyze_debug",
    "transforms",
    "wrappers.gc_dataset",
    "wrappers.log_sample_dataset",
    "wrappers.watchdog_dataset",
)
"""Modules all of whose names are absent: to import one of their names is an error that says what to do instead."""

TABLE: dict[str, dict[str, str]] = {
    module: {name: f"{_PACKAGE}:{name}" for name in MODULES.get(module, "").split()} | INTERNALS.get(module, {})
    for module in (*MODULES, *INTERNALS, *_WITHOUT_NAMES)
}
"""Module -> its names -> where each is found."""
