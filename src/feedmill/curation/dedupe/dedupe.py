"""Find duplicates with plain options: ``feedmill dedupe``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feedmill.curation.dedupe.job import BloomOptions, DedupeReport, find_duplicates
from feedmill.curation.dedupe.options import DOCUMENTS, PARAGRAPHS, DedupeOptions
from feedmill.errors import ConfigError
from feedmill.jobs.policy import renamed_parameters

NGRAMS = "ngrams"


@renamed_parameters(processes="workers")
def dedupe(
    documents: Sequence[str],
    by: str | DedupeOptions = DOCUMENTS,
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
    workers: int | None = None,
    progress: bool | None = None,
) -> DedupeReport:
    """Write attributes that mark duplicates: all but the first in input order.

    Args:
        documents: files, folders or patterns, each with a folder ``documents``.
        by: ``"documents"``, ``"paragraphs"`` or ``"ngrams"``; or a `DedupeOptions` with all options.
        name: of the attribute set; by default ``dup_`` and the unit.
        key: JSONPath of the value to compare; default: ``$.text``.
        separator: separator of paragraphs; default: a newline.
        ngram, stride, threshold: of ``"ngrams"``: words per n-gram (13), words between the starts of n-grams (1), and
            the share of duplicate n-grams at or above which a paragraph is marked (0.5).
        min_length, min_words: shorter texts are not compared.
        keep_empty: also compare blank texts.
        against: mark only text that occurs in these documents (decontamination).
        bloom: file of a Bloom filter in Dolma's format.
        items, false_positives: of a new filter: its capacity in keys, and its false-positive rate (1e-6).
        read_only: do not add to the filter.
        id: see `feedmill.tag`.
        allow_empty: accept patterns without files, and files without a document.
        workers: processes; by default one for each core.

    Raises:
        ConfigError: options that exclude each other, or have no effect for this unit.
        FeedmillError: as `feedmill.curation.dedupe.job.find_duplicates`.
    """
    plain = {
        "key": key, "separator": separator, "ngram": ngram, "stride": stride, "threshold": threshold, "name": name,
        "min_length": min_length or None, "min_words": min_words or None, "keep_empty": keep_empty or None,
    }  # fmt: skip
    if isinstance(by, DedupeOptions):
        given = [name for name, value in plain.items() if value is not None]
        if given:
            raise ConfigError(
                f"{given[0]} is given beside all options", kind="bad-option", fix="Give it in the options."
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
            "--items, --false-positives and --read-only require a Bloom filter", fix="Name its file with --bloom."
        )
    if items and read_only:
        raise ConfigError("--items requires a new filter, and --read-only an existing one", fix="Give one of them.")
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
        raise ConfigError(f"there is no --by {by}", fix="Use documents, paragraphs or ngrams.")
    for name, units in (
        ("key", (DOCUMENTS,)),
        ("separator", (PARAGRAPHS, NGRAMS)),
        ("ngram", (NGRAMS,)),
        ("stride", (NGRAMS,)),
        ("threshold", (NGRAMS,)),
    ):
        if given[name] is not None and by not in units:
            raise ConfigError(f"--{name} goes with --by {' or '.join(units)}", fix="Leave it out, or add that.")
