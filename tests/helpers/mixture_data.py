"""A recipe over small token files, for the tests of mixtures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore

TOKENS = {"web": 60_000, "code": 20_000, "math": 8_000, "wiki": 4_000}
"""Tokens at hand of each source."""


def token_files(folder: Path, tokens: dict[str, int] = TOKENS) -> None:
    """Write a ``.pbin`` per source, of documents of 40 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, size) in enumerate(tokens.items()):
        with write_pbin(LocalStore(folder), f"{name}.pbin", 2) as out:
            out.add(np.full(size, number, np.uint16), np.full(size // 40, 40))


def recipe_file(folder: Path, tokens: dict[str, int] = TOKENS, **keys: object) -> Path:
    """Write the files and ``recipe.yaml``, which weighs tokens of them alike."""
    token_files(folder / "data", tokens)
    data = {"seed": 3, "unit": "tokens", "blend": [{"path": f"data/{name}.pbin"} for name in tokens], **keys}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def small_fits(patch: pytest.MonkeyPatch) -> None:
    """Fit a tenth of the trees, and of the laws for an interval: most of what a fit takes.

    Only tests of trees and of intervals ask how good they are.
    """
    patch.setattr("feedmill.mixture.models._TREES", 10)
    patch.setattr("feedmill.mixture.models._REFITS", 20)
