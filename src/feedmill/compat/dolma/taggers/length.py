"""Dolma's taggers of lengths as classes."""

from feedmill.curation.plugins import BuiltInTagger


class BytesLengthV1(BuiltInTagger, tagger="bytes_length_v1"):
    """Number of UTF-8 bytes of the document."""


class DocCountLengthV1(BuiltInTagger, tagger="doc_count_v1"):
    """The score 1 for each document, so that sums of scores count documents."""


class CharLengthV1(BuiltInTagger, tagger="char_length_v1"):
    """Number of characters of the document."""


class CharLengthStripWsV1(BuiltInTagger, tagger="char_length_strip_ws_v1"):
    """Number of characters of the document without white space at both ends."""


class CharLengthWithParagraphsV1(BuiltInTagger, tagger="char_length_with_paragraphs_v1"):
    """Number of characters of the document, and of each paragraph that is not blank."""


class WhitespaceLengthV1(BuiltInTagger, tagger="whitespace_tokenizer_v1"):
    """Number of runs of word characters and of other visible characters, plus one."""


class WhitespaceLengthParagraphsV1(BuiltInTagger, tagger="whitespace_tokenizer_with_paragraphs_v1"):
    """The count of `WhitespaceLengthV1` for each paragraph that is not blank, and their sum."""


class UnisegLengthV1(BuiltInTagger, tagger="uniseg_length_v1"):
    """Number of segments (UAX 29) of the stripped text, including white space."""


class UnisegParagraphsV1(BuiltInTagger, tagger="uniseg_length_paragraphs_v1"):
    """Number of segments that are not blank, of each paragraph that is not blank."""


class UnisegParagraphsWithEmptyV1(BuiltInTagger, tagger="uniseg_length_paragraphs_with_empty_v1"):
    """Number of segments that are not blank, of each paragraph; blank paragraphs have 0."""


class UnisegParagraphsWithDocLengthV1(BuiltInTagger, tagger="uniseg_length_paragraphs_with_doc_length_v1"):
    """The count of `UnisegParagraphsV1`, and the sum over the document."""


class OlmoPreTokenizerV1(BuiltInTagger, tagger="olmo_pretokenizer_v1"):
    """Number of pieces of OLMo's pre-tokenizer in the document."""


class OlmoPreTokenizerParagraphsV1(BuiltInTagger, tagger="olmo_pretokenizer_with_paragraphs_v1"):
    """Number of pieces of OLMo's pre-tokenizer in each paragraph that is not blank, and their sum."""


class DolmaV1Tokenizer(BuiltInTagger, tagger="dolma_v1_tokenizer"):
    """Number of tokens of the stripped text by the tokenizer of Dolma 1.5, with its special tokens."""


class DolmaV2Tokenizer(BuiltInTagger, tagger="dolma_v2_tokenizer"):
    """Number of tokens of the stripped text by the tokenizer of Dolma 2, with its special tokens."""
