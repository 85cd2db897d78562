"""The settings of Modalities' packing, instruction tuning, commands and datasets."""

from __future__ import annotations

from feedmill.formats.settings import Origin, Setting, Table, alike, mapped, no_effect, refused

_MODELS = "modalities/config/instantiation_models.py"
_CONFIG = "modalities/config/config.py"
_MAIN = "modalities/__main__.py"
_DATASET = "modalities/dataloader/dataset.py"
_TOKENIZER = "modalities/tokenization/tokenizer_wrapper.py"
_QUEUES = no_effect("documents are read and written in batches of bytes")
_SIZES = mapped("percentage of the conversations")
_TEXT = mapped("a folder on this machine, or the tokenizer.json in it")
_CHANGES = "it would change the tokens of documents; `feedmill filter --max-length` drops long ones"


PACKING = Table(
    face="`settings` of `pack_encoded_data`",
    origin=(Origin("fields", _MODELS, "PackedDatasetComponentsInstantiationModel.PackedDatasetSettings"),),
    settings={
        "src_path": mapped("the JSONL file"),
        "dst_path": mapped("the file to write; without it, beside the source"),
        "index_path": mapped("an index that must cover all lines of the file; without it, one beside the file must"),
        "jq_pattern": mapped("the text of a line"),
        "eod_token": mapped("the token after each document"),
        "num_cpus": no_effect("number of processes; the file is the same"),
        **alike(_QUEUES, "processing_batch_size raw_samples_queue_size processed_samples_queue_size"),
    },
    open=True,
)
TOKENIZER = Table(
    face="`tokenizer: config` of `pack_encoded_data`",
    origin=(
        Origin("fields", _CONFIG, "PreTrainedHFTokenizerConfig"),
        Origin("fields", _CONFIG, "PreTrainedSPTokenizerConfig"),
    ),
    settings={
        "pretrained_model_name_or_path": _TEXT,
        "tokenizer_model_file": mapped("a SentencePiece model"),
        "special_tokens": mapped("an error if one is not a special token of the tokenizer's own files"),
        "truncation": refused(_CHANGES),
        "padding": refused(_CHANGES, "do_not_pad"),
        "max_length": no_effect("only with truncation or padding"),
    },
)
INSTRUCTION = Table(
    face="a configuration of `prepare_instruction_tuning_data`",
    origin=(
        Origin(
            "fields",
            _MODELS,
            "InstructionTuningDataInstantiationModel",
            skip=("settings", "instruction_data_transformation"),
        ),
        Origin("fields", _MODELS, "InstructionTuningDataInstantiationModel.Settings", "settings."),
        Origin(
            "fields",
            _MODELS,
            "InstructionTuningDataInstantiationModel.InstructionDataTransformation",
            "instruction_data_transformation.",
        ),
        Origin("fields", _MODELS, "SplitConfig", "settings.split_config.", skip=("splitting",)),
        Origin("fields", _MODELS, "Splitting", "settings.split_config.splitting."),
    ),
    settings={
        "jinja2_chat_template": mapped("the template of a conversation"),
        "chat_template_data": mapped("values of the template"),
        "settings.src_path": mapped("the JSONL file of conversations"),
        "settings.dst_path": mapped("folder and name of the files to write"),
        "settings.messages_key": mapped("the messages of a line"),
        "settings.pbin_creation_config_file_path": mapped("the packing configuration of each split"),
        "settings.split_config": mapped("the splits; without it, all conversations are `train`"),
        "instruction_data_transformation.role_mapping": mapped("roles of the messages"),
        "settings.split_config.seed": mapped("seed of the splits"),
        **{f"settings.split_config.splitting.{part}": _SIZES for part in ("train", "val", "test")},
    },
    open=True,
)
COMMANDS = Table(
    face="options of `modalities data ...`",
    origin=tuple(
        Origin("options", _MAIN, name)
        for name in (
            "entry_point_data_prepare_instruction_tuning_data",
            "CMD_entry_point_data_create_raw_index",
            "CMD_entry_point_pack_encoded_data",
            "CMD_create_shuffled_dataset_chunk",
            "CMD_create_shuffled_jsonl_dataset_chunk",
            "CMD_entry_point_merge_packed_data",
            "CMD_shuffle_tokenized_data",
            "CMD_shuffle_jsonl_data",
        )
    ),
    settings={
        **alike(mapped("the configuration"), "config_file_path config_path"),
        **alike(mapped("the files to read"), "src_path src_paths input_data_path input_data_root_path"),
        "input_file_list_path": mapped("the list of the files to read"),
        **alike(mapped("the file to write"), "index_path target_path output_data_path output_chunk_file_path"),
        "file_existence_policy": mapped("what to do if the target exists"),
        **alike(mapped("the chunk, and their number"), "chunk_id num_chunks"),
        **alike(mapped("seed of the order; without it, one is drawn and shown"), "seed global_seed"),
        "batch_size": no_effect("batches are limited by bytes; the order is the same"),
    },
)


def _class(name: str, file: str, **settings: Setting) -> tuple[Origin, dict[str, Setting]]:
    return Origin("parameters", file, f"{name}.__init__", f"{name}."), {
        f"{name}.{key}": setting for key, setting in settings.items()
    }


_PATH, _KEY, _BLOCK = mapped("the file"), mapped("key of the tokens in a sample"), mapped("tokens of a sample")
_LOADED = no_effect("the index is mapped, not loaded")
_OVERLAP = mapped("the last token of a block is the first of the next")
_FACES = (
    _class(
        "MemMapDataset",
        _DATASET,
        raw_data_path=_PATH,
        tokenizer=mapped("object with `tokenize(text)`"),
        sample_key=no_effect("unused, as in Modalities"),
        index_path=mapped("the index of the lines; without it, one beside the file, or one made in memory"),
        jq_pattern=mapped("the text of a line"),
    ),
    _class("PackedMemMapDatasetBase", _DATASET, raw_data_path=_PATH, sample_key=_KEY, load_index=_LOADED),
    _class(
        "PackedMemMapDatasetContinuous",
        _DATASET,
        raw_data_path=_PATH,
        sample_key=_KEY,
        block_size=_BLOCK,
        reuse_last_target=_OVERLAP,
        load_index=_LOADED,
    ),
    _class("PackedMemMapDatasetMegatron", _DATASET, raw_data_path=_PATH, sample_key=_KEY, block_size=_BLOCK),
    _class("CombinedDataset", _DATASET, datasets=mapped("datasets, one after another")),
    _class(
        "PreTrainedHFTokenizer",
        _TOKENIZER,
        pretrained_model_name_or_path=_TEXT,
        truncation=mapped("cut the ids to `max_length`, which it needs"),
        padding=refused("a text has no batch to be padded to", "do_not_pad"),
        max_length=mapped("see `truncation`"),
        special_tokens=mapped("an error if one is not in the vocabulary"),
    ),
    _class("PreTrainedSPTokenizer", _TOKENIZER, tokenizer_model_file=mapped("a SentencePiece model")),
)
CLASSES = Table(
    face="datasets and tokenizers in a training program",
    origin=tuple(origin for origin, _ in _FACES),
    settings={name: setting for _, settings in _FACES for name, setting in settings.items()},
)
TABLES = (PACKING, TOKENIZER, INSTRUCTION, COMMANDS, CLASSES)
