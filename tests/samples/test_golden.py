"""What Energon loads, `feedmill.open` loads: keys, sources, subflavors, fields, and parts by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from feedmill.formats.sample import Sample, Source
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.types import BASE_FIELDS
from helpers.digests import GOLDEN, digest, expected, golden_digest

pytest.importorskip("torch")

CASES = ("captioning", "presplit_regex", "sample_types", "tar_quirks", "jsonl_index", "legacy_layouts", "media_wds")
LOADS = [(case, name) for case in CASES for name in expected(case)["loads"]]
STORES = [(case, name) for case in CASES for name in expected(case)["filestore"]]


def load(case: str, name: str) -> list[Any]:
    entry = expected(case)["loads"][name]
    args = dict(entry["args"])
    dataset = open_dataset(
        GOLDEN / case / entry["path"],
        split=args.pop("split_part", None),
        decode=None if entry["decoder"] == "raw" else Decoder("torchrgb"),
        trust=True,
        **args,
    )
    assert len(dataset) == entry["count"]
    return list(dataset)


def parts_of(sample: Any) -> tuple[str, Any, Source, dict[str, Any]]:
    """Key, subflavors, source and fields of a raw or a typed sample."""
    if isinstance(sample, Sample):
        return sample.key, sample.subflavors, sample.source, dict(sample)
    (source,) = sample.__sources__
    assert sample.__restore_key__ == ("Webdataset", source.index)
    names = [field.name for field in dataclasses.fields(sample) if field.name not in BASE_FIELDS]
    return sample.__key__, sample.__subflavors__, source, {name: getattr(sample, name) for name in names}


@pytest.mark.parametrize(("case", "name"), LOADS)
def test_loads(case: str, name: str) -> None:
    wanted = expected(case)["loads"][name]["samples"]
    found = load(case, name)
    assert len(found) == len(wanted)
    for sample, golden in zip(found, wanted, strict=True):
        key, subflavors, source, fields = parts_of(sample)
        (listed,) = golden["sources"]
        assert key == golden["key"]
        assert (subflavors or None) == (golden["subflavors"] or None)
        assert (source.file, source.index, list(source.names)) == (listed["shard"], listed["index"], listed["files"])
        if case == "jsonl_index":  # shown parsed in the golden data, whatever the decoder
            fields = {"json": json.loads(fields["json"])}
        assert {name: digest(value) for name, value in fields.items()} == {
            name: golden_digest(value) for name, value in golden["fields"].items()
        }


@pytest.mark.parametrize(("case", "name"), STORES)
def test_by_name_access(case: str, name: str) -> None:
    dataset = open_dataset(GOLDEN / case / name, raw=True)
    for file, golden in expected(case)["filestore"][name].items():
        data = dataset.get(file)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (golden["len"], golden["sha256"])
