from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

from feedmill.formats.sample import Sample, Source
from feedmill.loading.collate import collate, to_torch


@dataclasses.dataclass(kw_only=True, slots=True)
class Captioned:
    __key__: str
    image: Any
    caption: str


def raw(key: str, **parts: bytes) -> Sample:
    block, spans = b"", {}
    for name, data in parts.items():
        spans[name] = (len(block), len(block) + len(data))
        block += data
    return Sample(
        key, block, spans, lambda: Source("ds", "s0.tar", 0, len(block), 0, key), lambda _, data: data.upper()
    )


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


def test_dicts_become_columns_at_any_depth() -> None:
    values = [{"v": {"a": np.zeros(2), "b": {"n": 1}}}, {"v": {"a": np.ones(2), "c": "x"}}, {"v": None}]
    batch = collate(values[:2])["v"]
    assert batch["a"].shape == (2, 2) and batch["b"] == {"n": [1, None]} and batch["c"] == [None, "x"]
    assert collate(values)["v"]["c"] == [None, "x", None]
    assert collate([{"v": {}}, {"v": {}}])["v"] == {}


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1, 2], np.array([1, 2], dtype=np.int64)),
        ([1, 2.5], np.array([1.0, 2.5])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], dtype=np.float32)),
        ([2**70, 1], [2**70, 1]),
        ([2**63, -1], [2**63, -1]),
        ([1, None], [1, None]),
        ([None, 1], [None, 1]),
        (["a", "b"], ["a", "b"]),
        ([b"a", b"bc"], [b"a", b"bc"]),
        ([{"a": 1}, 2], [{"a": 1}, 2]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_columns(values: list[Any], column: Any) -> None:
    assert_same(collate([{"v": value} for value in values])["v"], column)


def test_arrays_are_stacked_where_shape_and_dtype_agree() -> None:
    zeros, ones = np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)
    assert_same(collate([{"v": zeros}, {"v": ones}])["v"], np.stack([zeros, ones]))
    for other in (np.ones((3, 2), np.uint8), np.ones((2, 3), np.float32), None):
        values = collate([{"v": zeros}, {"v": other}])["v"]
        assert isinstance(values, list) and values[0] is zeros and values[1] is other


def test_samples_of_different_parts_give_the_union() -> None:
    batch = collate([raw("a", jpg=b"x", json=b"{}"), raw("b", json=b"[]"), {"__key__": "c", "n": 1}])
    assert batch == {
        "__key__": ["a", "b", "c"],
        "jpg": [b"X", None, None],
        "json": [b"{}", b"[]", None],
        "n": [None, None, 1],
    }


def test_get_of_a_part_that_a_sample_lacks() -> None:
    sample = raw("a", json=b"{}")
    assert sample.get("json") == b"{}" and sample.get("jpg") is None and sample.get("jpg", 1) == 1


def test_typed_samples_give_their_fields() -> None:
    batch = collate([Captioned(__key__=str(i), image=np.full(2, i), caption=f"c{i}") for i in range(3)])
    assert list(batch) == ["__key__", "image", "caption"]
    assert batch["__key__"] == ["0", "1", "2"] and batch["caption"] == ["c0", "c1", "c2"]
    assert batch["image"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_samples_without_names() -> None:
    labels, names = collate([(1, "a"), (2, "b")])
    assert labels.tolist() == [1, 2] and names == ["a", "b"]
    assert collate([np.zeros(2), np.ones(2)]).shape == (2, 2)
    assert collate(["a", "b"]) == ["a", "b"]
    assert collate([]) == []


def test_torch_shares_memory_and_leaves_the_rest() -> None:
    torch = pytest.importorskip("torch")
    image, text = np.zeros((2, 3), np.uint8), np.array(["a", "b"])
    batch = to_torch(
        {"image": image, "text": text, "names": ["a"], "ragged": [np.zeros(1), np.zeros(2)], "t": (image, 1)}
    )
    image[0, 0] = 9
    assert batch["image"][0, 0] == 9 and batch["t"][0].dtype == torch.uint8 and batch["t"][1] == 1
    assert batch["text"] is text and batch["names"] == ["a"]
    assert [tuple(part.shape) for part in batch["ragged"]] == [(1,), (2,)]


@pytest.mark.filterwarnings("error")
class Pair(NamedTuple):
    x: Any
    rest: Any = None


def test_torch_keeps_named_tuples() -> None:
    torch = pytest.importorskip("torch")
    batch = to_torch({"pair": Pair(np.arange(2), [Pair(np.ones(1), "text")])})
    assert type(batch["pair"]) is type(batch["pair"].rest[0]) is Pair
    assert torch.equal(batch["pair"].x, torch.arange(2)) and torch.equal(
        batch["pair"].rest[0].x, torch.ones(1, dtype=torch.float64)
    )
    assert batch["pair"].rest[0].rest == "text"


def test_torch_copies_what_it_can_not_share() -> None:
    torch = pytest.importorskip("torch")
    frozen = np.arange(3)
    frozen.flags.writeable = False
    batch = to_torch([frozen, np.arange(3)[::-1], np.arange(3, dtype=">i4"), np.arange(3, dtype=np.uint16)])
    assert [part.tolist() for part in batch] == [[0, 1, 2], [2, 1, 0], [0, 1, 2], [0, 1, 2]]
    assert batch[2].dtype == torch.int32


def test_tensors_are_stacked() -> None:
    torch = pytest.importorskip("torch")
    batch = collate([{"v": torch.zeros(2)}, {"v": torch.ones(2)}])
    assert batch["v"].tolist() == [[0, 0], [1, 1]]
