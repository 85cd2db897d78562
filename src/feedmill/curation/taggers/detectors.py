"""Language identification by the packages Lingua, langdetect and gcld3, for documents and paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from feedmill.curation.taggers.language import (
    ALL,
    ENGLISH,
    ENGLISH_PARAGRAPHS,
    ENGLISH_TOTAL,
    LIKELY,
    ONLY,
    PARAGRAPHS,
    Label,
    Language,
    register_forms,
)
from feedmill.errors import MissingExtra

_LONGEST = 1000
"""Bytes of a text that CLD3 reads, from several places of it."""


@cache
def _lingua() -> Any:
    try:
        from lingua import LanguageDetectorBuilder
    except ImportError:
        raise MissingExtra("Lingua needs the package lingua-language-detector", "lingua") from None
    return LanguageDetectorBuilder.from_all_languages().build()


@cache
def _langdetect() -> tuple[Any, type[Exception]]:
    """Return the factory of detectors with its models, and the error of a text without letters."""
    try:
        import langdetect
    except ImportError:
        raise MissingExtra("language identification by langdetect needs that package", "curation") from None
    factory = langdetect.DetectorFactory()
    factory.load_profile(langdetect.PROFILES_DIRECTORY)
    factory.set_seed(0)  # the result for a text does not depend on the texts before it
    return factory, langdetect.LangDetectException


@cache
def _cld3() -> Any:
    try:
        import gcld3
    except ImportError:
        raise MissingExtra("CLD3 needs the package cld3-py", "curation") from None
    return gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=_LONGEST)


class _Lingua(Language):
    def __init__(self) -> None:
        self.detector = _lingua()

    def labels(self, text: str) -> Sequence[Label]:
        """Return the codes of all languages with their confidence, most likely first.

        Lingua sums on several threads, so its last bits differ from run to run; they are rounded away.
        """
        found = self.detector.compute_language_confidence_values(text)
        pairs = [(one.language.iso_code_639_1.name.lower(), round(float(one.value), 9)) for one in found]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


register_forms(
    _Lingua,
    lingua_doc_v1=ALL,
    lingua_1e2=LIKELY,
    lingua_par_v1=PARAGRAPHS,
    lingua_doc_en_v1=ENGLISH,
    lingua_en_only_v1=ONLY,
    lingua_en_par_v1=ENGLISH_PARAGRAPHS,
)


class _Langdetect(Language):
    def __init__(self) -> None:
        self.factory, self.error = _langdetect()

    def labels(self, text: str) -> Sequence[Label]:
        """Return the codes of likely languages with their probabilities; none if the text has no letters."""
        detector = self.factory.create()
        detector.append(text)
        try:
            return [(one.lang.lower(), float(one.prob)) for one in detector.get_probabilities()]
        except self.error:
            return []


register_forms(
    _Langdetect,
    langdetect_doc_v1=ALL,
    langdetect_paragraph_v1=PARAGRAPHS,
    langdetect_doc_en_v1=ENGLISH,
    langdetect_en_paragraph_v1=ENGLISH_PARAGRAPHS,
)


class _Cld3(Language):
    def __init__(self) -> None:
        self.model = _cld3()

    def labels(self, text: str) -> Sequence[Label]:
        """Return the most likely language with its probability."""
        found = self.model.FindLanguage(text=text)
        return [(found.language, float(found.probability))]


register_forms(
    _Cld3,
    cld3_en_doc_v2=ENGLISH,
    cld3_en_paragraph_v2=ENGLISH_PARAGRAPHS,
    cld3_en_paragraph_with_doc_score_v2=ENGLISH_TOTAL,
)
