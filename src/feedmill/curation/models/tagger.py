"""A model as a tagger, and the choice of what runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.models.files import ModelFiles, Settings, bad_model
from feedmill.curation.spans import Spans

if TYPE_CHECKING:
    from feedmill.curation.models.texts import TextModel


def load(model: ModelFiles, settings: Settings, vectors: bool) -> Any:
    """Load a `TextModel` that scores texts, or one that makes vectors; of images, an `ImageModel`.

    Raises:
        ConfigError: The model cannot be loaded, or does something else.
        MissingExtra: A package is not installed.
    """
    if model.reads_images:
        if not vectors:
            fix = "Pass a classifier of texts, or use 'feedmill documents embed'."
            raise bad_model("the model reads images, not texts", model.path, fix)
        from feedmill.curation.models.images import ImageModel

        return ImageModel(model, settings)
    if model.kind == "static":
        from feedmill.curation.models.static import StaticModel

        found: TextModel = StaticModel(model, settings)
    elif model.kind == "fasttext":
        raise bad_model("a fastText classifier makes no vectors", model.path, "Pass an embedding model.")
    else:
        from feedmill.curation.models.networks import Network

        found = Network(model, settings, vectors)
    if not vectors and not found.labels:
        fix = "Pass a classifier, or use 'feedmill documents embed'."
        raise bad_model("the model has no head: it makes vectors, not scores", model.path, fix)
    return found


def is_on_gpu(model: Any) -> bool:
    """Return whether a model has the memory of a GPU, which one process fills."""
    return bool(getattr(getattr(model, "runner", None), "on_gpu", False))


def add_counts(total: dict[str, int], more: dict[str, int]) -> None:
    """Add what a model read to a total."""
    for what, number in more.items():
        total[what] = total.get(what, 0) + number


class ModelTagger:
    """The tagger of a model with a head.

    Attributes:
        counts: What it read.
    """

    metadata = False

    def __init__(self, model: TextModel) -> None:
        self.model, self.counts = model, model.counts

    def tag(self, batch: Batch) -> Spans:
        """Return a span over the whole text for each label. A text without tokens has none."""
        scores = self.model.scores(batch.texts)
        lengths = np.array([len(text) for text in batch.texts], np.int64)
        return Spans.of_documents(lengths, **dict(zip(self.model.labels, scores.T, strict=True)))
