"""The ``dedupe`` function: find duplicates with plain options, as ``feedmill dedupe`` does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from feedmill.curation.dedupe.job import BloomOptions, DedupeReport, find_duplicates
from feedmill.curation.dedupe.options import DOCUMENTS, PARAGRAPHS, DedupeOptions
from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import can_run_dry
from feedmill.storage import paths_of

By = Literal["documents", "paragraphs", "ngrams"]
NGRAMS: By = "ngrams"


@can_run_dry
def dedupe(
    documents: Sequence[str | os.PathLike[str]],
    by: By | DedupeOptions = "documents",
    *,
    name: str | None = None,
    key: str | None = None,
    separator: str | None = None,
    ngram: int | None = None,
    stride: int | None = None,
    threshold: float | None = None,
    min_length: int = 0,
    min_words: int = 0,
    keep_empty: bool = False,
    against: Sequence[str] = (),
    bloom: str | BloomOptions | None = None,
    items: int = 0,
    false_positives: float | None = None,
    read_only: bool = False,
    id: str | None = None,
    allow_empty: bool = False,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    workers: int | None = None,
    progress: bool | None = None,
) -> DedupeReport:
    """Write attributes that mark duplicates: all but the first in input order.

    Args:
        documents: Files, folders or patterns. Each path contains a folder ``documents``.
        by: ``"documents"``, ``"paragraphs"`` or ``"ngrams"``; or a `DedupeOptions` with all options.
        name: Name of the attribute set. Default: ``dup_`` and the unit.
        key: JSONPath of the value that documents are compared by. Default: ``$.text``.
        separator: Separator of paragraphs. Default: A newline.
        ngram: With ``"ngrams"``, number of words per n-gram. Default: 13.
        stride: With ``"ngrams"``, number of words between the starts of n-grams. Default: 1.
        threshold: With ``"ngrams"``, share of duplicate n-grams from which a paragraph is marked. Default: 0.5.
        min_length, min_words: Shorter texts are not compared.
        keep_empty: Also compare blank texts.
        against: Mark only text that occurs in these documents (decontamination).
        bloom: File of a Bloom filter in Dolma's format.
        items: Capacity of a new filter, in keys.
        false_positives: False-positive rate of a new filter. Default: 1e-6.
        read_only: Do not add keys to the filter.
        id: See `feedmill.tag`.
        allow_empty: Accept patterns without files, and files without a document.
        dry_run: Write nothing; the report has what would be written. The first documents of each file are read.
        workers: Number of worker processes. Default: One per core.

    Raises:
        ConfigError: Options exclude each other, or have no effect for this unit.
        FeedmillError: See `feedmill.curation.dedupe.job.find_duplicates`.
    """
    documents = paths_of(documents)
    plain = {
        "key": key, "separator": separator, "ngram": ngram, "stride": stride, "threshold": threshold, "name": name,
        "min_length": min_length or None, "min_words": min_words or None, "keep_empty": keep_empty or None,
    }  # fmt: skip
    if isinstance(by, DedupeOptions):
        given = [name for name, value in plain.items() if value is not None]
        if given:
            raise ConfigError(
                f"{given[0]} cannot be combined with DedupeOptions", kind="bad-option", fix="Set it in the options."
            )
        options = by
    else:
        _refuse(by, plain)
        options = DedupeOptions(
            name=name or f"dup_{by}",
            attribute=name or f"dup_{by}",
            unit=DOCUMENTS if by == DOCUMENTS else PARAGRAPHS,
            key="$.text" if key is None else key,
            separator="\n" if separator is None else separator,
            ngram=(ngram or 13) if by == NGRAMS else 0,
            stride=stride or 1,
            threshold=0.5 if threshold is None else threshold,
            skip_empty=not keep_empty,
            min_length=min_length,
            min_words=min_words,
        )
    if not isinstance(bloom, str) and (items or read_only or false_positives is not None):
        raise ConfigError(
            "--items, --false-positives and --read-only require a Bloom filter", fix="Pass its file with --bloom."
        )
    if items and read_only:
        raise ConfigError("--items requires a new filter, and --read-only an existing one", fix="Use one of them.")
    if isinstance(bloom, str):
        errors = 1e-6 if false_positives is None else false_positives
        bloom = BloomOptions(file=bloom, read_only=read_only, items=items, false_positives=errors)
    return find_duplicates(
        documents,
        options,
        bloom=bloom,
        against=against,
        workers=workers,
        id=id,
        allow_empty=allow_empty,
        progress=progress,
    )


def _refuse(by: str, given: Mapping[str, object]) -> None:
    """Raise `ConfigError` for an unknown unit, and for options that have no effect for it."""
    if by not in (DOCUMENTS, PARAGRAPHS, NGRAMS):
        raise ConfigError(f"unknown unit --by {by}", fix="Use documents, paragraphs or ngrams.")
    for name, units in (
        ("key", (DOCUMENTS,)),
        ("separator", (PARAGRAPHS, NGRAMS)),
        ("ngram", (NGRAMS,)),
        ("stride", (NGRAMS,)),
        ("threshold", (NGRAMS,)),
    ):
        if given[name] is not None and by not in units:
            raise ConfigError(f"--{name} requires --by {' or '.join(units)}", fix="Remove the option, or add --by.")
