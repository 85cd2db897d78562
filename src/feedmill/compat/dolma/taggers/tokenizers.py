"""Dolma's taggers of tokenizers as classes."""

from feedmill.curation.plugins import BuiltInTagger


class GPTNeoX20BTokenizer(BuiltInTagger, tagger="tokenizers_EleutherAI_GPT_NeoX_20B"): ...


class OLMoV1Tokenizer(BuiltInTagger, tagger="tokenizers_AI2_OLMo_v1"): ...
