"""``.npz`` shards: those that NumPy writes, and those of a conversion."""

from __future__ import annotations

import contextlib
import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import DataError, FeedmillError, TrustError
from feedmill.formats.npz.arrays import npy_header, read_npy
from feedmill.formats.npz.write import WRITER
from feedmill.formats.tokens.flat_files import layout_of
from feedmill.storage import LocalStore

COLUMNS = {"__key__": "text", "caption": "text", "grid": "array:<f4", "image": "bytes", "label": "int", "more": "json"}


def written(folder: Path, count: int = 5) -> Path:
    rows = [
        [f"k{n}".encode(), "ü" * n, np.full((n, 2), n, "<f4"), bytes(range(n)), n, {"n": n} if n % 2 else None]
        for n in range(count)
    ]
    encoded = [[WRITER.encode(form, value) for form, value in zip(COLUMNS.values(), row, strict=True)] for row in rows]
    WRITER.write(LocalStore(folder), "0.npz", COLUMNS, encoded)
    return folder


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_are_columns(tmp_path: Path, save: Any) -> None:
    grid = np.asfortranarray(np.arange(24, dtype=">i2").reshape(4, 3, 2))
    save(
        tmp_path / "a.npz", x=np.arange(4) / 2, grid=grid, ok=np.asarray([True, False] * 2), name=np.asarray([b"a"] * 4)
    )
    dataset = fm.open(tmp_path)
    assert len(dataset) == 4 and dataset.format == "npz"
    assert [sample["x"] for sample in dataset] == [0.0, 0.5, 1.0, 1.5]
    assert dataset[2]["grid"].tolist() == grid[2].tolist()
    assert dataset[1]["ok"] is False and dataset[1]["name"] == b"a" and dataset[3].key == "3"
    assert fm.open(tmp_path / "a.npz").fingerprint() == dataset.fingerprint()


def test_values_of_any_length_and_shape_come_back(tmp_path: Path) -> None:
    dataset = fm.open(written(tmp_path), decode=None)
    assert [sample.key for sample in dataset] == ["k0", "k1", "k2", "k3", "k4"] and dataset.find("k3") == 3
    assert [sample.raw("caption").decode() for sample in dataset] == ["ü" * n for n in range(5)]
    decoded = fm.open(tmp_path)
    assert [sample["grid"].shape for sample in decoded] == [(n, 2) for n in range(5)]
    assert decoded[3]["more"] == {"n": 3} and decoded[2]["more"] is None
    with np.load(tmp_path / "0.npz") as arrays:  # as NumPy reads it
        assert arrays["label"].tolist() == [0, 1, 2, 3, 4] and arrays["grid.shapes"].shape == (5, 2)
        at = arrays["caption.offsets"]
        assert arrays["caption"][at[2] : at[3]].tobytes().decode() == "üü"


def test_images_are_decoded(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.new("RGB", (3, 2), (9, 8, 7)).save(data, "PNG")
    WRITER.write(LocalStore(tmp_path), "0.npz", {"image": "png"}, [[data.getvalue()]])
    assert np.asarray(fm.open(tmp_path)[0]["image"]).shape[-2:] in ((2, 3), (3, 3))
    assert fm.open(tmp_path, decode=None)[0].raw("image") == data.getvalue()


def test_check_reads_everything(tmp_path: Path) -> None:
    from feedmill.indexing.check import check

    written(tmp_path)
    assert not check(str(tmp_path), progress=False).findings
    path = tmp_path / "0.npz"
    data = path.read_bytes()
    at = data.index("üüüüüüüüüü".encode())
    path.write_bytes(data[:at] + b"X" + data[at + 1 :])
    findings = check(str(tmp_path), progress=False).findings
    assert [problem.kind for problem in findings] == ["hash-mismatch"]


def test_what_is_in_no_sample_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), version=np.float32(7))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", "about")
    remarks = ["a.npz: the array 'version' is not part of any sample", "a.npz: 'notes.txt' is not an array"]
    assert fm.open(tmp_path).describe()["remarks"] == remarks
    assert fm.check(str(tmp_path), progress=False).notes == remarks
    report = fm.convert(tmp_path, tmp_path.parent / "tars", "wds", progress=False)
    assert set(remarks) <= {loss.what for loss in report.plan.losses}


def test_texts_of_numpy_are_keys(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", __key__=np.asarray(["b", "ü"]), x=np.arange(2))
    dataset = fm.open(tmp_path)
    assert [sample.key for sample in dataset] == ["b", "ü"] and dataset.find("ü") == 1 and set(dataset[0]) == {"x"}


def objects(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.asarray([{}], object), allow_pickle=True)


def lengths(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.arange(3), b=np.arange(4))


def columns(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.arange(3))
    np.savez(folder / "1.npz", b=np.arange(3))


def types(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.arange(3))
    np.savez(folder / "1.npz", a=np.arange(3.0))


def widths(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.zeros((3, 2)))
    np.savez(folder / "1.npz", a=np.zeros((3, 4)))


def twofold(folder: Path) -> None:
    for count in (3, 5):
        data = io.BytesIO()
        np.save(data, np.arange(count))
        with zipfile.ZipFile(folder / "0.npz", "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("a.npy", data.getvalue())


def endless(folder: Path) -> None:
    """Whose number of bytes is 0 where it is counted in 64 bits."""
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "0.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00v\x00" + header)


def empty(folder: Path) -> None:
    (folder / "0.npz").touch()


def scalars(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.float64(1))


def moments(folder: Path) -> None:
    np.savez(folder / "0.npz", a=np.zeros(2, "M8[s]"))


def text(folder: Path) -> None:
    with zipfile.ZipFile(folder / "0.npz", "w") as archive:
        archive.writestr("a.npy", "no array")


def unended(folder: Path) -> None:
    """Whose header NumPy reads again with Python's tokenizer, as one of Python 2."""
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4L, }".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "0.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00v\x00" + header)


def cut(folder: Path) -> None:
    path = written(folder) / "0.npz"
    path.write_bytes(path.read_bytes()[:-30])


def offsets(folder: Path) -> None:
    np.savez(folder / "0.npz", __columns__=np.frombuffer(b'{"a": "text"}', np.uint8), a=np.zeros(4, np.uint8))


def listed(folder: Path) -> None:
    np.savez(folder / "0.npz", __columns__=np.frombuffer(b'{"b": "text"}', np.uint8), a=np.zeros(4, np.uint8))


def backwards(folder: Path) -> None:
    about = np.frombuffer(b'{"a": "text"}', np.uint8)
    np.savez(folder / "0.npz", **{"__columns__": about, "a": np.zeros(4, np.uint8), "a.offsets": np.asarray([0, 9, 4])})


BAD: dict[Any, tuple[type[FeedmillError], str]] = {
    objects: (TrustError, "contains Python objects"),
    lengths: (DataError, "different numbers of rows"),
    columns: (DataError, "'a' is missing here and int64 there"),
    types: (DataError, "'a' is float64 here and int64 there"),
    widths: (DataError, r"'a' is float64\[4\] here and float64\[2\] there"),
    twofold: (DataError, "two arrays have one name"),
    endless: (DataError, "needs [0-9]{20,} bytes"),
    empty: (DataError, "the file is empty"),
    scalars: (DataError, "no array has an axis of samples"),
    moments: (DataError, "are not supported"),
    text: (DataError, "not an .npy file"),
    unended: (DataError, "not an .npy file"),
    cut: (DataError, "cannot be read"),
    offsets: (DataError, "offsets are missing"),
    listed: (DataError, "it is missing"),
    backwards: (DataError, "offsets are invalid"),
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, make: Any) -> None:
    kind, words = BAD[make]
    make(tmp_path)
    with pytest.raises(kind, match=words) as error:
        fm.open(tmp_path)[0]
    assert error.value.file is not None and error.value.file.endswith(".npz")


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_MAX_UNPACKED", "1MB")
    np.savez_compressed(tmp_path / "0.npz", a=np.zeros((1000, 1000)))
    with pytest.raises(DataError) as error:
        fm.open(tmp_path)[0]
    assert error.value.kind == "too-large"


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"two arrays would have the name 'a\.offsets'"):
        WRITER.write(LocalStore(tmp_path), "0.npz", {"a": "text", "a.offsets": "int"}, [[b"x", 1]])
    assert not list(tmp_path.iterdir())


def damaged_headers(data: bytes) -> Iterator[bytes]:
    """Yield the file with each byte of its header changed in several ways."""
    end = 10 + int.from_bytes(data[8:10], "little")
    for at in range(6, end):
        for byte in (0, 0x22, 0x28, 0x29, 0x39, 0x5C, 0x7B, 0xFF):
            yield data[:at] + bytes([byte]) + data[at + 1 :]
    for length in range(0, end, 7):
        yield data[:length]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning", "ignore::UserWarning")
def test_a_damaged_header_of_an_array_is_an_error_that_names_it(tmp_path: Path) -> None:
    """NumPy tokenizes headers as Python, and raises what its tokenizer and its parser raise."""
    stream, path = io.BytesIO(), tmp_path / "a.npy"
    np.save(stream, np.arange(5, dtype=np.uint16))
    store, errors = LocalStore(tmp_path), 0
    for data in damaged_headers(stream.getvalue()):
        for read in (npy_header, lambda data: read_npy(data.getvalue())):
            with contextlib.suppress(ValueError):
                read(io.BytesIO(data))
        path.write_bytes(data)
        try:
            layout_of(store, "a.npy", None)
        except FeedmillError:
            errors += 1
    assert errors > 300


def test_a_number_in_a_header_may_have_any_number_of_digits() -> None:
    header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",), }"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(ValueError, match=r"npy|digits|large|header"):
        npy_header(io.BytesIO(data))
    with pytest.raises(ValueError, match=r"npy|digits|large|header"):
        read_npy(data)
