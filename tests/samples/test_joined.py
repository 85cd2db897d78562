"""Samples joined by key: tuples, mappings, joiners, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError, NotFound, TrustError
from feedmill.formats.energon.join import JoinSide, compute
from feedmill.samples.joined import JoinedDataset, build_joiner
from feedmill.samples.open import open as open_dataset
from feedmill.samples.types import ImageSample, TextSample
from helpers.digests import GOLDEN

META = GOLDEN / "metadatasets"
CAPTIONING = {"__module__": "megatron.energon", "__class__": "TextSample"}


def joined(*, raw: bool = False, names: Any = None, joiner: Any = None) -> JoinedDataset:
    parts = [
        JoinSide.of(open_dataset(META / name, split="train", raw=raw), nonmatch)
        for name, nonmatch in (("joinL", "error"), ("joinR", "skip"), ("joinS", "none"))
    ]
    return JoinedDataset([part.dataset for part in parts], compute(parts).samples, names=names, joiner=joiner)


def test_a_list_join_gives_tuples_with_none_for_what_is_missing() -> None:
    dataset = joined()
    assert len(dataset) == 5
    first, third = dataset.read([0, 2])
    assert [type(sample) for sample in first] == [TextSample, ImageSample, type(first[2])]
    assert {sample.__key__ for sample in first} == {"0000"} and first[2] is not None
    assert third[0].text == "L4" and third[2] is None
    assert dataset[-1][0].__key__ == "0008" and len(list(dataset)) == 5


def test_a_mapping_join_gives_mappings() -> None:
    row = joined(names=["l", "r", "s"])[3]
    assert list(row) == ["l", "r", "s"] and row["l"].text == "L5" and row["s"] is None


def test_raw_samples_have_the_parts_of_all() -> None:
    dataset = joined(raw=True, names=["l", "r", "s"])
    whole, gap = dataset.read_raw([0, 4])
    assert set(whole) > {"l.txt", "r.png"} and set(gap) == {"l.txt", "r.png"}
    assert whole.key == "0000" and whole["l.txt"] == "L0" and whole.raw("r.png")[1:4] == b"PNG"
    assert whole.source.file == "a.tar" and dataset.locate(4).key == "0008"
    assert dataset.find("0008") == 4 and dataset.describe()["samples"] == 5 and dataset.splits == {}
    with pytest.raises(NotFound):
        dataset.find("0007")


def test_sample_types_are_made_of_the_fields_they_have() -> None:
    dataset = joined(joiner=build_joiner(CAPTIONING, at="x.yaml:3", trust=False))
    sample = dataset[3]
    assert type(sample) is TextSample and (sample.__key__, sample.text) == ("0005", "L5")
    assert [source.file for source in sample.__sources__ or ()] == ["a.tar", "x.tar"]


def test_functions_get_positions_or_names() -> None:
    assert joined(joiner=lambda left, right, third: (left.text, third is None)).read([2]) == [("L4", True)]
    assert joined(names=["a", "b", "c"], joiner=lambda *, c, b, a: a.text).read([0]) == ["L0"]
    with pytest.raises(DataError, match=r"a.tar '0004' at byte 3072: the joiner failed: AttributeError.*receives None"):
        joined(joiner=lambda left, right, third: third.text)[2]


def test_own_code_needs_trust() -> None:
    for kind, name in (("__function__", "join"), ("__class__", "PurePath")):
        config = {"__module__": "posixpath" if name == "join" else "pathlib", kind: name}
        with pytest.raises(TrustError, match=f"x.yaml:3: .*{name}.*--trust"):
            build_joiner(config, at="x.yaml:3", trust=False)
    assert build_joiner({"__module__": "posixpath", "__function__": "join"}, at="", trust=True)("a", "b") == "a/b"
    with pytest.raises(ConfigError, match="has no method 'from_joined'"):
        build_joiner({"__module__": "pathlib", "__class__": "PurePath"}, at="x.yaml:3", trust=True)
    with pytest.raises(ConfigError, match=r"x.yaml:3: .*TextSampel.*did you mean"):
        build_joiner({"__module__": "megatron.energon", "__class__": "TextSampel"}, at="x.yaml:3", trust=False)


def test_rows_made_for_other_data_never_pass() -> None:
    good = joined()
    rows = good.rows.copy()
    rows[1, 1] = rows[0, 1]
    wrong = JoinedDataset(good.parts, rows)
    assert wrong.fingerprint() != good.fingerprint() == joined().fingerprint()
    assert wrong.read([0])[0][0].__key__ == "0000"
    with pytest.raises(DataError, match=r"'0000'.*this sample is joined to the key '0001'") as error:
        wrong.read(np.arange(2))
    assert error.value.kind == "stale-index"
