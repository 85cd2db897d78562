"""Dolma's taggers of Jigsaw as classes."""

from feedmill.curation.plugins import BuiltInTagger


class FastTextJigsawHatespeechDocumentTagger(BuiltInTagger, tagger="jigsaw_hatespeech_document_v2"): ...


class FastTextJigsawHatespeechSentenceTagger(BuiltInTagger, tagger="jigsaw_hatespeech_sentence_v2"): ...


class FastTextJigsawNsfwDocumentTagger(BuiltInTagger, tagger="jigsaw_nsfw_document_v1"): ...


class FastTextJigsawNsfwSentenceTagger(BuiltInTagger, tagger="jigsaw_nsfw_sencence_v2"): ...
