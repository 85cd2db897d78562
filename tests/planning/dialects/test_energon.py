"""Metadatasets as recipes: weights, nesting, subsets, subflavors; every rule broken is refused with its line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.energon.prepared import open_prepared
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from helpers.digests import GOLDEN
from helpers.number_dataset import Numbered

META = GOLDEN / "metadatasets"
HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"


def opener(path: str, **options: str) -> Numbered:
    return Numbered(f"{path.rpartition('/')[2]}|{options.get('split')}", 100)


def write(folder: Path, name: str, node: str, head: str = HEAD) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "".join(f"    {line}\n" for line in node.strip("\n").split("\n")))
    return path


def refused(folder: Path, node: str, head: str = HEAD) -> FeedmillError:
    with pytest.raises((ConfigError, NotFound)) as error:
        Recipe.load(write(folder, "bad.yaml", node, head)).plan(opener)
    return error.value


def test_weights_multiply_along_nesting() -> None:
    report = Recipe.load(META / "nested.yaml").plan().report(7000)
    asked = {source.name: source.asked for source in report.sources}
    assert list(asked.values()) == [Fraction(3, 7), Fraction(6, 35), Fraction(2, 5)]
    assert [source.drawn for source in report.sources] == [3000, 1200, 2800]
    assert [source.used for source in report.sources] == [15, 3, 3]


def test_a_v1_file_without_class(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("splits:\n  val:\n    datasets:\n    - {path: a, subflavor: x, weight: 2}\n    - path: b\n")
    plan = Recipe.load(path, split="val").plan(opener)
    assert [source.url for source in plan.sources] == ["a|val", "b|val"]
    assert plan.sources[0].subflavors == {"__subflavor__": "x"}
    assert [source.asked for source in plan.report(3).sources] == [Fraction(2, 3), Fraction(1, 3)]


def test_paths_splits_and_subflavors_of_nested_files(tmp_path: Path) -> None:
    write(
        tmp_path, "deep/inner.yaml",
        "blend:\n- {path: ../x, subflavors: {a: inner, b: inner}, aux: {m: filesystem://media, n: ../y}}\n"
        "- {path: ./z, split_part: other, shuffle_over_epochs_multiplier: null}",
    )  # fmt: skip
    (tmp_path / "deep/media").mkdir()
    (tmp_path / "y").mkdir()
    outer = write(tmp_path, "outer.yaml", "path: deep/inner.yaml\nsubflavors: {b: outer, c: outer}")
    opened: list[str] = []

    def recording(path: str, **options: str) -> Numbered:
        opened.append(path)
        return opener(path, **options)

    recipe = Recipe.load(outer)
    plan = recipe.plan(recording)
    assert opened == [f"{tmp_path}/x", f"{tmp_path}/deep/z"]
    assert [source.url for source in plan.sources] == ["x|train", "z|other"]
    assert plan.sources[0].subflavors == {"a": "inner", "b": "outer", "c": "outer"}
    assert plan.sources[0].aux == {"m": f"filesystem://{tmp_path}/deep/media", "n": f"{tmp_path}/y"}
    assert plan.sources[1].subflavors == {"b": "outer", "c": "outer"} and plan.sources[1].aux == {}
    assert "z: 100 samples, repeated" in str(plan) and "x: 100 samples, shuffle block" in str(plan)
    assert str(tmp_path) not in str(recipe)


def test_ranges_are_taken_from_the_inside_out_and_rounded_once(tmp_path: Path) -> None:
    write(tmp_path, "inner.yaml", "path: a\nsubset: {range: [10, 28]}")
    write(tmp_path, "middle.yaml", "path: inner.yaml\nsubset: {range: ['10%', '90%']}")
    outer = write(tmp_path, "outer.yaml", "blend:\n- {path: middle.yaml, subset: {range: ['0%', '50%']}}")
    plan = Recipe.load(outer).plan(opener)
    # 18 samples from 10; of them 10 % to 90 %, of that the first half: 10 % to 50 %, that is [1.8, 9)
    assert "a: 100 samples, subset [11, 19)" in str(plan)


def test_a_source_may_stand_twice_with_its_own_words(tmp_path: Path) -> None:
    path = write(tmp_path, "twice.yaml", "blend:\n- {path: a, subflavors: {n: 1}}\n- path: a")
    plan = Recipe.load(path).plan(opener)
    assert [source.subflavors for source in plan.sources] == [{"n": 1}, None] and plan.names == ["a", "a-2"]


def test_validation_is_a_row_without_weights(tmp_path: Path) -> None:
    path = write(tmp_path, "x.yaml", "blend:\n- {path: a, weight: -3}\n- path: b", HEAD.replace("train", "val"))
    plan = Recipe.load(path, mode="validation").plan(opener)
    assert plan.length == 200 and plan.locate([0, 99, 100]).index.tolist() == [0, 99, 0]
    with pytest.raises(ConfigError, match="unknown mode 'test'"):
        Recipe.load(path, mode="test")
    with pytest.raises(ConfigError, match="not supported for Feedmill recipes"):
        Recipe.parse({"source": "a"}, split="val")


def test_a_data_set_is_a_recipe_of_one_source(tmp_path: Path) -> None:
    plan = Recipe.load(META / "dsA").plan()
    assert plan.length is None and len(plan.sources[0]) == 30
    plan = Recipe.load(META / "dsB", split="train", mode="validation").plan()
    assert plan.length == 11 and plan.locate([3]).index.tolist() == [3]
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"a": 1}\n{"a": 2}\n')
    assert [sample["json"] for sample in Recipe.load(lines, mode="validation").plan().read([0, 1])]
    (tmp_path / "own.yaml").write_text(f"source: {{recipe: '{META}/v1.yaml'}}\nsamples: 8\n")
    assert Recipe.load(tmp_path / "own.yaml").plan().report().sources[0].drawn == 2


def test_as_plain_data() -> None:
    data: dict[str, Any] = {"splits": {"train": {"datasets": [{"path": "dsA"}, {"path": "dsB", "weight": 2.0}]}}}
    plan = Recipe.parse(data, base=META).plan(open_dataset)
    assert [len(source) for source in plan.sources] == [30, 11]
    assert len(open_prepared(plan.sources[0].store, "x", split="train")) == 30  # type: ignore[attr-defined]


BAD = [
    ("path: a\nsubset: {range: [0, 101]}", "bad.yaml:6: the subset [0, 101) does not lie in its 100 samples"),
    ("path: a\nsubset: {range: [50, 20]}", "bad.yaml:6: the subset [50, 20)"),
    ("path: a\nsubset: {range: ['50%', '120%']}", "bad.yaml:6: source.subset"),
    ("path: a\nsubset: [0, 10]", "bad.yaml:6: expected 'subset: {range: [first, end]}'"),
    ("path: a\nsubset: {split: x}", "bad.yaml:6: expected 'subset"),
    ("subset: {range: [0, 5]}\nblend:\n- path: a", "bad.yaml:5: the range [0, 5] of a mixture must be in percent"),
    ("blend:\n- {path: a, weight: -1}\n- path: b", "bad.yaml:6: blend[0].weight: the weight '-1' is negative"),
    ("blend:\n- {path: a, weight: 0}\n- {path: b, weight: 0.0}", "bad.yaml:5: blend: "),
    ("blend:\n- {path: a, weight: nan}", "bad.yaml:6: blend[0].weight"),
    (
        "blend:\n- {path: a, wieght: 1}",
        "bad.yaml:6: unknown key 'wieght' of an entry of 'blend' (did you mean 'weight'?)",
    ),
    ("blend:\n- blend:\n  - path: a", "bad.yaml:6: unknown key 'blend'"),
    ("blend: []", "bad.yaml:5: expected a list of datasets"),
    (
        "path: a\nblend:\n- path: b",
        "bad.yaml:4: expected one of 'path', 'join', 'blend' or 'blend_epochized', found path and",
    ),
    ("split_part: a", "bad.yaml:4: expected one of"),
    ("path: bad.yaml", "bad.yaml:5: the metadatasets contain each other: bad.yaml -> bad.yaml"),
    ("path: gone.yaml", "bad.yaml:5: the metadataset"),
    ("path: other.yaml\naux: {a: b}", "bad.yaml:6: 'aux' cannot be given for a metadataset"),
    ("path: own.yaml", "bad.yaml:5: own.yaml is not a metadataset"),
    ("path: other.yaml\nsplit_part: val", "other.yaml:3: there is no split 'val'. The metadataset has: train"),
    ("path: x.jsonl\ndataset_config: y.yaml", "bad.yaml:6: a JSONL file has no 'dataset_config'"),
    ("path: a\naux: {m: x.yaml}", "bad.yaml:6: x.yaml cannot be an auxiliary source"),
    ("path: a\nshuffle_over_epochs_multiplier: 0", "bad.yaml:6: 'shuffle_over_epochs_multiplier'"),
    ("path: a\nsubflavors: [x]", "bad.yaml:6: 'subflavors': expected a mapping"),
    (
        "blend:\n- path: epochized.yaml\n- path: a",
        "epochized.yaml:5: 'blend' and 'blend_epochized' cannot be combined",
    ),
    ("join:\n- path: a\n- path: b", "bad.yaml:4: 'joiner': expected a mapping, found nothing"),
    ("join: [{path: a}, {path: b}]\njoiner: {}\nsplit_config: x", "bad.yaml:7: a join has no 'split_config'"),
    ("join:\n- path: a\n- {path: b, subset: 1}\njoiner: {}", "bad.yaml:7: a dataset of a join has no 'subset'"),
    ("join:\n- path: a\n- path: b.jsonl\njoiner: {}", "bad.yaml:7: b.jsonl cannot be joined"),
    ("join:\n- {path: a, nonmatch: skip}\n- path: b\njoiner: {}", "bad.yaml:4: source: the first dataset of a join"),
    ("join:\n- path: a\n- {path: b, nonmatch: maybe}\njoiner: {}", "bad.yaml:7: source.join[1].nonmatch"),
    ("join:\n- path: a\njoiner: {}", "bad.yaml:5: source.join: list should have at least 2 items"),
]


@pytest.mark.parametrize(("node", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_broken_rules_name_file_and_line(node: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, "other.yaml", "path: a")
    write(tmp_path, "epochized.yaml", "blend_epochized:\n- path: a")
    (tmp_path / "own.yaml").write_text("source: a\n")
    assert message in str(refused(tmp_path, node)).replace(f"{tmp_path}/", "")


def test_another_version_or_class_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, "path: a", HEAD.replace("V2", "V3"))
    assert error.kind == "unsupported" and "bad.yaml:2: " in str(error)
    error = refused(tmp_path, "path: a", HEAD.replace("megatron.energon", "mine"))
    assert error.kind == "unsupported"
    assert "'splits'" in str(refused(tmp_path, "", "__class__: MetadatasetV2\n"))
    assert refused(tmp_path, "path: a", HEAD.replace("train", "test")).kind == "no-such-split"


def test_repetitions_count_and_multiply_along_nesting(tmp_path: Path) -> None:
    plan = Recipe.load(META / "epochs.yaml").plan()
    epoch = 60 + 16 + 6  # 2 x 30, 1.5 x 11, 1 x 6
    assert plan.length is None
    assert [source.drawn for source in plan.report(epoch).sources] == [60, 16, 6]
    write(tmp_path, "inner.yaml", "blend_epochized:\n- {path: a, repetitions: 3}\n- path: b")
    outer = write(tmp_path, "outer.yaml", "blend_epochized:\n- {path: inner.yaml, repetitions: 2}\n- path: c")
    report = Recipe.load(outer).plan(opener).report(900)
    assert [source.drawn for source in report.sources] == [600, 200, 100]
    wrong = "blend_epochized:\n- {path: a, repetitions: -1}\n- path: b"
    assert "bad.yaml:6" in str(refused(tmp_path, wrong))
