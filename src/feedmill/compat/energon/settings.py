"""The settings of Energon's functions, datasets, factories and hooks; those of files are where these are read."""

from __future__ import annotations

from feedmill.formats.settings import Fate, Origin, Setting, Table, mapped, no_effect

_E = "megatron/energon"
_LOADER = f"{_E}/task_encoder/loader.py"
_WDS = f"{_E}/flavors/webdataset"
_JSONL = f"{_E}/flavors/jsonl"


def _never(why: str) -> Setting:
    """Return a setting that is an error with every value."""
    return Setting(Fate.REFUSED, why)


def _parameters(file: str, *names: str) -> tuple[Origin, ...]:
    return tuple(Origin("parameters", f"{_E}/{file}", name) for name in names)


_FACTORIES = (
    *_parameters("flavors/webdataset/base_webdataset.py", "BaseWebdatasetFactory.__init__"),
    *_parameters("flavors/webdataset/default_generic_webdataset.py", "DefaultGenericWebdatasetFactory.__init__"),
    *_parameters("flavors/webdataset/default_decoder_webdataset.py", "DefaultDecoderWebdatasetFactory.__init__"),
    *_parameters("flavors/webdataset/standard_webdataset.py", "StandardWebdatasetFactory.__init__"),
    *_parameters("flavors/crude.py", "CrudeWebdataset.__init__"),
    *_parameters(
        "flavors/jsonl/crude_jsonl_dataset.py",
        "CrudeJsonlDatasetFactory.__init__",
        "DefaultCrudeJsonlDatasetFactory.__init__",
    ),
)
_CONFIG = _parameters("dataset_config.py", "get_dataset_from_config")
_GET_DATASETS = _parameters("metadataset/dataset_loader.py", "DatasetLoader.get_datasets")
_SUBSET = mapped(
    "`DatasetSubset`: the same samples as in Energon; for a metadataset shares of each of its datasets, in decimal"
    " (an absolute range only for V1). An empty subset is an error"
)
_COMMON = {
    "path": mapped("prepared folder, JSONL file or metadataset, or the content of a metadataset"),
    "split_part": mapped("name of the split"),
    "worker_config": mapped("the rank and its workers"),
    "dataset_config": mapped("name of another description of a prepared folder"),
    "split_config": mapped("name of another split file of a prepared folder"),
    "subflavors": mapped("data attached to every sample, over that of the files"),
    "subset": _SUBSET,
    "sample_type": mapped("an error if the samples have another type"),
    "part_filter": mapped(
        "parts of crude samples; of a JSONL file all or none. For other data an error, as in Energon; a `part_filter`"
        " in `dataset.yaml` overrides it"
    ),
    "field_map": _never("`dataset.yaml` has it"),
    "sample_loader": _never("`dataset.yaml` has it"),
    "**kwargs": mapped("the words of this table; any other one is an error"),
}
_ITERATED = {
    **_COMMON,
    "batch_size": mapped("samples per batch of a rank; None for single samples"),
    "batch_drop_last": mapped("whether an incomplete last batch is dropped"),
    "packing_buffer_size": mapped("samples from which packs are selected; no effect if a recipe packs"),
    "task_encoder": mapped("the hooks of the task"),
    "auto_decode": mapped("False: parts stay bytes (deprecated in Energon: set the encoder's `decoder`)"),
    "image_decode": mapped("option of the encoder's decoder (deprecated in Energon)"),
    "av_decode": mapped("option of the encoder's decoder (deprecated in Energon)"),
    "video_decode_audio": mapped("option of the encoder's decoder (deprecated in Energon)"),
    "handler": no_effect("use `WorkerConfig.global_error_handler`, as in Energon", warns=True),
    "decoder": _never("it is that of the task encoder"),
    "training": _never("it is decided by the function"),
}

TRAIN = Table(
    face="`get_train_dataset`",
    origin=(
        *_parameters("task_encoder/loader.py", "get_train_dataset"),
        Origin("popped", _LOADER, "_split_kwargs"),
        Origin("popped", _LOADER, "_split_deprecated_dataset_kwargs"),
        *_GET_DATASETS,
        *_CONFIG,
        *_FACTORIES,
    ),
    settings={
        **_ITERATED,
        "shuffle_buffer_size": mapped(
            "None, 0 or 1: only shards are shuffled; above: samples too, over the whole split, for any number. In"
            " stored order, it has no effect, with a warning"
        ),
        "max_samples_per_sequence": mapped(
            "without a buffer: shards are cut into sequences of about that many samples, which are shuffled; with one,"
            " no effect"
        ),
        "parallel_shard_iters": mapped("without a buffer: shards that are read side by side (16); with one, no effect"),
        "shuffle_over_epochs_multiplier": mapped(
            "None: stored order. *n*: each sample *n* times in *n* passes, each a permutation; with `repeat=False` a"
            " loop has *n* passes. -1 (draws with replacement): permutations without end, with a warning"
        ),
        "virtual_epoch_length": mapped("batches of a loop; the next one continues"),
        "repeat": mapped("False: a loop is one pass, see below"),
        "shuffle_over_epochs": _never("it is `shuffle_over_epochs_multiplier` here, as in Energon"),
    },
)
_STORED = no_effect("validation is read in stored order")
VALIDATION = Table(
    face="`get_val_dataset`, `get_val_datasets`",
    origin=(
        *_parameters("task_encoder/loader.py", "get_val_dataset", "get_val_datasets"),
        *TRAIN.origin[1:],
    ),
    settings={
        **_ITERATED,
        "limit": mapped("batches of a loop"),
        "shuffle_over_epochs_multiplier": _STORED,
        "max_samples_per_sequence": _STORED,
        "parallel_shard_iters": _STORED,
        "shuffle_over_epochs": _never("validation is read in stored order"),
    },
)

_ORDER = {
    "shuffle_over_epochs": mapped(
        "None: stored order. *n*: a loop is *n* passes, each a permutation. -1 (draws with replacement): the same"
        " without end, with a warning"
    ),
    "shuffle_over_epochs_multiplier": mapped(
        "the same; it multiplies those of a metadataset. As a field of `DatasetLoader`, no effect, as in Energon"
    ),
    "parallel_shard_iters": mapped("shards that are read side by side; 16 by default"),
    "max_samples_per_sequence": mapped("samples of the sequences that shards are cut into; None for whole shards"),
}
OPENING = Table(
    face="`get_dataset_from_config`, `load_dataset`, `DatasetLoader`",
    origin=(
        *_CONFIG,
        *_parameters("metadataset/loader.py", "load_dataset"),
        Origin("fields", f"{_E}/metadataset/dataset_loader.py", "DatasetLoader"),
        *_parameters("metadataset/dataset_loader.py", "DatasetLoader.get_dataset"),
        *_GET_DATASETS,
        *_FACTORIES,
    ),
    settings={
        **_COMMON,
        **_ORDER,
        "training": mapped("whether samples are shuffled"),
        "decoder": mapped("decodes the parts; None for bytes. A JSONL file is always decoded, as in Energon"),
    },
)
FACTORIES = Table(
    face="factories of datasets",
    origin=_FACTORIES,
    settings={
        "path": mapped("the prepared folder, or the JSONL file"),
        "split_part": mapped("name of the split; `train` by default"),
        "training": mapped("whether samples are shuffled; True by default for prepared folders"),
        "worker_config": mapped("the rank and its workers; by default one rank without workers, for prepared folders"),
        **{name: setting for name, setting in _ORDER.items() if not name.endswith("multiplier")},
        "subset": mapped("`DatasetSubset`: the same samples as in Energon. An empty one is an error"),
        "split_config": mapped("name of another split file"),
        "part_filter": mapped("names of parts, or a function of a name; text names a function of the data (`trust`)"),
        "subflavors": mapped("data attached to every sample"),
        "field_map": mapped("field -> part"),
        "sample_loader": mapped("a function that returns the fields; text names one of the data (`trust`)"),
        "decoder": mapped("decodes the parts; None for bytes. A JSONL file is always decoded, as in Energon"),
        "sample_type": mapped("the type of the samples"),
        "**kwargs": mapped("the settings of the base classes; any other word is an error"),
    },
)
PREPARE = Table(
    face="`prepare_dataset` of the factories",
    origin=(
        Origin("parameters", f"{_WDS}/prepare.py", "WebdatasetPreparator.prepare_dataset"),
        Origin("parameters", f"{_JSONL}/jsonl_prepare.py", "JsonlPreparator.prepare_dataset"),
    ),
    settings={
        "parent_path": mapped("the folder"),
        "path": mapped("the JSONL file"),
        "paths": mapped("shards in the folder, with ranges"),
        "split_parts_ratio": mapped("shares of train, val and test"),
        "split_parts_patterns": mapped("patterns of the shards of each split"),
        "workers": mapped("threads, at most the cores"),
        "tar_index_only": mapped("only the index is made"),
        "media_filter": mapped("parts whose media metadata is added"),
        "split_config": Setting(Fate.REFUSED, "`split.yaml` is written", ("split.yaml",)),
        "shuffle_seed": Setting(Fate.REFUSED, "shards are shuffled by Energon's default or not at all", (42, None)),
        "fix_duplicates": Setting(Fate.REFUSED, "it rewrites tars in place", (False,)),
        "progress_fn": no_effect("there is no progress here: `feedmill prepare` shows it"),
        "index_sqlite_tmp_path": no_effect("`TMPDIR` sets the folder of temporary files"),
    },
)
_NO_LOG = no_effect("no logs are written: `feedmill trace` shows what each step saw", warns=True)
WORKERS = Table(
    face="`WorkerConfig`",
    origin=(
        Origin("fields", f"{_E}/worker.py", "WorkerConfig"),
        *_parameters("worker.py", "WorkerConfig.default_worker_config"),
    ),
    settings={
        "rank": mapped("the rank of this process"),
        "world_size": mapped("the number of ranks"),
        "num_workers": mapped("workers of the rank"),
        "data_parallel_group": mapped("the group over which states are gathered"),
        "seed_offset": mapped("seed of the order and of random numbers"),
        "worker_debug_path": _NO_LOG,
        "worker_log_level": _NO_LOG,
        "global_error_handler": mapped("called for each sample that fails"),
        "restore_error_handler": no_effect("a resume does not encode samples again", warns=True),
        "_worker_debug_file": _never("it is internal"),
        "_worker_debug_file_worker_id": _never("it is internal"),
    },
)
_CHECKPOINTS = no_effect("a state is that of the last item, and resumes without replay", warns=True)
LOADERS = Table(
    face="`get_savable_loader`, `get_loader`, `SavableDataLoader`, `BasicDataLoader`",
    origin=(
        *_parameters("loader.py", "get_savable_loader", "get_loader"),
        *_parameters("savable_loader.py", "SavableDataLoader.__init__", "BasicDataLoader.__init__"),
    ),
    settings={
        "dataset": mapped("the dataset to load"),
        "worker_config": mapped("deprecated in Energon: an error if it differs from that of the dataset"),
        "checkpoint_every_sec": _CHECKPOINTS,
        "checkpoint_every_min_n_samples": _CHECKPOINTS,
        "n_checkpoints": _CHECKPOINTS,
        "gc_collect_every_n_steps": no_effect("call `gc.collect()` in the loop", warns=True),
        "gc_freeze_at_start": no_effect("Feedmill does not freeze objects"),
        "prefetch_factor": mapped("batches per worker that are made ahead"),
        "cache_pool": mapped("given to cookers that need a cache"),
        "watchdog_timeout_seconds": mapped("batches that take longer are logged"),
        "watchdog_initial_timeout_seconds": mapped("the limit for the first item of a loop, with `fail_on_timeout`"),
        "fail_on_timeout": mapped("the process ends if an item takes longer"),
    },
)
_DESCRIBES = no_effect("it only describes the dataset in Energon's `config()`")
_PURE = no_effect("functions are always taken as stateless")
WRAPPERS = Table(
    face="wrappers of datasets",
    origin=tuple(
        Origin("parameters", f"{_E}/wrappers/{module}_dataset.py", f"{name}Dataset.__init__")
        for module, name in (
            ("batch", "Batch"),
            ("blend", "Blend"),
            ("concat", "Concat"),
            ("epochize", "Epochize"),
            ("filter", "Filter"),
            ("group_batch", "GroupBatch"),
            ("iter_map", "IterMap"),
            ("limit", "Limit"),
            ("map", "Map"),
            ("mix_batch", "MixBatch"),
            ("packing", "Packing"),
            ("repeat", "Repeat"),
            ("shuffle_buffer", "ShuffleBuffer"),
        )
    ),
    settings={
        "dataset": mapped("the dataset"),
        "*datasets": mapped("the datasets, one after another"),
        "*dataset_weights": mapped("pairs of a dataset and its weight"),
        "worker_config": mapped("must be that of the datasets"),
        "batch_size": mapped("items per batch"),
        "batcher": mapped("list of items -> batch"),
        "batch_mix_fn": mapped("list of items -> batch"),
        "drop_last": mapped("whether smaller batches are dropped"),
        "fixed_batch_size": mapped("samples per batch; None for the size of the group"),
        "sample_group_key": mapped("sample -> key and batch size of its group"),
        "map_fn": mapped("maps an item"),
        "filter_fn": mapped("whether an item is kept"),
        "iter_map_fn": mapped("iterator -> iterator"),
        "len_map_fn": mapped("length of the dataset -> length of this one"),
        "length": mapped("items of a loop"),
        "reset_after_epoch": no_effect("each loop of a `LimitDataset` begins again"),
        "repeats": mapped("loops, also fractional; None for no end"),
        "restart": no_effect("a loop over all repetitions can follow another one"),
        "buffer_size": mapped("samples from which packs are selected"),
        "pre_packer": mapped("samples -> the samples of each pack"),
        "final_packer": mapped("samples of a pack -> pack"),
        "sample_encoder": mapped("finishes the encoding of a selected sample"),
        "size": no_effect("`ShuffleBufferDataset` is the dataset itself, with a warning: the plan decides the order"),
        "failure_tolerance": mapped(
            "failures in a row that end the iteration; over unbatched samples, the smallest one of all hooks"
        ),
        "pre_packer_failure_tolerance": no_effect("failures of packing end the iteration"),
        "final_packer_failure_tolerance": no_effect("failures of packing end the iteration"),
        "sample_encoder_failure_tolerance": mapped("the same for `sample_encoder`"),
        "stateless_map_fn": _PURE,
        "stateless_iter_fn": _PURE,
        "batcher_stateless": _PURE,
        "final_packer_stateless": _PURE,
        "sample_encoder_stateless": _PURE,
        "map_fn_config": _DESCRIBES,
        "filter_fn_config": _DESCRIBES,
        "iter_map_fn_config": _DESCRIBES,
        "batcher_config": _DESCRIBES,
        "packer_config": _DESCRIBES,
    },
)

_PIPELINE = _never("there is no pipeline of datasets to build")
_INDEX = mapped("see the table above")
HOOKS = Table(
    face="hooks of task encoders",
    origin=tuple(
        Origin("methods", f"{_E}/task_encoder/base.py", name)
        for name in ("TaskEncoder", "DefaultTaskEncoder", "AugmentTaskEncoder")
    ),
    settings={
        "cook_crude_sample": mapped(
            "called with a crude sample, and a generator if it takes one; an error with parameters `cooker` and `aux`"
        ),
        "encode_sample": mapped("called with each sample"),
        "preencode_sample": mapped("called with each sample before packing"),
        "postencode_sample": mapped("called with each selected sample"),
        "select_samples_to_pack": mapped("called with the buffered samples; not if a recipe packs"),
        "pack_selected_samples": mapped("called with the samples of a pack, or with a row that a recipe has packed"),
        "batch": mapped("called with the samples of a batch"),
        "batch_group_criterion": mapped("called with each sample"),
        "encode_batch": mapped("called with each batch"),
        "_batch": mapped("called by `batch`"),
        "decoder": mapped("decodes the parts"),
        "cache": mapped("the cache pool"),
        "current_batch_index": _INDEX,
        "current_sample_index": _INDEX,
        "_is_overridden": _PIPELINE,
        "_load_dataset": _PIPELINE,
        "build_batch": _PIPELINE,
        "build_cook_crude_sample": _PIPELINE,
        "build_encode_sample": _PIPELINE,
        "build_train_datasets": _PIPELINE,
        "build_val_datasets": _PIPELINE,
    },
)
METHODS = Table(
    face="methods of factories",
    origin=(
        Origin("methods", f"{_WDS}/base_webdataset.py", "BaseWebdatasetFactory"),
        Origin("methods", f"{_WDS}/default_generic_webdataset.py", "DefaultGenericWebdatasetFactory"),
        Origin("methods", f"{_WDS}/default_decoder_webdataset.py", "DefaultDecoderWebdatasetFactory"),
        Origin("methods", f"{_JSONL}/crude_jsonl_dataset.py", "CrudeJsonlDatasetFactory"),
        Origin("methods", f"{_JSONL}/crude_jsonl_dataset.py", "DefaultCrudeJsonlDatasetFactory"),
    ),
    settings={
        "load_sample": mapped("called with the parts of each sample"),
        "build": mapped("makes the dataset; an error to override it in a class that `dataset.yaml` names"),
        "as_file_store": mapped("the parts by name"),
        "config": mapped("a description as plain data, of Feedmill's own"),
        "sample_filter": _never("samples are chosen by `exclude` in `split.yaml`, or `feedmill filter`"),
        "_load_sample": _never("use cookers, or a function of `MapDataset`"),
        "_load_sample_raw": _never("override `load_sample`"),
    },
)

TABLES = (TRAIN, VALIDATION, OPENING, FACTORIES, METHODS, PREPARE, WORKERS, LOADERS, WRAPPERS, HOOKS)
