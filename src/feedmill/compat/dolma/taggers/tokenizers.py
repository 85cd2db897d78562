"""Dolma's taggers of tokenizers as classes."""

from feedmill.curation.plugins import BuiltInTagger


class GPTNeoX20BTokenizer(BuiltInTagger, tagger="tokenizers_EleutherAI_GPT_NeoX_20B"):
    """Number of tokens of the unchanged text by the tokenizer of GPT-NeoX 20B."""


class OLMoV1Tokenizer(BuiltInTagger, tagger="tokenizers_AI2_OLMo_v1"):
    """Number of tokens of the unchanged text by the tokenizer of OLMo."""
