"""Names of torch and Hugging Face datasets: each answers with what to use here, and is still an AttributeError."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import Hinted
from feedmill.formats import habits
from feedmill.loading import checks
from feedmill.samples.types import brief
from helpers.torch_workers import raises


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(20)))
    return path


@pytest.mark.parametrize("name", ["load_dataset", "DataLoader", "interleave", "blend", "pack", "DistributedSampler"])
def test_names_that_people_look_for_in_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'. Use .*fm\."):
        getattr(fm, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = fm.nothing


@pytest.mark.parametrize(
    "name",
    ["take", "head", "shuffle", "column_names", "features", "train_test_split", "with_format", "num_rows", "batch"],
)
def test_names_that_people_look_for_in_a_dataset(name: str, lines: Path) -> None:
    dataset = fm.open(lines)
    assert not hasattr(dataset, name)
    with pytest.raises(AttributeError, match=f"a JsonlDataset has no attribute '{name}'. ") as caught:
        getattr(dataset, name)
    assert caught.value.name == name


def test_a_loader_has_rank_and_world_size_and_no_set_epoch(lines: Path) -> None:
    loader = fm.Loader(lines, 4, rank=1, world_size=3)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert not hasattr(loader, "set_epoch"), "trainers call it where it exists"
    with pytest.raises(AttributeError, match="Each epoch of a plan has an order of its own"):
        _ = loader.set_epoch
    for indexed in (loader, fm.Plan.over(lines)):
        with pytest.raises(TypeError, match=r"is not indexed.*plan\.read\(\[position\]\)"):
            _ = indexed[0]
    assert copy.copy(loader).position == pickle.loads(pickle.dumps(loader)).position == 0


def test_a_hint_names_only_what_exists(lines: Path) -> None:
    dataset = fm.open(lines)
    for hint in [*fm._HINTS.values(), *habits.HINTS.values(), *checks.HINTS.values()]:
        for name in re.findall(r"fm\.(\w+(?:\.\w+)*)", hint):
            assert resolve_name(f"feedmill:{name}"), hint
        for name in re.findall(r"dataset\.(\w+)", hint):
            assert hasattr(dataset, name), hint
        for name in re.findall(r"loader\.(\w+)", hint):
            assert hasattr(fm.Loader, name) or name in ("plan", "layout", "workers"), hint
    assert not [name for name in habits.HINTS if hasattr(dataset, name)]
    assert not [name for name in checks.HINTS if hasattr(fm.Loader(lines, 4), name)]
    assert not set(fm._HINTS) & set(fm.__all__)


def test_an_error_inside_a_property_is_not_hidden_by_the_hints() -> None:
    class Broken(Hinted):
        hints: ClassVar[dict[str, str]] = {"shown": "Use other."}

        @property
        def value(self) -> int:
            return self.inner  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="'inner'"):
        _ = Broken().value
    with pytest.raises(AttributeError, match=r"a Broken has no attribute 'shown'. Use other."):
        _ = Broken().shown  # type: ignore[attr-defined]


class Typed(fm.samples.CaptioningSample):
    """A user's own type."""


def typed(**fields: Any) -> fm.samples.CaptioningSample:
    return fm.samples.CaptioningSample(__key__="000", __restore_key__=("Webdataset", 1), **fields)


def test_a_sample_is_shown_in_one_line_without_its_pixels() -> None:
    sample = typed(image=np.zeros((480, 640, 3), np.uint8), caption="a cat " * 50)
    assert repr(sample).startswith("CaptioningSample('000', image=uint8[480, 640, 3], caption='a cat a cat ")
    assert len(repr(sample)) < 160 and "restore" not in repr(sample)
    assert repr(Typed.extend(sample, caption="a dog")).endswith("caption='a dog')")
    assert (
        brief({"a": [np.zeros(3), b"12", None, 5, "x", ["y"], 7]})
        == "{'a': [float64[3], 2 B, None, 5, 'x', ['y'], ...]}"
    )


def test_default_collate_names_what_makes_batches_of_samples(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    from PIL import Image

    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("a cat")
    fm.import_data(tmp_path, tmp_path / "out")
    dataset = fm.open(tmp_path / "out")
    assert type(dataset[0]) is fm.samples.CaptioningSample
    for workers in (0, 1):
        with raises(TypeError, r"no batch of a CaptioningSample: use .*to_torch\(\).*as_dataset\(\)"):
            next(iter(data.DataLoader(dataset, batch_size=2, num_workers=workers)))
    batch = next(iter(data.DataLoader(dataset, batch_size=2, collate_fn=list)))
    assert [sample.caption for sample in batch] == ["a cat"] * 2
    assert len(next(iter(data.DataLoader(dataset.to_torch(), batch_size=2)))["caption"]) == 2
