"""Base class of taggers that use a local fastText model, and the model loader."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from feedmill.curation.plugins import (
    BaseTagger,
    DocResult,
    Document,
    Span,
    TextSlice,
    split_paragraphs,
    split_sentences,
)
from feedmill.curation.records import local_state
from feedmill.errors import ConfigError, MissingExtra, NotFound


class Prediction(NamedTuple):
    """A label and its score."""

    label: str
    score: float


def load_model(path: str) -> Any:
    """Return a fastText model: an object with ``predict(text, k=-1) -> (labels, scores)``.

    Raises:
        ConfigError: The path is a URL (models are not downloaded), or the file is not a fastText model.
        NotFound: The file does not exist.
        MissingExtra: The package for fastText models is not installed.
    """
    if "://" in path:
        raise ConfigError(
            "fastText models must be local files: they are not downloaded",
            file=path,
            kind="bad-model",
            fix="Download the model from a source you trust and pass the path of the file.",
        )
    if not os.path.isfile(path):
        raise NotFound("model not found", file=path, fix="Pass the path of a fastText model (.bin or .ftz).")
    return _load_model(path, local_state(path))


@lru_cache(8)
def _load_model(path: str, _state: tuple[int, int, int] | None) -> Any:
    try:
        import fasttext
    except ImportError:
        raise MissingExtra("fastText models need the package fasttext-predict", "curation") from None
    try:
        return fasttext.load_model(path)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"this is not a fastText model: {error}", file=path, fix="Pass another file.") from None


class BaseFastTextTagger(BaseTagger):
    """Base class of fastText taggers: pass the path of a model, and override `predict_slice`.

    Args:
        model_path: Path of a local file.
        model_mode: Unit that the model predicts for: ``document``, ``paragraph`` or ``sentence``.
    """

    SENTENCE_LEVEL_TAGGER = "sentence"
    PARAGRAPH_LEVEL_TAGGER = "paragraph"
    DOCUMENT_LEVEL_TAGGER = "document"

    def __init__(self, model_path: str, model_mode: str) -> None:
        modes = (self.SENTENCE_LEVEL_TAGGER, self.PARAGRAPH_LEVEL_TAGGER, self.DOCUMENT_LEVEL_TAGGER)
        if model_mode not in modes:
            raise ConfigError(f"unknown model mode {model_mode!r}", fix=f"Use one of {', '.join(modes)}.")
        self.mode = model_mode
        self.classifier = load_model(model_path)

    def predict_slice(self, text_slice: TextSlice) -> Iterable[Prediction]:
        """Return the labels of a part of a document."""
        raise NotImplementedError

    def predict(self, doc: Document) -> DocResult:
        """Return a span for each label of each part of the document."""
        if self.mode == self.SENTENCE_LEVEL_TAGGER:
            parts = split_sentences(doc.text)
        elif self.mode == self.PARAGRAPH_LEVEL_TAGGER:
            parts = split_paragraphs(doc.text)
        else:
            parts = [TextSlice(doc.text, 0, len(doc.text))]
        spans = [
            Span(part.start, part.end, prediction.label, prediction.score)
            for part in parts
            for prediction in self.predict_slice(part)
        ]
        return DocResult(doc, spans)
