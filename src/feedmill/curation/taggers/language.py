"""Language identification of documents and paragraphs, by a local fastText model (lid.176) or by CLD2.

The models take one text at a time, and so do these classes. The attributes of `Language` select the labels and whether
they are written for documents or paragraphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from feedmill.curation.documents import Batch
from feedmill.curation.fasttexts import load_model
from feedmill.curation.registry import Tagger, register
from feedmill.curation.spans import Spans
from feedmill.errors import MissingExtra

MODEL = "lid.176.bin"
Label = tuple[str, float]


class Language(Tagger):
    """Base of the language taggers.

    Attributes:
        paragraphs: Score each paragraph instead of the whole document.
        english: Write only the label ``en``, with the score 0 if the model does not return it.
        opposite: Also write ``not_en``.
        likely: Write only labels with a score above 0.01, rounded to two digits.
        total: Also write the mean of the paragraphs, weighted by length, for the document.
    """

    metadata = False
    paragraphs = english = opposite = total = likely = False

    def labels(self, text: str) -> Sequence[Label]:
        """Return the model's labels of a text with their scores."""
        raise NotImplementedError

    def tag(self, batch: Batch) -> Spans:
        kinds: dict[str, int] = {}
        by_document: list[list[tuple[int, int, int, float]]] = [[] for _ in batch.texts]
        for k, low, high in self._parts(batch):
            for label, score in self._wanted(batch.texts[k][low:high]):
                by_document[k].append((kinds.setdefault(label, len(kinds)), low, high, score))
        for k, spans in enumerate(by_document):
            spans += self._derived(spans, kinds, len(batch.texts[k]))
        return Spans.of_lists(tuple(kinds), by_document)

    def _parts(self, batch: Batch) -> list[tuple[int, int, int]]:
        if not self.paragraphs:
            return [(k, 0, len(text)) for k, text in enumerate(batch.texts)]
        document, start, end, _ = batch.filled
        base = batch.offsets[document]
        columns = (document.tolist(), (start - base).tolist(), (end - base).tolist())
        return list(zip(*columns, strict=True))

    def _wanted(self, text: str) -> Sequence[Label]:
        labels = self.labels(text)
        if self.likely:
            labels = [(name, round(score, 2)) for name, score in labels if score > 0.01]
        if not self.english:
            return labels
        return [label for label in labels if label[0] == "en"] or [("en", 0.0)]

    def _derived(
        self, spans: list[tuple[int, int, int, float]], kinds: dict[str, int], length: int
    ) -> list[tuple[int, int, int, float]]:
        more = []
        if self.opposite:
            for kind, start, end, score in spans:
                name = list(kinds)[kind]
                more.append((kinds.setdefault(f"not_{name}", len(kinds)), start, end, 1.0 - score))
        if self.total:
            english = kinds.get("en")
            inside = sum((end - start) * score for kind, start, end, score in spans if kind == english)
            share = inside / length if length else 0.0
            other = 1.0 - share if length else 0.0
            for name, score in (("doc_en", share), ("doc_not_en", other)):
                more.append((kinds.setdefault(name, len(kinds)), 0, length, score))
        return more


class Form(NamedTuple):
    """Form in which a tagger writes a model's labels; see `Language`."""

    paragraphs: bool = False
    english: bool = False
    opposite: bool = False
    total: bool = False
    likely: bool = False


ALL, LIKELY, PARAGRAPHS, ONLY = Form(), Form(likely=True), Form(paragraphs=True), Form(english=True)
ENGLISH, ENGLISH_PARAGRAPHS = Form(english=True, opposite=True), Form(True, True, True)
ENGLISH_TOTAL = Form(True, True, True, True)


def register_forms(model: type[Language], file: str | None = None, **forms: Form) -> None:
    """Register a tagger for each form of a model, by its name. `file` is that of `register`."""
    for name, form in forms.items():
        origin = {"__module__": model.__module__, "__qualname__": model.__qualname__.lstrip("_")}
        register(name, file=file)(type(model.__name__, (model,), {**form._asdict(), **origin}))


class _FastText(Language):
    def __init__(self, path: str) -> None:
        self.model = load_model(path)

    def labels(self, text: str) -> Sequence[Label]:
        names, scores = self.model.predict(text.lower().replace("\n", " ").strip(), k=-1)
        return [(name.replace("__label__", ""), float(score)) for name, score in zip(names, scores, strict=True)]


register_forms(
    _FastText,
    MODEL,
    ft_lang_id_doc_v1=ALL,
    ft_lang_id_1e2=LIKELY,
    ft_lang_id_paragraph_v1=PARAGRAPHS,
    ft_lang_id_en_doc_v2=ENGLISH,
    ft_lang_id_en_only_v2=ONLY,
    ft_lang_id_en_paragraph_v2=ENGLISH_PARAGRAPHS,
    ft_lang_id_en_paragraph_with_doc_score_v2=ENGLISH_TOTAL,
)


class _Cld2(Language):
    def __init__(self) -> None:
        try:
            import pycld2
        except ImportError:
            raise MissingExtra("CLD2 needs the package pycld2", "curation") from None
        self.module: Any = pycld2
        self.exact = False

    def tag(self, batch: Batch) -> Spans:
        self.exact = batch.exact
        return super().tag(batch)

    def labels(self, text: str) -> Sequence[Label]:
        """Return the language codes with their shares of the text.

        Dolma uses the first two letters of the English names instead (German is ``ge``), and keeps languages unknown to
        CLD2 as ``un``. Feedmill does so only with `exact`.
        """
        for spelling in (str, _printable):
            try:
                reliable, _, details = self.module.detect(spelling(text))
            except self.module.error:
                continue  # CLD2 rejects control characters
            if not reliable:
                return []
            if self.exact:
                return [(name[:2].lower(), percent / 100.0) for name, _, percent, _ in details]
            return [(code, percent / 100.0) for _, code, percent, _ in details if code != "un"]
        return []


def _printable(text: str) -> str:
    import regex

    found: str = regex.sub(r"[\p{Cc}\p{Cs}]+", "", text)
    return found


register_forms(
    _Cld2,
    cld2_doc_v2=ALL,
    cld2_paragraph_v2=PARAGRAPHS,
    cld2_en_doc_v2=ENGLISH,
    cld2_en_paragraph_v2=ENGLISH_PARAGRAPHS,
    cld2_en_paragraph_with_doc_score_v2=ENGLISH_TOTAL,
)
