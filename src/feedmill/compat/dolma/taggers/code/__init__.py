"""Dolma's taggers of code as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CodeSecretsTagger(BuiltInTagger, tagger="code_secrets_v1"):
    """Secrets of each kind that detect-secrets knows, and their number per word of the document."""


class CodeCopyrightTagger(BuiltInTagger, tagger="code_copyright_comments_v1"):
    """The first block comment if it mentions copyright, or else the comment lines at the beginning."""


class CodeRedPajamaTaggers(BuiltInTagger, tagger="code_redpajama_taggers_v1"):
    """Lengths of lines, and shares of letters and digits, of the document."""


class CodeStarCoderTaggers(BuiltInTagger, tagger="code_starcoder_taggers_v1"):
    """Shares of comments, and of the text that HTML shows; -1 if the language is unknown."""


class CodeStarCoderTaggers2(BuiltInTagger, tagger="code_starcoder_taggers_v2"):
    """Shares of comments in Python, Java and JavaScript (0.5 for others), and of the text that HTML shows."""
