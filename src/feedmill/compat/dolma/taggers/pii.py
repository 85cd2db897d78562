"""Dolma's taggers of PII as classes."""

from feedmill.curation.plugins import BuiltInTagger


class PiiPresidioV1(BuiltInTagger, tagger="pii_presidio_v1"): ...


class PiiRegexV1(BuiltInTagger, tagger="pii_regex_v1"): ...


class PiiRegexV2(BuiltInTagger, tagger="pii_regex_v2"): ...


class FastPiiRegex(BuiltInTagger, tagger="pii_regex_with_counts_fast_v2"): ...


class PiiRegexWithCountV2(BuiltInTagger, tagger="pii_regex_with_counts_v2"): ...
