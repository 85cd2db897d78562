"""A dataset that was opened is a value: another view of it is another dataset, and another process opens it again."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import DataError, NotFound
from feedmill.formats.base import Dataset
from helpers.robots import write_robot
from helpers.tars import write_tar


def keys(samples: list[Any]) -> list[str]:
    return [sample.key for sample in samples]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_tar(tmp_path / "a.tar", [(f"{number}.cls", b"%d" % number) for number in range(8)])
    return fm.open(tmp_path)


def test_another_view_is_another_dataset(dataset: Dataset) -> None:
    viewed = dataset.opened_as(view=keys, subflavors={"a": 1}, aux={"more": "there"})
    assert viewed[3] == "3" and dataset[3]["cls"] == 3
    assert dataset.view is None and dataset.subflavors is None and not dataset.aux
    assert viewed.read_raw([3])[0].subflavors == {"a": 1} and viewed.aux == {"more": "there"}
    assert viewed.fingerprint() == dataset.fingerprint()


@pytest.mark.parametrize("name", ["view", "decode", "subflavors", "about", "aux", "opened"])
def test_nothing_is_set_from_outside(dataset: Dataset, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(dataset, name, None)


def test_another_process_opens_it_as_it_was_opened(dataset: Dataset, tmp_path: Path) -> None:
    attached = dataset.opened_as(subflavors={"a": 1}, aux={"more": "there"})
    text = pickle.dumps(attached)
    assert len(text) < 2000 and b"cls" not in text  # the options, and not the index
    again = pickle.loads(text)
    for opened in (again, pickle.loads(pickle.dumps(again))):
        assert opened.subflavors == {"a": 1} and opened.aux == {"more": "there"} and opened[3]["cls"] == 3
    write_tar(tmp_path / "a.tar", [("9.cls", b"9")])
    with pytest.raises(DataError, match="has changed since"):
        pickle.loads(text)


def test_another_view_goes_along(dataset: Dataset) -> None:
    viewed = dataset.opened_as(view=keys)
    assert pickle.loads(pickle.dumps(viewed))[3] == "3"


def test_parts_as_attributes_and_parameters_of_others(dataset: Dataset, tmp_path: Path) -> None:
    """What LeRobot, Hugging Face and sample types spell in another way is named."""
    with pytest.raises(AttributeError, match=r"'Sample' object has no attribute 'cls': a part is sample\['cls'\]"):
        _ = dataset[0].cls
    with pytest.raises(AttributeError, match=r"no attribute '__key__': its key is sample\.key"):
        _ = dataset[0].__key__
    assert not hasattr(dataset[0], "caption")
    with pytest.raises(TypeError, match="open has no parameter 'delta_timestamps': did you mean 'windows'"):
        fm.open(tmp_path, delta_timestamps={})  # type: ignore[call-arg]


def test_datasets_that_need_no_index(tmp_path: Path) -> None:
    """A LeRobot dataset is not prepared, and its tables alone have no cameras."""
    robot = write_robot(tmp_path / "robot", cameras={"front": (8, 8)})
    with pytest.raises(NotFound, match="has the format lerobot and needs no index: open it as it is"):
        fm.prepare(robot.path, progress=False)
    remarks = fm.open(robot.path / "data").remarks
    assert any(f"open {robot.path} to have its cameras" in remark for remark in remarks)
