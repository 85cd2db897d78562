"""Scores from models in local files: fastText classifiers, and token counts of tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.fasttexts import load_model
from feedmill.curation.models.texts import whole_texts
from feedmill.curation.plugins import sentences
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.errors import ConfigError, MissingExtra

_JIGSAW = "jigsaw_fasttext_bigrams_{}_final.bin"
_MIXED = "cc_wiki_wikiref_sw_pes2o_adult_fakenews_math_books_openhermes.bin"
_PREFIX = "__label__"
NEOX = "allenai/eleuther-ai-gpt-neox-20b-pii-special/tokenizer.json"
Label = tuple[str, float]


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a tokenizer.json, which encodes whole texts, always alike.

    Raises:
        ConfigError: The file is not a tokenizer.
        MissingExtra: The package tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizers need the package tokenizers", "tokenize") from None
    try:
        found = Tokenizer.from_file(path)
    except Exception as error:  # the package raises nothing more precise
        raise ConfigError(
            f"this file is not a tokenizer: {error}", file=path, fix="Pass the path of a tokenizer.json."
        ) from None
    whole_texts(found)
    return found


class _Classifier:
    """Base of the taggers that apply a fastText model to each document, or to each of its sentences."""

    metadata = False
    by_sentence = False

    def __init__(self, path: str) -> None:
        self.model = load_model(path)
        if self.by_sentence:
            sentences("a")

    def labels(self, text: str) -> Sequence[Label]:
        """Return the labels to write for a document or sentence, with their scores."""
        raise NotImplementedError

    def tag(self, batch: Batch) -> Spans:
        kinds: dict[str, int] = {}
        found = []
        for text in batch.texts:
            parts = sentences(text) if self.by_sentence else [(0, len(text))]
            spans = [(low, high, label) for low, high in parts for label in self.labels(text[low:high])]
            found.append([(kinds.setdefault(name, len(kinds)), low, high, score) for low, high, (name, score) in spans])
        return Spans.of_lists(tuple(kinds), found)

    def every(self, text: str) -> list[Label]:
        """Return all labels, most likely first."""
        names, scores = self.model.predict(text, k=-1)
        return [(name, float(score)) for name, score in zip(names, scores, strict=True)]


@register("fasttext_doc", file="")
class AnyClassifier(_Classifier):
    """All labels of the document, by any fastText classifier."""

    def labels(self, text: str) -> Sequence[Label]:
        found = self.every(text.replace("\n", " ").strip())
        return [(name.removeprefix(_PREFIX), score) for name, score in found]


class _Jigsaw(_Classifier):
    """The two most likely labels, the one with ``non`` in its name last."""

    def labels(self, text: str) -> Sequence[Label]:
        found = self.every(text.replace("\n", " ").strip())[:2]
        return found[::-1] if found and "non" in found[0][0] else found


@register("jigsaw_hatespeech_document_v2", file=_JIGSAW.format("hatespeech"))
class HateDocument(_Jigsaw):
    """Hate speech score of the whole text."""


@register("jigsaw_hatespeech_sentence_v2", file=_JIGSAW.format("hatespeech"))
class HateSentence(_Jigsaw):
    """Hate speech score of each sentence."""

    by_sentence = True


@register("jigsaw_nsfw_document_v1", file=_JIGSAW.format("nsfw"))
class UnsafeDocument(_Jigsaw):
    """NSFW score of the whole text."""


@register("jigsaw_nsfw_sencence_v2", file=_JIGSAW.format("nsfw"))
class UnsafeSentence(_Jigsaw):
    """NSFW score of each sentence. The misspelled name is Dolma's."""

    by_sentence = True


@register("dclm-oh-eli5", file="openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train.bin")
class Dclm(_Classifier):
    """DCLM quality score: how likely the text is of high quality (Li et al. 2024, https://arxiv.org/abs/2406.11794)."""

    def labels(self, text: str) -> Sequence[Label]:
        names, scores = self.model.predict(" ".join(text.strip().splitlines()))
        if not names:
            return []
        name, score = names[0].removeprefix(_PREFIX), float(scores[0])
        return [("score" if name in ("cc", "hq") else name, 1 - score if name == "cc" else score)]


@register("dolma17-quality", file=_MIXED)
class Dolma17(_Classifier):
    """All labels of the text with each run of white space replaced by one space."""

    def labels(self, text: str) -> Sequence[Label]:
        found = sorted(self.every(" ".join(text.split())), key=lambda label: -label[1])
        return [(name.removeprefix(_PREFIX), score) for name, score in found]


@register("code_composition", file="code-comment-prose-model.bin")
class CodeComposition(_Classifier):
    """Lines of code and of prose in the document: shares, counts, the entropy of their labels, and the boundaries.

    Lines of three characters or fewer have the label ``other``. `boundaries` counts changes between code and prose in
    adjacent lines that are not blank.
    """

    def labels(self, text: str) -> Sequence[Label]:
        entropies: dict[str, list[float]] = {}
        before, boundaries = "", 0
        for line in filter(None, map(str.strip, text.splitlines())):
            names, scores = self.model.predict(line, k=-1) if len(line) > 3 else ((), ())
            label = names[0].removeprefix(_PREFIX) if names else "other"
            p = np.array([score for score in scores if score > 0], np.float64)
            entropies.setdefault(label, []).append(float(-(p * np.log2(p)).sum()))
            boundaries += {before, label} == {"code", "prose"}
            before = label
        lines = sum(map(len, entropies.values()))
        labels: list[Label] = [("boundaries", float(boundaries))]
        for label, values in entropies.items():
            labels += [(f"{label}_pct", round(len(values) / lines, 2)), (label, float(len(values)))]
            labels.append((f"{label}_entropy", sum(values) / len(values)))
        return labels


class _Tokens:
    """Base of the taggers that count tokens."""

    metadata = False
    kind, stripped, special = "tokens", False, False

    def __init__(self, path: str) -> None:
        self.tokenizer = load_tokenizer(path)

    def tag(self, batch: Batch) -> Spans:
        texts = [text.strip() for text in batch.texts] if self.stripped else batch.texts
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=self.special)
        # Like Dolma, count 0 for an empty text: the special tokens would count otherwise.
        counts = np.array([len(tokens) if text else 0 for tokens, text in zip(encoded, texts, strict=True)])
        return Spans.of_documents(batch.lengths, **{self.kind: counts})


@register("tokens", file="tokenizer.json")
@register("tokenizers_EleutherAI_GPT_NeoX_20B", file="EleutherAI/gpt-neox-20B/tokenizer.json")
@register("tokenizers_AI2_OLMo_v1", file=NEOX)
class Tokens(_Tokens):
    """Number of tokens of the unchanged text, by any tokenizer.json."""


@register("dolma_v1_tokenizer", file="allenai/gpt-neox-olmo-dolma-v1_5/tokenizer.json")
@register("dolma_v2_tokenizer", file="allenai/dolma2-tokenizer/tokenizer.json")
class DolmaTokens(_Tokens):
    """Number of tokens of the stripped text, including the special tokens that the tokenizer adds."""

    kind, stripped, special = "length", True, True
