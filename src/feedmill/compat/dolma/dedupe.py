"""Implement ``feedmill compat dolma dedupe``: the attributes and filter equal those of Dolma with one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.compat.dolma.config import FLAG, NUMBER, REQUIRED, TEXT, TEXTS, WHOLE, Key, accepted, configured

SCHEMA = {
    "documents": Key(TEXTS, [], "patterns of document files"),
    "dedupe.name": Key(TEXT, None, "name of the attribute set; by default the attribute's name"),
    "dedupe.documents.attribute_name": Key(TEXT, None, "compare documents, and write this attribute"),
    "dedupe.documents.key": Key(TEXT, None, "JSONPath of the text that documents are compared by"),
    "dedupe.paragraphs.attribute_name": Key(TEXT, None, "compare paragraphs, and write this attribute"),
    "dedupe.paragraphs.paragraph_separator": Key(TEXT, "\n", "separator of paragraphs"),
    "dedupe.paragraphs.by_ngram.ngram_length": Key(WHOLE, 0, "words of an n-gram; 0 for whole paragraphs"),
    "dedupe.paragraphs.by_ngram.stride": Key(WHOLE, 0, "words from one n-gram to the next"),
    "dedupe.paragraphs.by_ngram.overlap_threshold": Key(NUMBER, 1.0, "mark from this fraction of seen n-grams"),
    "dedupe.paragraphs.by_ngram.skip_short_paragraphs": Key(FLAG, False, "ignore paragraphs with fewer than 2 n-grams"),
    "dedupe.skip_empty": Key(FLAG, False, "ignore blank texts"),
    "dedupe.min_length": Key(WHOLE, 0, "ignore shorter texts"),
    "dedupe.min_words": Key(WHOLE, 0, "ignore texts with fewer words"),
    "dedupe.num_partitions": Key(WHOLE, 1, "number of partitions of keys or files"),
    "dedupe.partition_index": Key(WHOLE, 0, "partition of this run"),
    "dedupe.file_partition": Key(FLAG, False, "partition the files too"),
    "dedupe.document_dir": Key(TEXT, "documents", "name of the folder that holds the documents"),
    "bloom_filter.file": Key(TEXT, REQUIRED, "file of the filter; created if missing"),
    "bloom_filter.read_only": Key(FLAG, REQUIRED, "look up only; do not add to the filter"),
    "bloom_filter.size_in_bytes": Key(WHOLE, 0, "size of a new filter in bytes"),
    "bloom_filter.estimated_doc_count": Key(WHOLE, 0, "expected number of keys of a new filter"),
    "bloom_filter.desired_false_positive_rate": Key(NUMBER, 0.0, "false-positive rate of a new filter without a size"),
    "processes": Key(WHOLE, 1, "threads that read and hash"),
    "compression.input": Key(TEXT, None, "gz, zst, or empty for none; by default from file names"),
    "compression.output": Key(TEXT, None, "likewise; by default as the input"),
    "is_s3_volume": accepted(FLAG, False, "outputs are always complete"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "the journal is beside the attributes"),
    "dryrun": Key(FLAG, False, "print the configuration and stop"),
}


def dedupe(arguments: Sequence[str], file: str | Mapping[str, Any] | None, exact: bool) -> None:
    """Mark duplicates, as Dolma does."""
    from feedmill.cli.dedupe import show
    from feedmill.curation.dedupe.job import find_duplicates as run

    values = configured(arguments, file, SCHEMA)
    if values["dryrun"]:
        return
    report = run(read_options(values, exact), compression=(values["compression.input"], values["compression.output"]))
    show(report)


def read_options(values: dict[str, Any], exact: bool) -> Any:
    """Return Feedmill's options for Dolma's, a `Dedupe`."""
    from feedmill.curation.options import DOCUMENTS, NGRAMS, PARAGRAPHS, Dedupe
    from feedmill.errors import ConfigError

    unit = DOCUMENTS if values["dedupe.documents.attribute_name"] else PARAGRAPHS
    attribute = values[f"dedupe.{unit}.attribute_name"]
    if not attribute:
        raise ConfigError(
            "neither dedupe.documents.attribute_name nor dedupe.paragraphs.attribute_name is given",
            kind="missing-option",
            fix="Set one of them, to compare documents or paragraphs.",
        )
    if unit == DOCUMENTS and not values["dedupe.documents.key"]:
        raise ConfigError("dedupe.documents.key is missing", kind="missing-option", fix="For example '$.text'.")
    if not exact and unit == DOCUMENTS and values["dedupe.paragraphs.attribute_name"]:
        raise ConfigError("both dedupe.documents and dedupe.paragraphs are given", fix="Run one after the other.")
    parts, part = values["dedupe.num_partitions"], values["dedupe.partition_index"]
    suffix = f"_{part}" if parts > 1 else ""
    ngram = "dedupe.paragraphs.by_ngram."
    by_paragraph = NGRAMS if values[f"{ngram}ngram_length"] else PARAGRAPHS
    return Dedupe(
        values["documents"],
        DOCUMENTS if unit == DOCUMENTS else by_paragraph,
        name=(values["dedupe.name"] or attribute) + suffix,
        attribute=attribute + suffix,
        key=values["dedupe.documents.key"] or "$.text",
        separator=values["dedupe.paragraphs.paragraph_separator"],
        ngram=values[f"{ngram}ngram_length"],
        stride=values[f"{ngram}stride"],
        threshold=values[f"{ngram}overlap_threshold"],
        skip_short=values[f"{ngram}skip_short_paragraphs"],
        keep_empty=not values["dedupe.skip_empty"],
        min_length=values["dedupe.min_length"],
        min_words=values["dedupe.min_words"],
        partitions=parts,
        partition=part,
        dolma=True,
        defects=exact,
        documents_folder=values["dedupe.document_dir"],
        bloom=values["bloom_filter.file"],
        read_only=values["bloom_filter.read_only"],
        bloom_size=values["bloom_filter.size_in_bytes"],
        items=values["bloom_filter.estimated_doc_count"],
        false_positives=values["bloom_filter.desired_false_positive_rate"],
        file_partition=values["dedupe.file_partition"] and parts > 1,
        workers=values["processes"],
        allow_empty=True,
    )
