"""Secrets in source code: keys and passwords, found by the package detect-secrets."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.registry import Tagger, register
from feedmill.curation.spans import Spans
from feedmill.curation.taggers.lengths import per_word
from feedmill.errors import MissingExtra

_NAME = "code_str.yml"
"""Name under which texts are scanned: some plugins depend on the suffix. It is Dolma's."""


@register("code_secrets_v1")
class CodeSecrets(Tagger):
    """Secrets of each kind that detect-secrets knows, and for the document their number per word, or -1 without words.

    Each secret is reported once, where its line first occurs. Nothing is verified with a service.
    """

    metadata = False

    def __init__(self) -> None:
        try:
            from detect_secrets.core import scan
            from detect_secrets.settings import default_settings
        except ImportError:
            raise MissingExtra("finding secrets needs the package detect-secrets", "curation") from None
        self.scan: Any = scan
        self.settings: Any = default_settings

    def tag(self, batch: Batch) -> Spans:
        kinds: dict[str, int] = {}
        with self.settings():
            found = [self._found(text, kinds) for text in batch.texts]
        share = per_word(batch, np.array([len(spans) for spans in found]))
        parts = [Spans.of_lists(tuple(kinds), found), Spans.of_documents(batch.lengths, doc=share)]
        return Spans.joined(parts)

    def _found(self, text: str, kinds: dict[str, int]) -> list[tuple[int, int, int, float]]:
        lines = text.splitlines()
        secrets = set(self.scan._process_line_based_plugins(lines=list(enumerate(lines, 1)), filename=_NAME))
        spans = []
        for secret in sorted(secrets, key=lambda secret: (secret.line_number, secret.secret_hash, secret.type)):
            value = secret.secret_value or ""
            line = lines[secret.line_number - 1]
            start = text.find(line) + max(line.find(value), 0)
            kind = kinds.setdefault("SECRET_" + secret.type.replace(" ", "_"), len(kinds))
            spans.append((kind, start, start + len(value), 1.0))
        return spans
