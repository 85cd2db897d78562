"""Dolma's taggers of licenses as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CreativeCommonsRegexLicenseExtractor(BuiltInTagger, tagger="cc_re"): ...


class CreativeCommonsFastRegexHtmlExtractor(BuiltInTagger, tagger="cc_re_fast"): ...
