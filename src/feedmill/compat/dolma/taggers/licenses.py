"""Dolma's taggers of licenses as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CreativeCommonsRegexLicenseExtractor(BuiltInTagger, tagger="cc_re"):
    """Licenses of Creative Commons linked from ``a`` and ``meta`` elements: type, version and language."""


class CreativeCommonsFastRegexHtmlExtractor(BuiltInTagger, tagger="cc_re_fast"):
    """Licenses of Creative Commons whose URL occurs anywhere in the HTML: the type alone."""
