"""Plain WebDataset as the library itself reads it: every decoder, odd names, and damage that it passes over in silence.

`formats/expected.json` says what webdataset 1.0.2 gave. Where it is silent about damage, we are not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset

GOLDEN = Path(__file__).parents[1] / "golden" / "vla" / "formats"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
DECODED_TOO = ("msgpack",)  # webdataset leaves these bytes
PICKLES = ("pickle", "pkl", "pyd", "pth")  # webdataset runs these; see docs/security.md
SPECS = [spec for spec in EXPECTED["decode"] if spec != "None"]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def told(value: Any) -> dict[str, Any]:
    """A value in the words of the expectations."""
    kind = type(value).__name__
    if isinstance(value, bytes):
        return {"kind": "bytes", "nbytes": len(value), "sha256": sha(value)}
    if isinstance(value, np.ndarray):
        data = sha(np.ascontiguousarray(value).tobytes())
        return {"kind": kind, "dtype": value.dtype.str, "shape": list(value.shape), "data_sha256": data}
    if kind == "Tensor":
        dtype = str(value.dtype).removeprefix("torch.")
        data = sha(value.contiguous().numpy().tobytes())
        return {"kind": "tensor", "dtype": dtype, "shape": list(value.shape), "data_sha256": data}
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return {"kind": "PIL", "mode": value.mode, "size": list(value.size), "data_sha256": sha(value.tobytes())}
    if isinstance(value, dict):
        return {"kind": kind, "items": {name: told(item) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"kind": kind, "items": [told(item) for item in value]}
    return {"kind": kind, "value": value}


def parts(decode: Decoder) -> dict[str, Any]:
    """Every part of the tar by its name in lower case, as webdataset has it, and its own name."""
    dataset = open_dataset(GOLDEN / "all_extensions.tar", decode=decode)
    return {name.lower(): (sample, name) for sample in dataset for name in sample}


def value(sample: Any, name: str) -> Any:
    return sample[name]


def same(found: dict[str, Any], said: dict[str, Any]) -> bool:
    return {**found, "kind": found["kind"].lower()} == {**said, "kind": said["kind"].lower()}


def test_every_decoder_gives_the_same() -> None:
    found = parts(Decoder())
    expected = EXPECTED["decode"]["None"]
    images = EXPECTED["decode"]["rgb8"]
    assert set(found) == set(expected)
    for name, said in expected.items():
        if name in (*PICKLES, *DECODED_TOO) or name in images:
            continue
        assert same(told(value(*found[name])), said), name


@pytest.mark.parametrize("spec", SPECS)
def test_every_image_spec_gives_the_same(spec: str) -> None:
    found = parts(Decoder(image=spec))
    for name, said in EXPECTED["decode"][spec].items():
        assert same(told(value(*found[name])), said), name


def test_pickles_stay_bytes() -> None:
    found = parts(Decoder())
    for name in ("pickle", "pkl", "pyd"):
        sample, own = found[name]
        assert isinstance(sample[own], bytes) and sample[own] == sample.raw(own)


def listed(name: str) -> list[Any]:
    dataset = open_dataset(GOLDEN / name, decode=None)
    return [[s.key, {part: [len(s.raw(part)), sha(s.raw(part))[:16]] for part in s}] for s in dataset]


@pytest.mark.parametrize("name", ["ok3.tar", "edge_gnu.tar", "two_concatenated.tar"])
def test_whole_tars_give_the_same(name: str) -> None:
    assert listed(name) == EXPECTED["edge"][name]["reraise"]["samples"]


@pytest.mark.parametrize("end", ["gz", "bz2", "xz"])
def test_compressed_tars_give_what_the_plain_one_gives(end: str) -> None:
    assert listed(f"ok3.tar.{end}") == EXPECTED["edge"]["ok3.tar"]["reraise"]["samples"]


def test_odd_names_are_grouped_alike() -> None:
    """But keys keep their case and parts too: webdataset lowers those."""
    found = listed("edge_names.tar")
    lowered = [[key, {part.lower(): size for part, size in parts.items()}] for key, parts in found]
    assert lowered == EXPECTED["edge"]["edge_names.tar"]["reraise"]["samples"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bad_checksum.tar", "bad-header"),
        ("cut_in_data.tar", "truncated"),
        ("cut_in_header.tar", "truncated"),
        ("not_a_tar.tar", "other-format"),
        ("empty.tar", "empty-file"),
    ],
)
def test_damage_is_told(name: str, kind: str) -> None:
    with pytest.raises(DataError) as error:
        open_dataset(GOLDEN / name)
    assert error.value.kind == kind and name in str(error.value.file) and error.value.fix


def test_damage_without_a_trace_is_noted_by_check() -> None:
    from feedmill.indexing.check import check

    assert check(str(GOLDEN / "cut_at_member.tar"), progress=False).notes == [
        f"{GOLDEN / 'cut_at_member.tar'}: no end-of-archive marker; it may lack samples"
    ]
    (found,) = check(str(GOLDEN / "two_concatenated.tar"), progress=False).findings
    assert found.kind == "data-after-end"
    assert len(open_dataset(GOLDEN / "zeros.tar")) == 0
