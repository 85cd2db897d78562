"""Dolma's modules that have no code of their own (`feedmill.compat.modules`): base classes, errors, taggers."""

from __future__ import annotations

_PACKAGE = "feedmill.compat.dolma"
_ERRORS = "feedmill.errors"
_FASTTEXT = "feedmill.curation.fasttexts"
_PLUGINS = "feedmill.curation.plugins"


def _from(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


CLASSES: dict[str, dict[str, str]] = {
    "taggers.c4": {
        "C4Tagger": "c4_v1",
        "FasterC4Tagger": "c4_v2",
    },
    "taggers.code": {
        "CodeSecretsTagger": "code_secrets_v1",
        "CodeCopyrightTagger": "code_copyright_comments_v1",
        "CodeRedPajamaTaggers": "code_redpajama_taggers_v1",
        "CodeStarCoderTaggers": "code_starcoder_taggers_v1",
        "CodeStarCoderTaggers2": "code_starcoder_taggers_v2",
    },
    "taggers.code_composition": {
        "CodeProseCompositionClassifier": "code_composition",
    },
    "taggers.gopher": {
        "GopherTagger": "gopher_v1",
        "GopherTaggerV2": "gopher_v2",
    },
    "taggers.jigsaw": {
        "FastTextJigsawHatespeechDocumentTagger": "jigsaw_hatespeech_document_v2",
        "FastTextJigsawHatespeechSentenceTagger": "jigsaw_hatespeech_sentence_v2",
        "FastTextJigsawNsfwDocumentTagger": "jigsaw_nsfw_document_v1",
        "FastTextJigsawNsfwSentenceTagger": "jigsaw_nsfw_sencence_v2",
    },
    "taggers.language": {
        "Cld3LanguageTagger": "cld3_en_doc_v2",
        "Cld3LanguageTaggerParagraph": "cld3_en_paragraph_v2",
        "Cld2LanguageTagger": "cld2_doc_v2",
        "Cld2LanguageTaggerParagraph": "cld2_paragraph_v2",
        "Cld2EnglishLanguageTagger": "cld2_en_doc_v2",
        "Cld2EnglishLanguageParagraphTagger": "cld2_en_paragraph_v2",
        "FastTextAllLanguagesDocumentTagger": "ft_lang_id_doc_v1",
        "FastTextAllLanguagesDocumentMinScoreTagger": "ft_lang_id_1e2",
        "FastTextAllLanguageParagraphTagger": "ft_lang_id_paragraph_v1",
        "FastTextEnglishLanguageDocumentTagger": "ft_lang_id_en_doc_v2",
        "FastTextEnglishOnlyLanguageDocumentTagger": "ft_lang_id_en_only_v2",
        "FastTextEnglishLanguageParagraphTagger": "ft_lang_id_en_paragraph_v2",
        "LangdetectTagger": "langdetect_doc_v1",
        "LangdetectEnglishTagger": "langdetect_doc_en_v1",
        "LangdetectTaggerParagraph": "langdetect_paragraph_v1",
        "LangdetectEnglishTaggerParagraph": "langdetect_en_paragraph_v1",
        "LinguaTagger": "lingua_doc_v1",
        "LinguaMinScoreTagger": "lingua_1e2",
        "LinguaEnglishTagger": "lingua_doc_en_v1",
        "LinguaEnglishOnlyTagger": "lingua_en_only_v1",
        "LinguaTaggerParagraph": "lingua_par_v1",
        "LinguaEnglishTaggerParagraph": "lingua_en_par_v1",
        "Cld2LanguageFilterParagraphWithDocScoreTagger": "cld2_en_paragraph_with_doc_score_v2",
        "Cld3LanguageFilterParagraphWithDocScoreTagger": "cld3_en_paragraph_with_doc_score_v2",
        "FastTextEnglishLanguageParagraphWithDocScoreTagger": "ft_lang_id_en_paragraph_with_doc_score_v2",
    },
    "taggers.length": {
        "BytesLengthV1": "bytes_length_v1",
        "DocCountLengthV1": "doc_count_v1",
        "CharLengthV1": "char_length_v1",
        "CharLengthStripWsV1": "char_length_strip_ws_v1",
        "CharLengthWithParagraphsV1": "char_length_with_paragraphs_v1",
        "WhitespaceLengthV1": "whitespace_tokenizer_v1",
        "WhitespaceLengthParagraphsV1": "whitespace_tokenizer_with_paragraphs_v1",
        "UnisegLengthV1": "uniseg_length_v1",
        "UnisegParagraphsV1": "uniseg_length_paragraphs_v1",
        "UnisegParagraphsWithEmptyV1": "uniseg_length_paragraphs_with_empty_v1",
        "UnisegParagraphsWithDocLengthV1": "uniseg_length_paragraphs_with_doc_length_v1",
        "OlmoPreTokenizerV1": "olmo_pretokenizer_v1",
        "OlmoPreTokenizerParagraphsV1": "olmo_pretokenizer_with_paragraphs_v1",
        "DolmaV1Tokenizer": "dolma_v1_tokenizer",
        "DolmaV2Tokenizer": "dolma_v2_tokenizer",
    },
    "taggers.licenses": {
        "CreativeCommonsRegexLicenseExtractor": "cc_re",
        "CreativeCommonsFastRegexHtmlExtractor": "cc_re_fast",
    },
    "taggers.pii": {
        "PiiPresidioV1": "pii_presidio_v1",
        "PiiRegexV1": "pii_regex_v1",
        "PiiRegexV2": "pii_regex_v2",
        "FastPiiRegex": "pii_regex_with_counts_fast_v2",
        "PiiRegexWithCountV2": "pii_regex_with_counts_v2",
    },
    "taggers.punctuation": {
        "NotAlphanumParagraphV1": "not_alphanum_paragraph_v1",
    },
    "taggers.quality": {
        "DclmQualityClassifier": "dclm-oh-eli5",
        "Dolma17QualityClassifier": "dolma17-quality",
    },
    "taggers.repetitions": {
        "RepetitionsTagger": "repetitions_v1",
        "ParagraphRepetitionsTagger": "paragraph_repetitions_v1",
        "TokenizerRepetitionsTagger": "tokenizer_repetitions_v1",
        "ParagraphTokenizerRepetitionsTagger": "paragraph_tokenizer_repetitions_v1",
        "TokenizerRepetitionsSkipEmptyTagger": "tokenizer_repetitions_v2r2",
    },
    "taggers.sampling": {
        "RandomNumberTagger": "random_number_v1",
    },
    "taggers.tokenizers": {
        "GPTNeoX20BTokenizer": "tokenizers_EleutherAI_GPT_NeoX_20B",
        "OLMoV1Tokenizer": "tokenizers_AI2_OLMo_v1",
    },
    "taggers.url": {
        "DomainBlocklistUniversiteToulouseCapitoleTagger": "domain_blocklist_utp_v1",
        "LinkBlocklistPhishingTagger": "link_blocklist_phishing_v1",
        "DomainBlocklistPhishingTagger": "domain_blocklist_phishing_v1",
        "OISDSmallAdblockPlusTagger": "oisd_small_abp_v1",
        "OISDBigAdblockPlusTagger": "oisd_big_abp_v1",
        "OISDNSFWAdblockPlusTagger": "oisd_nsfw_abp_v1",
        "BraveCoreAdblockPlusTagger": "brave_core_abp_v1",
        "BraveNSFWAdblockPlusTagger": "brave_nsfw_abp_v1",
        "BlocklistProjectNsfwTagger": "blocklist_project_nsfw_v1",
        "BlocklistProjectSocialTagger": "blocklist_project_social_v1",
        "BlocklistProjectCrimeTagger": "blocklist_project_crime_v1",
        "BlocklistProjectViceTagger": "blocklist_project_vice_v1",
        "BlocklistProjectAdsTagger": "blocklist_project_ads_v1",
        "BlocklistFirebogAdsTagger": "blocklist_firebog_ads_v1",
        "BlocklistFirebogCryptoTagger": "blocklist_firebog_crypto_v1",
        "BlocklistFirebogMaliciousTagger": "blocklist_firebog_malicious_v1",
        "BlocklistFirebogNsfwTagger": "blocklist_firebog_nsfw_v1",
        "BlocklistFirebogSocialTagger": "blocklist_firebog_social_v1",
        "BlocklistFirebogSuspiciousTagger": "blocklist_firebog_suspicious_v1",
        "BlocklistFirebogTrackersTagger": "blocklist_firebog_trackers_v1",
        "BlocklistHostsAdwareMalwareTagger": "blocklist_hosts_adware_malware_v1",
        "BlocklistHostsFakenewsTagger": "blocklist_hosts_fakenews_v1",
        "BlocklistHostsGamblingTagger": "blocklist_hosts_gambling_v1",
        "BlocklistHostsPornTagger": "blocklist_hosts_porn_v1",
        "BlocklistHostsSocialTagger": "blocklist_hosts_social_v1",
        "AllowlistWikidataTagger": "allowlist_wikidata_v1",
        "AllowlistWikidataCleanedTagger": "allowlist_wikidata_cleaned_v1",
    },
}
"""Module of Dolma -> its classes -> the tagger of each. `pii_presidio_v1` is unsupported: its model runs code."""

TABLE: dict[str, dict[str, str]] = {
    "core.errors": {
        "DolmaConfigError": f"{_ERRORS}:ConfigError",
        "DolmaError": f"{_ERRORS}:FeedmillError",
        "DolmaFatalError": f"{_ERRORS}:FeedmillError",
        "DolmaRetryableFailure": f"{_PACKAGE}.core.parallel:DolmaRetryableFailure",
        "DolmaRustPipelineError": f"{_ERRORS}:FeedmillError",
        "DolmaShardError": f"{_ERRORS}:FeedmillError",
    },
    "core.ft_tagger": (
        _from(_FASTTEXT, "BaseFastTextTagger Prediction") | _from(_PLUGINS, "DocResult Document Span TextSlice")
    ),
    "core.loggers": {"get_logger": "logging:getLogger"},
    "core.registry": _from(_PLUGINS, "BaseRegistry TaggerRegistry"),
    "core.taggers": _from(
        _PLUGINS, "BaseTagger BaseTaggerWithMetadata DocResult Document DocumentWithMetadata Span TextSlice"
    ),
    "core.url_blocker": _from("feedmill.curation.taggers.urls", "UrlBlocker"),
    "taggers": {},
    **{module: _from(f"{_PACKAGE}.tagger_code", " ".join(classes)) for module, classes in CLASSES.items()},
    "taggers.repetitions.utils": _from(
        f"{_PACKAGE}.tagger_code",
        "RepetitionTuple find_end_first_consecutive_true find_periodic_sequences find_start_last_consecutive_true "
        "group_consecutive_values",
    ),
}
"""Module -> its names -> where each is defined."""
TABLE["taggers.url"] |= _from(f"{_PACKAGE}.tagger_code", "AdbUrlTagger BaseDomainTagger BaseUrlTagger")
