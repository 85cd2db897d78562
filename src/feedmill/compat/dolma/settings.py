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


TABLES = tuple(map(_table, COMMANDS))
