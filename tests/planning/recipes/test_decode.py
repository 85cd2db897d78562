"""What a recipe says of decoding reaches the datasets that it opens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset
from helpers.tars import make_shards


def opened(recipe: dict[str, Any], base: Path, trust: bool = False) -> dict[str, Any]:
    """What each source's decoder is, by name."""
    plan = Recipe.parse(recipe, base=base).plan(trust=trust)
    return {name: source.decode for name, source in zip(plan.names, plan.sources, strict=True)}


def test_a_recipe_and_its_sources_say_how_parts_are_decoded(tmp_path: Path) -> None:
    make_shards(tmp_path / "a", [3])
    make_shards(tmp_path / "b", [3])
    whole = {"source": "a/", "decode": "torchrgb"}
    assert opened(whole, tmp_path) == {"a": Decoder("torchrgb")}
    assert opened(whole, tmp_path, trust=True) == {"a": Decoder("torchrgb", trust=True)}
    assert opened({"source": "a/", "decode": "bytes"}, tmp_path) == {"a": None}
    assert opened({"source": "a/"}, tmp_path) == {"a": Decoder()}
    mixed = {
        "decode": {"av": "numpy", "video_decode_audio": True},
        "blend": [
            {"path": "a/"},
            {"path": "b/", "name": "own", "decode": "pil"},
            {"path": "b/", "name": "bytes", "decode": {"undecoded": True}},
        ],
    }
    assert opened(mixed, tmp_path) == {
        "a": Decoder(av="numpy", video_decode_audio=True), "own": Decoder("pil"), "bytes": None,
    }  # fmt: skip


def test_plans_with_decoders_travel(tmp_path: Path) -> None:
    make_shards(tmp_path / "a", [3])
    plan = Recipe.parse({"source": "a/", "decode": "bytes"}, base=tmp_path).plan()
    again = pickle.loads(pickle.dumps(plan))
    assert isinstance(again.sources[0][0]["json"], bytes)
    assert open_dataset(tmp_path / "a")[0]["json"]["n"] == 0


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ("torchrbg", "did you mean 'torchrgb'"),
        ({"av": "video"}, "cannot be decoded as 'video'"),
        ({"undecoded": True, "image": "l8"}, "cannot be combined with other options"),
        ({"size": 3}, "size"),
        (7, "decode"),
    ],
)
def test_what_makes_no_sense_is_refused(decode: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        Recipe.parse({"source": "a/", "decode": decode}, base=tmp_path)


def test_a_mixture_has_no_decoding_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'decode' needs a dataset"):
        Recipe.parse({"concat": [{"blend": [{"path": "a/"}, {"path": "b/"}], "decode": "l8"}]}, base=tmp_path)
