"""Every kind of ``.pth`` that torch wrote for the golden data."""

import tarfile

import pytest

from feedmill.errors import DataError
from feedmill.formats.pth import load
from helpers.vla_golden import ROOT, expected, facts

CASES = expected("formats")["pth"]


def _files() -> dict[str, bytes]:
    with tarfile.open(ROOT / "formats" / "pth_variants.tar") as tar:
        return {m.name.removesuffix(".pth"): tar.extractfile(m).read() for m in tar if m.isfile()}


FILES = _files()


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_reads_what_torch_reads(name: str, to: str) -> None:
    if to == "torch":
        pytest.importorskip("torch")
    wanted = CASES[name]["full"]
    if name == "v26_evil":
        with pytest.raises(DataError, match=r"names posixpath\.join") as info:
            load(FILES[name], to=to)
        assert info.value.kind == "unsafe-pickle"
        return
    for _ in range(2):  # the second time by the remembered layout
        assert facts(load(FILES[name], to=to)) == wanted
    if "stride" in CASES[name] and to == "numpy":
        found = load(FILES[name])
        if found.size > 1:
            assert [stride // found.itemsize for stride in found.strides] == CASES[name]["stride"]


def test_shared_storages_stay_shared() -> None:
    found = load(FILES["v21_shared"])
    import numpy as np

    assert np.shares_memory(found["x"], found["y"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_cut_file_is_an_error(name: str) -> None:
    data = FILES[name]
    for length in sorted({*range(0, len(data), 97), len(data) - 1}):
        with pytest.raises(DataError):
            load(data[:length])
