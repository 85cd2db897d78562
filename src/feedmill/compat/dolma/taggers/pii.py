"""Dolma's taggers of PII as classes."""

from feedmill.curation.plugins import BuiltInTagger


class PiiPresidioV1(BuiltInTagger, tagger="pii_presidio_v1"):
    """Not supported: creating it raises `ConfigError`, because Presidio's model runs code."""


class PiiRegexV1(BuiltInTagger, tagger="pii_regex_v1"):
    """E-mail addresses, phone numbers and IP addresses, and their number per word of the document."""


class PiiRegexV2(BuiltInTagger, tagger="pii_regex_v2"):
    """The spans of `PiiRegexV1`; a document without words has the score -1."""


class FastPiiRegex(BuiltInTagger, tagger="pii_regex_with_counts_fast_v2"):
    """Personal data in each paragraph, also in numbers near ISBN, DOI or ``#``."""


class PiiRegexWithCountV2(BuiltInTagger, tagger="pii_regex_with_counts_v2"):
    """The spans of `PiiRegexV2`, and their number."""
