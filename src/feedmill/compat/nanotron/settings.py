"""The settings of Nanotron's ``preprocess_data``, and of its datasets in a training program."""

from __future__ import annotations

from feedmill.formats.settings import Origin, Setting, Table, mapped, no_effect


def _of(name: str, **settings: Setting) -> dict[str, Setting]:
    return {f"{name}.{key}": setting for key, setting in settings.items()}


PREPROCESS = Table(
    face="`preprocess_data`",
    origin=(Origin("options", "tools/preprocess_data.py", "get_args"),),
    settings={
        "tokenizer_name_or_path": mapped("a tokenizer.json, or its folder; nothing is downloaded"),
        "eos_token": mapped("token after every document, without the template"),
        "output_folder": mapped("the folder for the token files"),
        "logging_dir": mapped("folder for the report, `preprocess_data.json`"),
        "n_tasks": mapped("number of token files, to which the inputs are dealt"),
        "dataset": mapped("`jsonl`: a file or folder; `hf`: a folder of `save_to_disk`, or of Parquet files"),
        "column": mapped("field of the text"),
        "split": mapped("`hf`: the split, `train` without it"),
        "glob_pattern": mapped("`jsonl`: pattern of the files in the folder"),
    },
)
CLASSES = Table(
    face="datasets in a training program",
    origin=(
        Origin("parameters", "nanotron/data/nanoset.py", "Nanoset.__init__", "Nanoset."),
        Origin(
            "parameters",
            "nanotron/data/nemo_dataset/blendable_dataset.py",
            "BlendableDataset.__init__",
            "BlendableDataset.",
        ),
        Origin(
            "parameters",
            "nanotron/data/dataloader_builder.py",
            "build_nanoset_dataloader",
            "build_nanoset_dataloader.",
        ),
    ),
    settings={
        **_of(
            "Nanoset",
            dataset_folders=mapped("the folders"),
            sequence_length=mapped("tokens of a sample, without the last target"),
            token_size=mapped("bytes per token; an error if a file has another size"),
            train_split_num_samples=mapped("number of samples"),
            dataset_weights=mapped("one per folder; without them, each sample once per epoch"),
            random_seed=mapped("seed of the order"),
            use_cache=no_effect("the index is computed when it is needed"),
            eos_token_id=mapped("the id that ends documents, for positions; without it, the index of documents"),
            return_positions=mapped("whether samples have `positions`"),
        ),
        **_of(
            "BlendableDataset",
            datasets=mapped("the datasets"),
            weights=mapped("one per dataset"),
            size=mapped("number of samples"),
            parallel_context=no_effect("no process group is needed"),
            seed=no_effect("nothing is random, as in Nanotron"),
            consumed_tokens_per_dataset_folder=mapped("first values of `consumed_tokens`"),
            offsets_in_samples=mapped("samples of each folder that earlier stages have read"),
        ),
        **_of(
            "build_nanoset_dataloader",
            dataset=mapped("the dataset"),
            sequence_length=mapped("tokens of a sample, without the last target"),
            parallel_context=mapped("groups and ranks"),
            input_pp_rank=mapped("the rank that gets inputs"),
            output_pp_rank=mapped("the rank that gets labels"),
            micro_batch_size=mapped("samples of a batch"),
            dataloader_num_workers=mapped("workers of the loader"),
            consumed_train_samples=mapped("samples that all ranks have read"),
            dataloader_drop_last=mapped("false: the end is filled with the first samples"),
            dataloader_pin_memory=mapped("whether torch pins memory"),
            use_position_ids=mapped("batches have `position_ids` instead of `input_mask`"),
            use_doc_masking=mapped("position ids begin at 0 in each document"),
        ),
    },
)
TABLES = (PREPROCESS, CLASSES)
