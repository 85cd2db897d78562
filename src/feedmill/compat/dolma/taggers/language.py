"""Dolma's taggers of languages as classes."""

from feedmill.curation.plugins import BuiltInTagger


class Cld3LanguageTagger(BuiltInTagger, tagger="cld3_en_doc_v2"):
    """Scores of English and of not English for the document, by CLD3."""


class Cld3LanguageTaggerParagraph(BuiltInTagger, tagger="cld3_en_paragraph_v2"):
    """Scores of English and of not English for each paragraph, by CLD3."""


class Cld2LanguageTagger(BuiltInTagger, tagger="cld2_doc_v2"):
    """Score of each language for the document, by CLD2."""


class Cld2LanguageTaggerParagraph(BuiltInTagger, tagger="cld2_paragraph_v2"):
    """Score of each language for each paragraph, by CLD2."""


class Cld2EnglishLanguageTagger(BuiltInTagger, tagger="cld2_en_doc_v2"):
    """Scores of English and of not English for the document, by CLD2."""


class Cld2EnglishLanguageParagraphTagger(BuiltInTagger, tagger="cld2_en_paragraph_v2"):
    """Scores of English and of not English for each paragraph, by CLD2."""


class FastTextAllLanguagesDocumentTagger(BuiltInTagger, tagger="ft_lang_id_doc_v1"):
    """Score of each language for the document, by fastText."""


class FastTextAllLanguagesDocumentMinScoreTagger(BuiltInTagger, tagger="ft_lang_id_1e2"):
    """Languages of the document with a score above 0.01, rounded to two digits, by fastText."""


class FastTextAllLanguageParagraphTagger(BuiltInTagger, tagger="ft_lang_id_paragraph_v1"):
    """Score of each language for each paragraph, by fastText."""


class FastTextEnglishLanguageDocumentTagger(BuiltInTagger, tagger="ft_lang_id_en_doc_v2"):
    """Scores of English and of not English for the document, by fastText."""


class FastTextEnglishOnlyLanguageDocumentTagger(BuiltInTagger, tagger="ft_lang_id_en_only_v2"):
    """Score of English for the document, by fastText."""


class FastTextEnglishLanguageParagraphTagger(BuiltInTagger, tagger="ft_lang_id_en_paragraph_v2"):
    """Scores of English and of not English for each paragraph, by fastText."""


class LangdetectTagger(BuiltInTagger, tagger="langdetect_doc_v1"):
    """Score of each language for the document, by langdetect."""


class LangdetectEnglishTagger(BuiltInTagger, tagger="langdetect_doc_en_v1"):
    """Scores of English and of not English for the document, by langdetect."""


class LangdetectTaggerParagraph(BuiltInTagger, tagger="langdetect_paragraph_v1"):
    """Score of each language for each paragraph, by langdetect."""


class LangdetectEnglishTaggerParagraph(BuiltInTagger, tagger="langdetect_en_paragraph_v1"):
    """Scores of English and of not English for each paragraph, by langdetect."""


class LinguaTagger(BuiltInTagger, tagger="lingua_doc_v1"):
    """Score of each language for the document, by Lingua."""


class LinguaMinScoreTagger(BuiltInTagger, tagger="lingua_1e2"):
    """Languages of the document with a score above 0.01, rounded to two digits, by Lingua."""


class LinguaEnglishTagger(BuiltInTagger, tagger="lingua_doc_en_v1"):
    """Scores of English and of not English for the document, by Lingua."""


class LinguaEnglishOnlyTagger(BuiltInTagger, tagger="lingua_en_only_v1"):
    """Score of English for the document, by Lingua."""


class LinguaTaggerParagraph(BuiltInTagger, tagger="lingua_par_v1"):
    """Score of each language for each paragraph, by Lingua."""


class LinguaEnglishTaggerParagraph(BuiltInTagger, tagger="lingua_en_par_v1"):
    """Scores of English and of not English for each paragraph, by Lingua."""


class Cld2LanguageFilterParagraphWithDocScoreTagger(BuiltInTagger, tagger="cld2_en_paragraph_with_doc_score_v2"):
    """Scores of English and of not English for each paragraph, and their mean for the document, by CLD2."""


class Cld3LanguageFilterParagraphWithDocScoreTagger(BuiltInTagger, tagger="cld3_en_paragraph_with_doc_score_v2"):
    """Scores of English and of not English for each paragraph, and their mean for the document, by CLD3."""


class FastTextEnglishLanguageParagraphWithDocScoreTagger(
    BuiltInTagger, tagger="ft_lang_id_en_paragraph_with_doc_score_v2"
):
    """Scores of English and of not English for each paragraph, and their mean for the document, by fastText."""
