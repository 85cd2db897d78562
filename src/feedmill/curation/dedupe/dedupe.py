"""The verb ``dedupe``."""

from __future__ import annotations

from collections.abc import Mapping

from feedmill.curation.dedupe.job import BloomOptions, DedupeReport, find_duplicates
from feedmill.curation.dedupe.options import DOCUMENTS, PARAGRAPHS, SUBSTRINGS, DedupeOptions, Unit
from feedmill.curation.options import By, Dedupe
from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.storage import paths_of

NGRAMS: By = "ngrams"
_UNITS: Mapping[By, Unit] = {DOCUMENTS: DOCUMENTS, PARAGRAPHS: PARAGRAPHS, NGRAMS: PARAGRAPHS, SUBSTRINGS: SUBSTRINGS}


@verb(Dedupe)
def dedupe(options: Dedupe) -> DedupeReport:
    """Return the numbers of duplicates.

    Raises:
        ConfigError: Options exclude each other, or have no effect for this unit.
        FeedmillError: See `feedmill.curation.dedupe.job.find_duplicates`.
    """
    by, bloom, items = options.by, options.bloom, options.items
    plain = {
        name: getattr(options, name) for name in ("key", "separator", "ngram", "stride", "threshold", "name", "length")
    }
    plain |= {name: getattr(options, name) or None for name in ("min_length", "min_words", "keep_empty", "every_copy")}
    if isinstance(by, DedupeOptions):
        given = [name for name, value in plain.items() if value is not None]
        if given:
            raise ConfigError(
                f"{given[0]} cannot be combined with DedupeOptions", kind="bad-option", fix="Set it in the options."
            )
        inner = by
    else:
        _refuse(by, plain)
        inner = DedupeOptions(
            name=options.name or f"dup_{by}",
            attribute=options.name or f"dup_{by}",
            unit=_UNITS[by],
            key="$.text" if options.key is None else options.key,
            separator="\n" if options.separator is None else options.separator,
            ngram=(options.ngram or 13) if by == NGRAMS else 0,
            stride=options.stride or 1,
            threshold=0.5 if options.threshold is None else options.threshold,
            skip_empty=not options.keep_empty,
            min_length=options.min_length,
            min_words=options.min_words,
            length=200 if options.length is None else options.length,
            every_copy=options.every_copy,
        )
    if not isinstance(bloom, str) and (items or options.read_only or options.false_positives is not None):
        raise ConfigError(
            "--items, --false-positives and --read-only require a Bloom filter", fix="Pass its file with --bloom."
        )
    if items and options.read_only:
        raise ConfigError("--items requires a new filter, and --read-only an existing one", fix="Use one of them.")
    if isinstance(bloom, str):
        errors = 1e-6 if options.false_positives is None else options.false_positives
        bloom = BloomOptions(file=bloom, read_only=options.read_only, items=items, false_positives=errors)
    return find_duplicates(
        paths_of(options.documents),
        inner,
        bloom=bloom,
        against=options.against,
        workers=options.workers,
        id=options.id,
        allow_empty=options.allow_empty,
        progress=options.progress,
    )


def _refuse(by: str, given: Mapping[str, object]) -> None:
    """Raise `ConfigError` for an unknown unit, and for options that have no effect for it."""
    if by not in _UNITS:
        raise ConfigError(f"unknown unit --by {by}", fix="Use documents, paragraphs, ngrams or substrings.")
    for name, units in (
        ("key", (DOCUMENTS,)),
        ("separator", (PARAGRAPHS, NGRAMS)),
        ("ngram", (NGRAMS,)),
        ("stride", (NGRAMS,)),
        ("threshold", (NGRAMS,)),
        ("length", (SUBSTRINGS,)),
        ("every_copy", (SUBSTRINGS,)),
        ("min_length", (DOCUMENTS, PARAGRAPHS, NGRAMS)),
        ("min_words", (DOCUMENTS, PARAGRAPHS, NGRAMS)),
        ("keep_empty", (DOCUMENTS, PARAGRAPHS, NGRAMS)),
    ):
        if given[name] is not None and by not in units:
            name = name.replace("_", "-")
            raise ConfigError(f"--{name} requires --by {' or '.join(units)}", fix="Remove the option, or add --by.")
