"""Dolma's taggers of code as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CodeSecretsTagger(BuiltInTagger, tagger="code_secrets_v1"): ...


class CodeCopyrightTagger(BuiltInTagger, tagger="code_copyright_comments_v1"): ...


class CodeRedPajamaTaggers(BuiltInTagger, tagger="code_redpajama_taggers_v1"): ...


class CodeStarCoderTaggers(BuiltInTagger, tagger="code_starcoder_taggers_v1"): ...


class CodeStarCoderTaggers2(BuiltInTagger, tagger="code_starcoder_taggers_v2"): ...
