"""Fields, sources and subflavors as Energon's own loader gives them."""

from __future__ import annotations

import dataclasses

import pytest

from digests import GOLDEN, digest, expected, golden_digest
from feedmill.formats.base import Sample
from feedmill.samples.decode import Decoder
from feedmill.samples.types import BASE_FIELDS
from feedmill.samples.view import build_view
from feedmill.samples.yamls import read_config
from rawsamples import samples_of_tars

pytest.importorskip("torch")

LOADS = [(case, name) for case in ("captioning", "sample_types", "media_wds") for name in expected(case)["loads"]]


def load(case: str, name: str) -> list:
    entry = expected(case)["loads"][name]
    folder = GOLDEN / case / entry["path"]
    meta = folder / ".nv-meta"
    args = entry["args"]
    split = read_config((meta / args.get("split_config", "split.yaml")).read_bytes(), "split.yaml").value
    config = meta / args.get("dataset_config", "dataset.yaml")
    decoder = None if entry["decoder"] == "raw" else Decoder("torchrgb")
    view = build_view(
        read_config(config.read_bytes(), str(config)),
        decoder=decoder,
        read_meta=lambda path: (meta / path).read_bytes(),
        where=str(config),
        trust=True,
    )
    shards = [shard for shard in split["split_parts"][args["split_part"]] if shard not in split.get("exclude", [])]
    samples = samples_of_tars(folder, _expanded(shards), decode=view.decode, subflavors=view.subflavors)
    wanted = {tuple(s["files"]) for sample in entry["samples"] for s in sample["sources"]}
    samples = view.view(samples) if view.view else samples
    # The split's rules are the formats room's business: keep what the golden load has.
    return [sample for sample in samples if name != "exclude" or _names(sample) in wanted]


def _expanded(shards: list[str]) -> list[str]:
    result = []
    for shard in shards:
        head, brace, rest = shard.partition("{")
        if not brace:
            result.append(shard)
            continue
        inner, _, tail = rest.partition("}")
        first, dots, last = inner.partition("..")
        words = [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)] if dots else inner.split(",")
        result += [head + word + tail for word in words]
    return result


def _names(sample) -> tuple[str, ...]:
    return (sample.source if isinstance(sample, Sample) else sample.__sources__[0]).names


@pytest.mark.parametrize(("case", "name"), LOADS)
def test_load_equals_golden(case: str, name: str) -> None:
    wanted = expected(case)["loads"][name]["samples"]
    found = load(case, name)
    assert len(found) == len(wanted)
    for sample, golden in zip(found, wanted, strict=True):
        if isinstance(sample, Sample):
            key, subflavors, source, fields = sample.key, sample.subflavors, sample.source, dict(sample)
        else:
            key, subflavors, (source,) = sample.__key__, sample.__subflavors__, sample.__sources__
            assert sample.__restore_key__ == ("Webdataset", source.index)
            names = [field.name for field in dataclasses.fields(sample) if field.name not in BASE_FIELDS]
            fields = {field: getattr(sample, field) for field in names}
        assert key == golden["key"]
        assert subflavors == golden["subflavors"]
        (listed,) = golden["sources"]
        assert (source.file, list(source.names)) == (listed["shard"], listed["files"])
        if name != "exclude":
            assert source.index == listed["index"]
        assert {k: digest(v) for k, v in fields.items()} == {k: golden_digest(v) for k, v in golden["fields"].items()}


def test_golden_pixels_are_the_same_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    test_load_equals_golden("media_wds", "crude_decoded")
    test_load_equals_golden("captioning", "default_train")
