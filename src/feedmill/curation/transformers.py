"""Base class of taggers that score documents with a transformer classifier, many at once, on a GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from feedmill.curation.plugins import BaseTagger, DocResult, Document, Span
from feedmill.errors import ConfigError, MissingExtra


class BaseTransformerTagger(BaseTagger):
    """Score whole documents with a sequence classifier of transformers from a local folder; no code of it is run.

    Texts are cut to `max_tokens`, sorted by length, and scored in batches, so that little is padded. Override `spans`
    to write something else than the probability of each label.

    Args:
        model_path: folder with ``config.json``, safetensors and the tokenizer's files.
        device: a device of torch; by default the first GPU, or the CPU.
        dtype: type of the weights, such as ``bfloat16``; by default that of the file on a GPU, ``float32`` on a CPU.
        batch_size: number of texts that are scored at once.
        max_tokens: tokens of a text that are read; by default what the model takes, at most 512.

    Raises:
        MissingExtra: torch or transformers is not installed.
        ConfigError: the folder is not a classifier, or an option is invalid.
    """

    def __init__(
        self,
        model_path: str,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 64,
        max_tokens: int | None = None,
    ) -> None:
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError:
            raise MissingExtra("transformer classifiers need the packages torch and transformers", "torch") from None
        if batch_size < 1 or (max_tokens is not None and max_tokens < 1):
            raise ConfigError("batch_size and max_tokens must be at least 1", file=model_path, fix="Correct them.")
        self.torch: Any = torch
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        wanted = dtype or ("auto" if self.device.startswith("cuda") else "float32")
        local = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model_path, **local)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                model_path, dtype=wanted, use_safetensors=True, **local
            )
            self.model.eval().to(self.device)
        except (OSError, ValueError, AttributeError, RuntimeError, ImportError) as error:
            what = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"this is not a classifier that can be loaded ({what})",
                file=model_path,
                kind="bad-model",
                fix="Pass the folder of a sequence classifier, and a device and dtype that torch has.",
            ) from None
        self.batch_size = batch_size
        longest = int(getattr(self.model.config, "max_position_embeddings", 512))
        self.max_tokens = min(max_tokens or 512, longest)
        config = self.model.config
        self.labels = [str(config.id2label.get(k, k)) for k in range(config.num_labels)]

    def spans(self, document: Document, scores: Sequence[float]) -> Iterable[Span]:
        """Return the spans of a document. `scores` are the probabilities of `labels`, or the value of a regression."""
        return [Span(0, len(document.text), label, score) for label, score in zip(self.labels, scores, strict=True)]

    def tag_batch(self, documents: Sequence[Any]) -> list[DocResult]:
        order = sorted(range(len(documents)), key=lambda k: len(documents[k].text))
        scores: dict[int, list[float]] = {}
        for low in range(0, len(order), self.batch_size):
            chosen = order[low : low + self.batch_size]
            scores.update(zip(chosen, self._scores([documents[k].text for k in chosen]), strict=True))
        return [DocResult(document, list(self.spans(document, scores[k]))) for k, document in enumerate(documents)]

    def _scores(self, texts: list[str]) -> list[list[float]]:
        options = {"padding": True, "truncation": True, "max_length": self.max_tokens, "return_tensors": "pt"}
        with self.torch.inference_mode():
            logits = self.model(**self.tokenizer(texts, **options).to(self.device)).logits.float()
            scores: list[list[float]] = (logits if len(self.labels) == 1 else logits.softmax(-1)).tolist()
        return scores
