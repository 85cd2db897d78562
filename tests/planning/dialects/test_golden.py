"""What Energon loads from metadatasets, a plan for validation loads: keys, subflavors, sources and fields, in order."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedmill.errors import ConfigError, TrustError
from feedmill.indexing.prepare import prepare
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.types import BASE_FIELDS, TypedSample
from helpers.digests import GOLDEN, digest, expected, golden_digest

META = GOLDEN / "metadatasets"
NEGATIVE = GOLDEN / "negative" / "joins"
LOADS = expected("metadatasets")["loads"]


@dataclass(kw_only=True, slots=True)
class Joined(TypedSample):
    """As the golden data's own `goldenjoin.Joined`, which needs Energon to be imported."""

    left: str
    image: Any
    third: Any

    @classmethod
    def from_joined(cls, left: Any, right: Any = None, other: Any = None) -> Joined:
        third = other and (other.text if hasattr(other, "text") else list(other.image.shape))
        return cls.derive_from(left, left=left.text, image=right and right.image, third=third)


def _by_name(**sides: Any) -> Joined:
    left, right = sides["l"], sides["r"]
    return Joined.derive_from(left, left=left.text, image=right.image, third="kw")


@pytest.fixture(autouse=True)
def joiners(monkeypatch: pytest.MonkeyPatch) -> None:
    golden, negative = ModuleType("goldenjoin"), ModuleType("negjoin")
    golden.Joined = Joined  # type: ignore[attr-defined]
    golden.by_name = _by_name  # type: ignore[attr-defined]
    negative.pair = lambda left, right: (left, right)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "goldenjoin", golden)
    monkeypatch.setitem(sys.modules, "negjoin", negative)


@pytest.mark.parametrize("name", LOADS)
def test_loads(name: str) -> None:
    pytest.importorskip("torch")
    entry = LOADS[name]
    recipe = Recipe.load(META / entry["path"], split=entry["args"]["split_part"], mode="validation")
    plan = recipe.plan(partial(open_dataset, decode=Decoder("torchrgb")), trust=True)
    assert plan.length == entry["count"] == len(entry["samples"])
    for sample, golden in zip(plan.read(range(entry["count"])), entry["samples"], strict=True):
        (listed,) = golden["sources"]
        (source,) = sample.__sources__
        assert sample.__key__ == golden["key"]
        assert (sample.__subflavors__ or None) == (golden["subflavors"] or None)
        assert Path(source.dataset).name == listed["dataset"]
        assert (source.file, list(source.names)) == (listed["shard"], listed["files"])
        if not name.startswith("join"):  # Energon counts the rows of a join here
            assert source.index == listed["index"]
        fields = [field.name for field in dataclasses.fields(sample) if field.name not in BASE_FIELDS]
        assert {field: digest(getattr(sample, field)) for field in fields} == {
            field: golden_digest(value) for field, value in golden["fields"].items()
        }


def test_a_missing_partner_gives_none_where_energon_fails() -> None:
    plan = Recipe.load(META / "join_none.yaml", mode="validation", split="train").plan(trust=True)
    samples = plan.read(range(5))
    assert [sample.__key__ for sample in samples] == ["0000", "0001", "0004", "0005", "0008"]
    assert [sample.third is None for sample in samples] == [False, False, True, True, True]


def test_joiners_need_trust() -> None:
    with pytest.raises(TrustError, match=r"join.yaml:13: .*'goldenjoin'"):
        Recipe.load(META / "join.yaml").plan()


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("file", "split"), [("two_splits", "train"), ("two_splits", "val"), ("excludes", "train")])
def test_each_split_has_its_own_rows(file: str, split: str, prepared: bool, tmp_path: Path) -> None:
    root = Path(shutil.copytree(NEGATIVE, tmp_path / "joins"))
    if prepared:
        prepare(str(root / f"{file}.yaml"), progress=False)
    plan = Recipe.load(root / f"{file}.yaml", split=split, mode="validation").plan(trust=True)
    rows = [
        [left.__key__, *(hashlib.sha256(side.text.encode()).hexdigest() for side in (left, right))]
        for left, right in plan.read(range(plan.length or 0))
    ]
    wanted = expected("negative")["energon"][f"joins/{file}.yaml"]["rows"]
    assert rows == (wanted[split] if isinstance(wanted, dict) else wanted)


def test_an_empty_join_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"other_part.yaml:5: the join has no rows") as error:
        Recipe.load(NEGATIVE / "other_part.yaml", mode="validation", split="train").plan(trust=True)
    assert error.value.kind == "empty-source"
