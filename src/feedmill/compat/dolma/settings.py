"""The settings of Dolma's commands: those of their schemas, and the entries of their lists."""

from __future__ import annotations

from importlib import import_module

from feedmill.compat.dolma.cli import COMMANDS
from feedmill.compat.dolma.config import TREE
from feedmill.formats.settings import Origin, Setting, Table, mapped, no_effect

_CLI = "dolma/cli"
_NEW = "(new)"
"""End of the help of options that Dolma does not have."""


def _field(file: str, name: str, prefix: str = "", *skip: str) -> Origin:
    return Origin("fields", f"{_CLI}/{file}.py", name, prefix, skip=skip)


_WORK = _field("shared", "WorkDirConfig", "work_dir.")
_ORIGINS: dict[str, tuple[Origin, ...]] = {
    "tag": (
        _field("tagger", "TaggerConfig", "", "profile", "work_dir"),
        _field("tagger", "ProfilerConfig", "profile."),
        _WORK,
    ),
    "list": (_field("tagger", "ListTaggerConfig"),),
    "tokens": (
        _field("tokenizer", "TokenizationConfig", "", "tokenizer", "fields", "work_dir"),
        _field("tokenizer", "TokenizerConfig", "tokenizer."),
        _field("tokenizer", "FieldsConfig", "fields."),
        _WORK,
    ),
    "reshard": (
        Origin("fields", "dolma/tokenizer/reshard.py", "ReshardingConfig", skip=("source_prefixes",)),
        Origin("fields", "dolma/tokenizer/reshard.py", "ReshardingPrefixConfig", "source_prefixes."),
    ),
    "stat": (_field("analyzer", "AnalyzerConfig", "", "work_dir"), _WORK),
    "dedupe": (
        _field("deduper", "DeduperConfig", "", "dedupe", "bloom_filter", "compression", "work_dir"),
        _field("deduper", "DedupeConfig", "dedupe.", "documents", "paragraphs"),
        _field("deduper", "DocumentDedupeConfig", "dedupe.documents."),
        _field("deduper", "ParagraphDedupeConfig", "dedupe.paragraphs.", "by_ngram"),
        _field("deduper", "NgramDedupeConfig", "dedupe.paragraphs.by_ngram."),
        _field("deduper", "BloomFilterConfig", "bloom_filter."),
        _field("shared", "CompressionConfig", "compression."),
        _WORK,
    ),
    "mix": (
        _field("mixer", "MixerConfig", "", "streams", "work_dir"),
        _field("mixer", "StreamConfig", "streams.", "output", "filter", "span_replacement", "compression"),
        _field("mixer", "StreamOutputConfig", "streams.output."),
        _field("mixer", "FilterConfig", "streams.filter."),
        _field("mixer", "SpanReplacementConfig", "streams.span_replacement."),
        _field("shared", "CompressionConfig", "streams.compression."),
        _WORK,
    ),
    "warc": (
        _field("warc", "WarcExtractorConfig", "", "pre", "post", "work_dir"),
        _field("warc", "TaggerConfig", "pre."),
        _field("warc", "TaggerConfig", "post."),
        _WORK,
    ),
}
_ENTRIES: dict[str, dict[str, Setting]] = {
    "reshard": {
        "source_prefixes.prefix": mapped("a folder of token files"),
        "source_prefixes.sample_rate": mapped("how often each of its files is taken"),
    },
    "mix": {
        "streams.name": mapped("name of the outputs"),
        "streams.documents": mapped("patterns of document files"),
        "streams.attributes": mapped("names of attribute sets"),
        "streams.output.path": mapped("folder for the outputs"),
        "streams.output.max_size_in_bytes": mapped("size from which the next output begins"),
        "streams.output.discard_fields": mapped("fields that are left out"),
        "streams.output.min_text_length": mapped("shorter texts are left out"),
        "streams.filter.include": mapped("documents that are kept"),
        "streams.filter.exclude": mapped("documents that are left out"),
        "streams.filter.syntax": mapped("jsonpath or jq"),
        "streams.span_replacement.span": mapped("attribute of the spans"),
        "streams.span_replacement.min_score": mapped("lowest score of a span"),
        "streams.span_replacement.max_score": mapped("score below which a span is replaced"),
        "streams.span_replacement.replacement": mapped("text in place of a span"),
        "streams.span_replacement.syntax": mapped("jsonpath or jq"),
        "streams.compression.input": mapped("gz, zst, or empty for none; by default from file names"),
        "streams.compression.output": mapped("likewise"),
    },
}


def _table(name: str) -> Table:
    command = COMMANDS[name]
    schema = getattr(import_module(command.module), command.schema)
    settings = {
        option: no_effect(key.idle) if key.idle else mapped(key.help)
        for option, key in schema.items()
        if key.kind != TREE and not key.help.endswith(_NEW)
    }
    return Table(f"`{name}`", _ORIGINS[name], settings | _ENTRIES.get(name, {}))


FUNCTIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "create_and_run_tagger": (
        "dolma/core/runtime.py",
        "tag",
        {
            "documents": "documents",
            "taggers": "taggers",
            "taggers_modules": "tagger_modules",
            "experiment": "experiment",
            "destination": "destination",
            "debug": "debug",
            "ignore_existing": "ignore_existing",
            "num_processes": "processes",
        },
    ),
    "create_and_run_warc_pipeline": (
        "dolma/warc/processor.py",
        "warc",
        {
            "documents": "documents",
            "destination": "destination",
            "source_name": "source_name",
            "debug": "debug",
            "ignore_existing": "ignore_existing",
            "num_processes": "processes",
            "pre_taggers": "pre.taggers",
            "linearizer_name": "linearizer",
            "post_taggers": "post.taggers",
            "store_html_in_metadata": "store_html_in_metadata",
            "skip_no_pre_taggers": "pre.skip",
            "skip_no_post_taggers": "post.skip",
        },
    ),
    "tokenize_in_parallel": (
        "dolma/tokenizer/executor.py",
        "tokens",
        {
            "sources": "documents",
            "destination": "destination",
            "num_writers": "processes",
            "num_readers": "files_per_process",
            "local_shuffle": "batch_size",
            "ring_size": "ring_size",
            "tokenizer_name_or_path": "tokenizer.name_or_path",
            "bos_token_id": "tokenizer.bos_token_id",
            "eos_token_id": "tokenizer.eos_token_id",
            "segment_before_tokenization": "tokenizer.segment_before_tokenization",
            "encode_special_tokens": "tokenizer.encode_special_tokens",
            "seed": "seed",
            "max_size": "max_size",
            "dtype": "dtype",
            "sample_ring_prop": "sample_ring_prop",
            "use_fast_tokenizer": "tokenizer.fast",
            "text_field_name": "fields.text_field_name",
            "text_field_type": "fields.text_field_type",
            "id_field_name": "fields.id_field_name",
            "id_field_type": "fields.id_field_type",
        },
    ),
}
"""Function of Python -> its module in Dolma, its command, and its parameters with the options that they are."""

_RETRIED = no_effect("reads are retried by the stores")
_BESIDE = no_effect("the records of a run are beside its output")
_OTHERS = {
    "create_and_run_tagger": {
        "skip_on_failure": mapped("true: a file on which a tagger fails is skipped, and in the report's `failed`"),
        "metadata": _BESIDE,
        "seed": no_effect("nothing is random"),
        "retries_on_error": _RETRIED,
        **dict.fromkeys(
            ("profile_enable", "profile_output", "profile_steps", "profile_sort_key", "profile_lines"),
            no_effect("use an external profiler"),
        ),
    },
    "create_and_run_warc_pipeline": {
        "metadata": _BESIDE,
        "seed": no_effect("nothing is random"),
        "skip_on_failure": no_effect("records that cannot be read are left out and reported"),
        "retries_on_error": _RETRIED,
    },
    "tokenize_in_parallel": {
        "metadata_dir": no_effect("a killed run is resumed without it"),
        "pad_token_id": no_effect("padding is never written"),
        "refresh_tokenizer": no_effect("memory does not leak"),
        "debug": no_effect("a failed unit is named without it"),
    },
}


def _function(name: str) -> Table:
    file, command, options = FUNCTIONS[name]
    settings = {parameter: mapped(f"`{option}` of `{command}`") for parameter, option in options.items()}
    return Table(f"`{name}(...)`", (Origin("parameters", file, name),), settings | _OTHERS[name])


TABLES = (*map(_table, COMMANDS), *map(_function, FUNCTIONS))
