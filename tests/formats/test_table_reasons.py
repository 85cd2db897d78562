"""A file of columns that cannot be read says why; only one that is damaged is to be copied again."""

from __future__ import annotations

import base64
import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import feedmill as fm
from feedmill.documents.columns import read_rows
from feedmill.documents.find import find_documents
from feedmill.errors import DataError, FeedmillError, StorageError
from feedmill.formats.tables.unreadable import Kind, unreadable
from feedmill.storage import LocalStore

TABLE = pa.table({"id": ["1", "2", "3"], "text": ["a", "b", "c"]})
AGAIN = "Copy it again"


class Kms(pe.KmsClient):
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        del master_key_identifier
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        del master_key_identifier
        return base64.b64decode(wrapped_key)


def encrypted(path: Path, *, plain: bool, columns: dict[str, list[str]] | None) -> Path:
    how = {"column_keys": columns} if columns else {"uniform_encryption": True}
    config = pe.EncryptionConfiguration(footer_key="f", plaintext_footer=plain, **how)
    properties = pe.CryptoFactory(lambda _: Kms()).file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    return path


def reason(path: Path) -> FeedmillError:
    """Opening, checking and reading documents give one reason."""
    with pytest.raises(FeedmillError) as caught:
        fm.open(path)[0]
    try:
        found = fm.check(path, progress=False).findings
    except FeedmillError as error:
        found = [error]
    assert [str(each) for each in found] == [str(caught.value)]
    with pytest.raises(FeedmillError) as documents:
        fm.documents.stat([path], progress=False)
    assert documents.value.what == caught.value.what, documents.value
    return caught.value


def test_encrypted_columns_are_named(tmp_path: Path) -> None:
    for number in range(8):  # the signature at the end of a footer is random
        path = encrypted(tmp_path / f"{number}.parquet", plain=True, columns={"c": ["text"]})
        error = reason(path)
        assert error.what == "these columns are encrypted: 'text'" and error.kind == "unsupported"
        assert AGAIN not in str(error)
    error = reason(encrypted(tmp_path / "both.parquet", plain=True, columns={"a": ["id"], "b": ["text"]}))
    assert error.what == "these columns are encrypted: 'id', 'text'"
    for columns in (None, {"c": ["text"]}):
        error = reason(encrypted(tmp_path / "footer.parquet", plain=False, columns=columns))
        assert error.what == "the file is encrypted"


def test_documents_of_plain_columns_are_read(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "x.parquet", plain=True, columns={"c": ["id"]})
    file = find_documents([str(path)]).files[0]
    assert [row for batch in read_rows(file, ["text"]) for row in batch] == TABLE.select(["text"]).to_pylist()


OTHERS: dict[str, tuple[bytes, str, str]] = {
    "json": (b'{"a": 1}\n' * 9, "JSON", "Rename it so that its name ends with .jsonl."),
    "list": (b'[{"a": 1}]', "JSON", "Write it as JSON lines, and name it .jsonl."),
    "csv": (b"a,b\n1,2\n", "plain text", "Give it the suffix of its format, or write it again."),
    "web page": (b"\n<!DOCTYPE html><html>", "a web page", "The download failed: get the file again."),
    "gzip": (gzip.compress(b"PAR1"), "data compressed by gzip", "Decompress it."),
    "git": (b"version https://git-lfs.com/v1\n", "a pointer of Git LFS", "Get the data with 'git lfs pull'."),
    "orc": (b"ORC\n\x03" + bytes(99), "ORC", "Rewrite it as Parquet, or as an Arrow file."),
    "zip": (b"PK\x03\x04" + bytes(99), "a zip archive", "Give it the suffix of its format, or write it again."),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_formats_are_named(name: str, tmp_path: Path) -> None:
    data, what, fix = OTHERS[name]
    for suffix, expected in ((".parquet", "Parquet"), (".arrow", "Arrow"), (".feather", "Arrow")):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(data)
        error = reason(path)
        assert (error.what, error.fix, error.kind) == (f"expected {expected}, found {what}", fix, "unknown-format")


def test_each_other_and_feather_1(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "x.arrow")
    assert reason(tmp_path / "x.arrow").fix == "Rename it so that its name ends with .parquet."
    pyarrow.feather.write_feather(TABLE, tmp_path / "x.parquet")
    assert reason(tmp_path / "x.parquet").fix == "Rename it so that its name ends with .arrow."
    for name in ("x.arrow", "x.feather"):
        with pytest.warns(DeprecationWarning):
            pyarrow.feather.write_feather(TABLE, tmp_path / name, version=1)
        error = reason(tmp_path / name)
        assert error.what.startswith("the file is Feather version 1") and "write_feather" in str(error.fix)


def test_tensors_and_summaries_are_no_tables(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file:
        pa.ipc.write_tensor(pa.Tensor.from_numpy(np.arange(6.0)), file)
    error = reason(tmp_path / "x.arrow")
    assert error.kind == "unsupported" and "but got tensor" in error.what and ".npy" in str(error.fix)
    parts: list[Any] = []
    pq.write_to_dataset(TABLE, tmp_path / "parts", metadata_collector=parts, partition_cols=["id"])
    parts[0].write_metadata_file(tmp_path / "x.parquet")
    error = reason(tmp_path / "x.parquet")
    assert error.what.startswith("it is a summary of other files (1), such as 'id=") and error.kind == "unsupported"
    (note,) = fm.open(tmp_path / "parts").remarks
    assert note.startswith("values of 'id' are only in the names of folders, such as 'id=")


def test_files_that_other_readers_skip_are_named(tmp_path: Path) -> None:
    for path in ("a.parquet", "_temporary/0/b.parquet"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE, tmp_path / path)
    dataset = fm.open(tmp_path)
    (note,) = dataset.remarks
    assert len(dataset) == 2 * TABLE.num_rows
    assert note.startswith("1 file of Parquet (_temporary/0/b.parquet) in a folder whose name begins with '_'")
    for log, kind in (("_delta_log/00000000000000000000.json", "a Delta"), ("metadata/v1.metadata.json", "an Iceberg")):
        folder = tmp_path / kind
        (folder / log).parent.mkdir(parents=True)
        (folder / log).write_text("{}")
        pq.write_table(TABLE, folder / "part-0.parquet")
        assert fm.open(folder).remarks == [
            f"this is the folder of {kind} table: files that its log no longer has are read too"
        ]
        assert fm.open(folder / "part-0.parquet").remarks == []


def test_keys_of_bytes_are_text(tmp_path: Path) -> None:
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()):
        table = pa.table({"__key__": pa.array([b"a", "\u00e9".encode()]).cast(kind), "n": [1, 2]})
        with pa.OSFile(str(tmp_path / "k.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        assert [sample.key for sample in fm.open(tmp_path / "k.arrow")] == ["a", "\u00e9"]
    pq.write_table(pa.table({"__key__": [b"\xff"], "n": [1]}), tmp_path / "k.parquet")
    with pytest.raises(DataError, match=r"column '__key__'.*a key is bytes that are not UTF-8 text \(b'\\xff'\)"):
        fm.open(tmp_path / "k.parquet")[0]


EXTENSIONS: tuple[tuple[str, pa.DataType, bytes], ...] = (
    ("uuid", pa.string(), b""),
    ("json", pa.dictionary(pa.int8(), pa.string()), b""),
    ("bool8", pa.bool_(), b""),
    ("bool8", pa.int8(), b"x"),
    ("fixed_shape_tensor", pa.list_(pa.int8()), b'{"shape": [2]}'),
    ("fixed_shape_tensor", pa.list_(pa.int8(), 2), b'{"shape": [3]}'),
    ("fixed_shape_tensor", pa.list_(pa.int8(), 2), b"{}"),
    ("opaque", pa.int8(), b""),
    ("opaque", pa.int8(), b"{}"),
)


@pytest.mark.parametrize(("name", "kind", "metadata"), EXTENSIONS)
def test_extension_types_of_another_storage(name: str, kind: Any, metadata: bytes, tmp_path: Path) -> None:
    notes = {"ARROW:extension:name": f"arrow.{name}", "ARROW:extension:metadata": metadata}
    table = pa.table([pa.nulls(2, kind)], schema=pa.schema([pa.field("c", kind, metadata=notes)]))
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    for file in ("x.parquet", "x.arrow"):
        error = reason(tmp_path / file)
        assert error.kind == "unsupported" and "an extension type as it is stored" in error.what, error
        assert AGAIN not in str(error)


def test_lists_of_no_items_and_streams_under_another_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": pa.array([[], None], pa.list_(pa.int8(), 0))}), tmp_path / "x.parquet")
    with pytest.raises(DataError) as caught:
        fm.open(tmp_path / "x.parquet")[0]
    assert caught.value.kind == "unsupported" and AGAIN not in str(caught.value)
    with pa.ipc.new_stream(tmp_path / "s.parquet", TABLE.schema) as writer:
        writer.write_table(TABLE)
    error = reason(tmp_path / "s.parquet")
    assert error.what == "expected Parquet, found a stream of Arrow" and ".arrows" in str(error.fix)


def test_types_and_codecs_that_pyarrow_lacks(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    pq.write_table(TABLE, tmp_path / "x.parquet")

    def said(error: BaseException) -> FeedmillError:
        return unreadable(store, "x.parquet", "parquet", error, record="row group 0")

    wide = said(pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented"))
    assert wide.kind == "unsupported" and "64-bit integers" in str(wide.fix) and AGAIN not in str(wide)
    codec = said(pa.ArrowNotImplementedError("Support for codec 'brotli' not built"))
    assert codec.kind == "unsupported" and "another codec" in str(codec.fix) and AGAIN not in str(codec)
    memory = said(pa.ArrowMemoryError("malloc of size 30000000000 failed"))
    assert isinstance(memory, StorageError) and memory.kind == "memory" and AGAIN not in str(memory)
    assert said(pa.ArrowMemoryError("malloc of size 9223372036854775744 failed")).fix == "Copy it again."
    denied = said(PermissionError(13, "Permission denied"))
    assert isinstance(denied, StorageError) and "permission denied" in str(denied)
    assert said(OSError("Corrupt snappy compressed data.")).fix == "Copy it again."


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    text = pa.table({"text": pa.array([b"a", b"\xff"]).view(pa.string())})
    with pa.ipc.new_file(tmp_path / "x.arrow", text.schema) as writer:
        writer.write_table(text)
    error = reason(tmp_path / "x.arrow")
    assert "text in it is not UTF-8" in error.what and "binary column" in str(error.fix)


def test_tables_without_columns(tmp_path: Path) -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    with pa.ipc.new_file(tmp_path / "x.arrow", nothing.schema) as writer:
        writer.write_batch(nothing)
    with pytest.raises(DataError, match="it has no columns"):
        fm.open(tmp_path / "x.arrow")
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="two columns have the same name, 'a'"):
        fm.open(tmp_path / "x.parquet")


def _parquet(path: Path) -> None:
    pq.write_table(TABLE, path, write_page_checksum=True)


def _arrow(path: Path) -> None:
    pyarrow.feather.write_feather(TABLE, path, compression="uncompressed")


def _stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE)


@pytest.mark.parametrize(("name", "form", "write"), [
    ("x.parquet", "parquet", _parquet), ("x.arrow", "arrow", _arrow), ("x.arrows", "arrow", _stream),
])  # fmt: skip
def test_what_is_damaged_is_to_be_copied(name: str, form: Kind, write: Callable[[Path], Any], tmp_path: Path) -> None:
    path, dice = tmp_path / name, random.Random(form)
    write(path)
    data = path.read_bytes()
    for end in {0, 1, *(dice.randrange(len(data) - 9) for _ in range(40))}:
        path.write_bytes(data[:end])
        try:
            dataset = fm.open(path)
        except DataError as error:
            assert error.fix == "Copy it again.", (end, error)
        else:  # between two messages of a stream
            assert list(dataset.remarks) == ["x.arrows: the stream has no end marker, so that it may be truncated"]


def test_a_dictionary_of_dictionaries_is_not_to_be_copied(tmp_path: Path) -> None:
    """pyarrow writes it as a dictionary of the innermost values, and cannot read that."""
    inner = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", "b"]))
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), inner)})
    for name, opened in (("x.arrow", pa.ipc.new_file), ("x.arrows", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as file, opened(file, table.schema) as writer:
            writer.write_table(table)
        error = reason(tmp_path / name)
        assert AGAIN not in str(error) and "a dictionary of dictionaries" in str(error)


def test_other_bytes_under_the_name_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(random.Random(5).randbytes(5000))
    error = reason(path)
    assert error.what == "expected Parquet, found binary data" and AGAIN not in str(error)
    path.write_bytes(bytes(5000))  # as after a loss of power
    assert AGAIN in str(reason(path))
