"""Taggers with a transformer classifier: scores as one by one, in any batch, and models that cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feedmill.curation.plugins import Document, Span
from feedmill.errors import ConfigError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from feedmill.curation.transformers import BaseTransformerTagger  # noqa: E402

TEXTS = ["good day", "a much longer text with a good number of words", "", "day day day", "x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(" ".join(TEXTS).split()))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, id2label={0: "low", 1: "high"}, label2id={"low": 0, "high": 1},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def test_scores_do_not_depend_on_the_batch(model: str) -> None:
    documents = [Document("s", str(k), text) for k, text in enumerate(TEXTS)]
    alone = [BaseTransformerTagger(model, device="cpu").predict(document).spans for document in documents]
    for size in (1, 2, 64):
        found = BaseTransformerTagger(model, device="cpu", batch_size=size).tag_batch(documents)
        assert [result.doc.id for result in found] == [document.id for document in documents]
        for result, wanted in zip(found, alone, strict=True):
            assert [span.type for span in result.spans] == ["low", "high"]
            assert [span.score for span in result.spans] == pytest.approx([span.score for span in wanted], abs=1e-5)
            assert sum(span.score for span in result.spans) == pytest.approx(1, abs=1e-5)
    assert len({round(spans[1].score, 6) for spans in alone}) > 2


def test_spans_of_ones_own_and_another_type(model: str) -> None:
    class Best(BaseTransformerTagger):
        def spans(self, document: Document, scores: object) -> list[Span]:
            return [Span(0, 1, "best", max(scores))]  # type: ignore[call-overload]

    tagger = Best(model, device="cpu", dtype="bfloat16", max_tokens=4)
    (span,) = tagger.predict(Document("s", "i", TEXTS[1])).spans
    assert span.type == "best" and 0.5 <= span.score <= 1 and tagger.model.dtype == torch.bfloat16


def test_models_that_cannot_be_loaded(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ConfigError, match="not a classifier that can be loaded"):
        BaseTransformerTagger(str(tmp_path), device="cpu")
    with pytest.raises(ConfigError, match="not a classifier that can be loaded"):
        BaseTransformerTagger(model, device="cpu", dtype="float7")
    with pytest.raises(ConfigError, match="at least 1"):
        BaseTransformerTagger(model, batch_size=0)
