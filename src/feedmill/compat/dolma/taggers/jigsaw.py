"""Dolma's taggers of Jigsaw as classes."""

from feedmill.curation.plugins import BuiltInTagger


class FastTextJigsawHatespeechDocumentTagger(BuiltInTagger, tagger="jigsaw_hatespeech_document_v2"):
    """Score of hate speech of the whole text."""


class FastTextJigsawHatespeechSentenceTagger(BuiltInTagger, tagger="jigsaw_hatespeech_sentence_v2"):
    """Score of hate speech of each sentence."""


class FastTextJigsawNsfwDocumentTagger(BuiltInTagger, tagger="jigsaw_nsfw_document_v1"):
    """Score of NSFW text of the whole text."""


class FastTextJigsawNsfwSentenceTagger(BuiltInTagger, tagger="jigsaw_nsfw_sencence_v2"):
    """Score of NSFW text of each sentence. The misspelled name of the tagger is Dolma's."""
