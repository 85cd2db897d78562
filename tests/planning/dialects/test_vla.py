"""VLA Foundry's lists as recipes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from feedmill.errors import ConfigError
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

LISTS = """
data:
  type: image_caption
  dataset_manifest:
  - s3://my-bucket/a/manifest.jsonl
  - b/part.jsonl
  dataset_weighting:
  - 0.7
  - 0.3
  dataset_modality:
  - image_caption
  - image_caption
"""


def test_manifests_with_weights() -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def opener(path: str, **options: str) -> Numbered:
        asked.append((path, options))
        return Numbered(path, 100)

    plan = Recipe.parse(LISTS, base="/base").plan(opener)
    assert asked == [("s3://my-bucket/a", {}), ("/base/b", {"dataset_config": "part.jsonl"})]
    assert [source.asked for source in plan.report(10).sources] == [Fraction(7, 10), Fraction(3, 10)]
    assert plan.sources[0].subflavors == {"modality": "image_caption"}
    assert plan.length is not None and plan.length <= 143 and plan.seed == 42  # no epoch twice unless allowed
    again = Recipe.parse(LISTS + "  allow_multiple_epochs: true\n  seed: 7\ntotal_train_samples: 500\n")
    assert len(again.plan(opener)) == 500 and again.model.seed == 7


def test_as_plain_data_and_for_validation() -> None:
    data = {
        "type": "text", "dataset_manifest": ["a/manifest.jsonl"], "dataset_weighting": [1], "shuffle": False,
        "dataset_modality": ["text"], "val_dataset_manifest": ["v/manifest.jsonl"], "val_dataset_weighting": [1],
    }  # fmt: skip
    dotted = {f"data.{key}": value for key, value in data.items()}
    assert (
        Recipe.parse(data).fingerprint == Recipe.parse(dotted).fingerprint == Recipe.parse({"data": data}).fingerprint
    )
    assert Recipe.parse(data).model.shuffle.kind == "none"
    plan = Recipe.parse(data, mode="validation").plan(lambda path, **_: Numbered(path, 10))
    assert plan.length == 10 and plan.names == ["v"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  - 0.3\n", "", "recipe:7: the lists must have the same length (dataset_manifest: 2, dataset_weighting: 1"),
        ("  - image_caption\n", "", "recipe:10: the lists must have the same length"),
        ("- 0.3", "- -1", "recipe:9: blend[1].weight: the weight '-1' is negative"),
        ("- 0.3", "- .nan", "recipe:9: blend[1].weight"),
        ("type: image_caption", "type: [image_caption]", "recipe:3: unknown type ['image_caption']"),
        ("- b/part.jsonl", "- b/", "recipe:6: 'b/' is a folder. Pass the path of the manifest in it."),
        ("type: image_caption", "type: robotics", "recipe:11: the modality 'image_caption' cannot be used"),
        ("type: image_caption", "type: image_captions", "(did you mean 'image_caption'?)"),
        ("  type: image_caption\n", "", "unknown type None"),
        ("- b/part.jsonl", "- 'x::pipe:rm'", "recipe:6: 'x::pipe:rm' would run a command"),
        ("- b/part.jsonl", "- 3", "recipe:6: a manifest must be a path or URL"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Recipe.parse(LISTS.replace(old, new))
    assert message in str(error.value)
    with pytest.raises(ConfigError, match="'dataset_manifest' is empty"):
        Recipe.parse({"data": {"type": "text"}})
